# The places of a run, and their commands. Sourced.
# shellcheck shell=bash
#
# A place is one resource: a slice (or several slices that learn together), a
# machine, or, with --local, processes on this machine. For place p:
#   ROLES[p]   learner, rollout, controller, environments
#   NAMES[p]   its resource: qwen-learner, qwen-rollout-0
#   KINDS[p]   tpu, machine, local
#   TYPES[p]   v5p-64, n2-standard-32; for local the number of processes
#   COUNTS[p]  number of its slices
# Names are derived from the run's name, so that existing resources are found.

ROLES=() NAMES=() KINDS=() TYPES=() COUNTS=()

ROLLOUT_PORT=${AGENTRL_ROLLOUT_PORT:-9000}
CONTROLLER_PORT=${AGENTRL_CONTROLLER_PORT:-5020}  # and the next port, for workers
# Folder with the controller's tokens, client, worker and operator, on every host;
# without one, all who reach the controller may do everything.
TOKENS=''

add_place() {
  ROLES+=("$1") NAMES+=("$2") KINDS+=("$3") TYPES+=("$4") COUNTS+=("$5")
}

# "2xv5p-8" is 2 and v5p-8; "v5p-8" is 1 and v5p-8.
split_count() {
  if [[ $1 =~ ^([1-9][0-9]*)x(.+)$ ]]; then
    NUMBER=${BASH_REMATCH[1]} THING=${BASH_REMATCH[2]}
  else
    NUMBER=1 THING=$1
  fi
}

plan_places() {
  split_count "$LEARNER"
  if [[ -n $LOCAL ]]; then
    add_place learner "$RUN-learner" local "$LOCAL" 1
  else
    THING=$(accelerator_type "$THING")
    check_accelerator "$THING"
    add_place learner "$RUN-learner" tpu "$THING" "$NUMBER"
  fi
  plan_rollouts
  plan_environments
}

plan_rollouts() {
  [[ -n $ROLLOUT ]] || return 0
  local i
  if [[ -n $LOCAL ]]; then
    [[ $ROLLOUT =~ ^[1-9][0-9]*$ ]] || fail "with --local, --rollout=$ROLLOUT \
must be a number of processes"
    for ((i = 0; i < ROLLOUT; i++)); do
      add_place rollout "$RUN-rollout-$i" local 1 1
    done
    return
  fi
  split_count "$ROLLOUT"
  THING=$(accelerator_type "$THING")
  check_accelerator "$THING"
  (($(num_hosts "$THING") == 1)) || fail "a rollout server is one host, and \
$THING has $(num_hosts "$THING"): ask for more of a smaller slice, as in \
--rollout=$((NUMBER * $(num_hosts "$THING")))x$(single_host "$THING")"
  for ((i = 0; i < NUMBER; i++)); do
    add_place rollout "$RUN-rollout-$i" tpu "$THING" 1
  done
}

single_host() {
  case $1 in
    v4-* | v5p-* | tpu7x-*) printf '%s-8' "${1%-*}" ;;
    *) printf '%s-4' "${1%-*}" ;;
  esac
}

plan_environments() {
  [[ -n $ENVIRONMENTS ]] || return 0
  local i machines=${ENVIRONMENTS%%:*}
  PLAYED=${ENVIRONMENTS#*:}
  [[ $ENVIRONMENTS == *:?* ]] || fail "--environments=$ENVIRONMENTS must also \
name what is played there, as in --environments=2xn2-standard-32:dbbench,webshop"
  [[ -z $CONTROLLER || -n $LOCAL ]] ||
    add_place controller "$RUN-controller" machine "$CONTROLLER" 1
  split_count "$machines"
  if [[ -n $LOCAL ]]; then
    [[ $machines =~ ^[1-9][0-9]*$ ]] || fail "with --local, --environments must \
begin with a number of processes, not $machines"
    NUMBER=$machines
  fi
  for ((i = 0; i < NUMBER; i++)); do
    if [[ -n $LOCAL ]]; then
      add_place environments "$RUN-environments-$i" local 1 1
    else
      add_place environments "$RUN-environments-$i" machine "$THING" 1
    fi
  done
}

# Prints a place's name on its hosts and in the logs: learner, rollout-0.
label() { printf '%s' "${NAMES[$1]#"$RUN-"}"; }

# Prints the names of a place's slices, each of which has its own hosts.
nodes() {
  local i
  if ((COUNTS[$1] == 1)); then
    printf '%s\n' "${NAMES[$1]}"
  else
    for ((i = 0; i < COUNTS[$1]; i++)); do printf '%s-%s\n' "${NAMES[$1]}" "$i"; done
  fi
}

# --- Commands -----------------------------------------------------------------
# Commands are the same on all kinds of hosts; only addresses differ.

# role_command ROLE NUMBER CONTROLLER_HOST SERVERS: fills COMMAND.
role_command() {
  local role=$1 number=$2 controller=$3 servers=$4 name access=(--allow-anyone)
  case $role in
    learner)
      if [[ $VERB == check ]]; then
        COMMAND=(python -m launch.check_slice "--topology=${TYPES[0]}"
          "--seconds=$CHECK_S" "${ARGUMENTS[@]}")
        return
      fi
      COMMAND=(python -m launch.train "${ARGUMENTS[@]}"
        "--config.checkpoint.grace_s=$GRACE_S")
      [[ -z $servers ]] || COMMAND+=("--config.rollouts.servers=($servers)")
      for name in ${PLAYED//,/ }; do
        COMMAND+=("--config.environments.$name.place.controller=$(api "$controller")")
        [[ -z $TOKENS ]] ||
          COMMAND+=("--config.environments.$name.place.token_file=$TOKENS/client")
      done
      ;;
    rollout)
      COMMAND=(python -m launch.serve_rollouts "${ARGUMENTS[@]}"
        --host=0.0.0.0 "--port=$(rollout_port "$number")")
      ;;
    controller)
      [[ -z $TOKENS ]] || access=(--client-token "$TOKENS/client"
        --worker-token "$TOKENS/worker" --operator-token "$TOKENS/operator")
      COMMAND=(python -m agentrl_jax.service.controller
        --bind 0.0.0.0 "${access[@]}" --port "$CONTROLLER_PORT"
        --grpc-port "$((CONTROLLER_PORT + 1))")
      ;;
    environments)
      COMMAND=(python -m launch.serve_environments "${ARGUMENTS[@]}"
        "--environments=$PLAYED"
        "--controller=grpc://$controller:$((CONTROLLER_PORT + 1))")
      [[ -z $TOKENS ]] || COMMAND+=("--token=$TOKENS/worker")
      ;;
  esac
}

api() { printf 'http://%s:%s/api' "$1" "$CONTROLLER_PORT"; }

# Processes on one machine need different ports; separate hosts do not.
rollout_port() {
  if [[ -n $LOCAL ]]; then printf '%s' "$((ROLLOUT_PORT + $1))"; else
    printf '%s' "$ROLLOUT_PORT"
  fi
}

# A learner needs all its processes; every other role restarts alone.
restart_of() { if [[ $1 == learner ]]; then printf never; else printf always; fi; }

# Sets VARIABLES, the environment of a role, as words for env(1).
role_environment() {
  local role=$1
  VARIABLES=("${ENVIRONMENT[@]}")
  [[ -z $PYTHON ]] || VARIABLES+=("AGENTRL_PYTHON=$PYTHON")
  [[ $role != learner ]] || VARIABLES+=("AGENTRL_GRACE_S=$((GRACE_S + MARGIN_S))")
  [[ -z $BUCKET ]] ||
    VARIABLES+=("AGENTRL_BUCKET=$BUCKET" "AGENTRL_MOUNT=$MOUNT")
  if [[ $role == learner && -n $LOCAL ]]; then
    VARIABLES+=("AGENTRL_NUM_PROCESSES=$LOCAL"
      "AGENTRL_COORDINATOR=127.0.0.1:$COORDINATOR_PORT")
  elif [[ $role == learner ]]; then
    VARIABLES+=(AGENTRL_NUM_PROCESSES=auto)
  fi
}
