# Starts the roles of a run, shows their output, and restarts them. Sourced.
# shellcheck shell=bash

STARTED=()  # key of the command that was started in a place
FOLLOWED=()  # "place node pid" of each output stream
RESTARTS=0
ATTEMPT_SINCE=0
FINISHED=''
STEADY_S=1800  # after which a failure counts as the first one again

# --- The loop -----------------------------------------------------------------

run() {
  local next=0
  while [[ -z $FINISHED ]]; do
    heed_money
    if ((SECONDS >= next)); then
      tend
      # A finished learner is not restarted with a change.
      heed || true
      if [[ -z $FINISHED ]] && all_prepared; then start_all; fi
      next=$((SECONDS + POLL_S))
      [[ -z $DRY_RUN ]] || next=0
    fi
    heed && next=0
    [[ -n $DRY_RUN ]] || read -rt "$TICK_S" <&4 || true
    [[ -z $SIGNAL ]] || leave
  done
}

all_prepared() {
  local place
  for place in "${!ROLES[@]}"; do
    [[ ${PREPARED[place]:-} == yes ]] || return 1
  done
}

# --- Starting -----------------------------------------------------------------

# Starts roles that do not run, or run another command, in order of dependency.
start_all() {
  local role place number servers=''
  for role in controller rollout environments learner; do
    number=0
    for place in "${!ROLES[@]}"; do
      [[ ${ROLES[place]} == "$role" ]] || continue
      if [[ $role == rollout && -z ${STARTED[place]:-} ]]; then
        ADDRESS[place]=$(address_of "$place") || return 0
      fi
      if [[ $role == rollout ]]; then
        servers+="\"${ADDRESS[place]}:$(rollout_port "$number")\","
      fi
      if [[ $role == learner ]]; then
        start_learner "$place" "$servers" || return 0
      else
        start_one "$place" "$number" || return 0
      fi
      number=$((number + 1))
    done
  done
}

ADDRESS=()

address_of() {
  if [[ ${KINDS[$1]} == local ]]; then
    printf 127.0.0.1
    return
  fi
  LIMIT=120
  ERROR=$SCRATCH/error-$1
  cloud_address "$1" "$(nodes "$1" | head -n 1)" || {
    say "the address of ${NAMES[$1]} is not to be had, and is asked for again: \
$(<"$ERROR")"
    return 1
  }
}

# Prints the controller's address, as seen by others or, for `learner`, by itself.
controller_host() {
  local place wanted=learner
  [[ -n $CONTROLLER && -z $LOCAL ]] && wanted=controller
  if [[ -n $LOCAL || ($1 == learner && $wanted == learner) ]]; then
    printf 127.0.0.1
    return
  fi
  for place in "${!ROLES[@]}"; do
    [[ ${ROLES[place]} == "$wanted" ]] || continue
    address_of "$place"
    return
  done
}

start_one() {
  local place=$1 number=$2 role=${ROLES[$1]} controller='' key node
  [[ -z ${STARTED[place]:-} ]] || return 0
  if [[ $role == environments ]]; then
    controller=$(controller_host "$role") || return 1
    [[ -n $CONTROLLER ]] || start_controller || return 1
  fi
  role_command "$role" "$number" "$controller" ''
  key=$(key_of "$place")
  LIMIT=600
  node=$(nodes "$place")
  on "$place" "$node" all "$(bootstrap "$place" start "$(label "$place")" "$key" \
    "$(restart_of "$role")" -- "${COMMAND[@]}")" >&"$TOLD" || return 1
  STARTED[place]=$key
  follow "$place" "$node"
}

# The controller runs beside the learner's first process or on its own machine.
start_controller() {
  local place=0 node
  node=$(nodes "$place" | head -n 1)
  role_command controller 0 '' ''
  LIMIT=600
  on "$place" "$node" 0 "$(bootstrap "$place" start controller "$(key_of "$place")" \
    always -- "${COMMAND[@]}")" >&"$TOLD"
}

# All processes of the learner are started together, or none.
start_learner() {
  local place=$1 servers=$2 controller='' key node
  [[ -z $PLAYED ]] || controller=$(controller_host learner) || return 1
  ((COORDINATOR_PORT = FIRST_PORT + RESTARTS % 100))
  role_command learner 0 "$controller" "$servers"
  key=$(key_of "$place")
  [[ ${STARTED[place]:-} != "$key" ]] || return 0
  if everywhere "$place" "$(bootstrap "$place" running learner "$key")" &&
    [[ -z $DRY_RUN ]]; then
    say "the learner runs already; its output follows"
  else
    [[ -z ${STARTED[place]:-} ]] || say "the learner starts again, with what changed"
    forget "$place"
    everywhere "$place" "$(bootstrap "$place" stop learner own)" || return 1
    everywhere "$place" "$(bootstrap "$place" start learner "$key" never -- \
      "${COMMAND[@]}")" || return 1
  fi
  STARTED[place]=$key
  ATTEMPT_SINCE=$SECONDS
  for node in $(nodes "$place"); do follow "$place" "$node"; done
}

# Runs a line on all hosts of all slices at once; returns the worst status.
everywhere() {
  local place=$1 line=$2 node pid pids=() code=0
  # A learner that is stopped may have been started with a longer --grace.
  LIMIT=$((3600 + GRACE_S))
  [[ $VERB != check ]] || LIMIT=$CHECK_LIMIT
  for node in $(nodes "$place"); do
    if [[ -n $DRY_RUN ]]; then
      on "$place" "$node" all "$line"
    else
      on "$place" "$node" all "$line" >&2 4>&- &
      pids+=("$!")
    fi
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
  return "$code"
}

# Prints a key of the command: an equal key means that nothing has changed.
key_of() {
  role_environment "${ROLES[$1]}"
  printf '%s\n' "$CODE" "${VARIABLES[@]}" "${COMMAND[@]}" | cksum | tr ' ' -
}

# --- Following ----------------------------------------------------------------

follow() {
  local place=$1 node=$2
  if [[ -n $DRY_RUN ]]; then
    on "$place" "$node" all "$(following "$place" "$node")"
    [[ ${ROLES[place]} != learner ]] || FINISHED=0
    return
  fi
  rm -f "$SCRATCH/followed-$place-$node" "$SCRATCH/broke-$place"
  set -m  # its own process group, to be killed together
  follow_node "$place" "$node" 4>&- &
  set +m
  FOLLOWED+=("$place $node $!")
}

# Prints the line that shows a node's output; of several slices, with its number.
following() {
  local place=$1 node=$2 slice=''
  ((COUNTS[place] == 1)) || slice="env AGENTRL_SLICE=${node##*-} "
  printf '%s%s' "$slice" "$(bootstrap "$place" follow "$(label "$place")")"
}

follow_node() {
  local place=$1 node=$2 line code=0
  set +m
  trap - INT TERM EXIT
  LIMIT=0
  {
    on "$place" "$node" all "$(following "$place" "$node")" \
      2>"$SCRATCH/error-$place" || code=$?
    printf 'status %s\n' "$code"
  } | while IFS= read -r line; do
    if [[ $line =~ ^status\ ([0-9]+)$ ]]; then
      printf '%s' "${BASH_REMATCH[1]}" >"$SCRATCH/followed-$place-$node"
    elif [[ $line =~ ^agentrl:\ .*\ ended\ with\ status\ [1-9] ]]; then
      printf '%s\n' "${line#agentrl: }" >>"$SCRATCH/broke-$place"
      say "${line#agentrl: }"
    else
      printf '%s\n' "$line"
    fi
  done
}

# Stops following a place, and marks it as not started.
forget() {
  local place=$1 entry rest=() of node pid
  for entry in "${FOLLOWED[@]}"; do
    read -r of node pid <<<"$entry"
    if [[ $of == "$place" ]]; then
      kill -TERM -- "-$pid" 2>/dev/null || true
      wait "$pid" 2>/dev/null || true
    else
      rest+=("$entry")
    fi
  done
  FOLLOWED=("${rest[@]}")
  STARTED[place]=''
}

# Checks which streams have ended; 0 if any, so that states are requested at once.
heed() {
  local entry place node pid ended=1 done_with_learner=yes learners=no
  for entry in "${FOLLOWED[@]}"; do
    read -r place node pid <<<"$entry"
    [[ ${ROLES[place]} == learner ]] && learners=yes
    if [[ ! -s $SCRATCH/followed-$place-$node ]]; then
      [[ ${ROLES[place]} == learner ]] && done_with_learner=no
      continue
    fi
    if [[ ${ROLES[place]} != learner ]]; then
      [[ $(<"$SCRATCH/followed-$place-$node") != "$REFUSED" ]] || refused "$place"
      forget "$place"
      ended=0
    elif [[ $(<"$SCRATCH/followed-$place-$node") != 0 ]]; then
      broke "$place" "$(<"$SCRATCH/followed-$place-$node")"
      return 0
    fi
  done
  if [[ $learners == yes && $done_with_learner == yes ]]; then
    FINISHED=0
  elif [[ $learners == yes ]]; then
    heed_partial
  fi
  return "$ended"
}

# One process of the learner failed and the others have not noticed.
heed_partial() {
  local file=$SCRATCH/broke-0 since
  [[ -s $file ]] || return 0
  since=$(stat -c %Y "$file" 2>/dev/null || stat -f %m "$file")
  (($(date +%s) - since > PEERS_S)) || return 0
  say "the others did not end within $(duration "$PEERS_S"); they are stopped"
  broke 0 "$(sed -n 's/.* status //p' "$file" | head -n 1)"
}

# Says if any process of a place ended with the status of a refusal: the others
# end with that of a lost process.
refuses() {
  grep -q " status $REFUSED\$" "$SCRATCH/broke-$1" 2>/dev/null
}

# Ends the run: started again, the same command would be refused again.
refused() {
  local place=$1
  say "${NAMES[place]} refuses its flags or its config (status $REFUSED); the run \
ends, and the learner saves first"
  everywhere 0 "$(bootstrap 0 stop learner own)" ||
    say "the learner could not be told to stop"
  fail "${NAMES[place]} refuses its flags or its config, and starting it again would \
not change that: see what it said above. Correct it and give the command again, \
which goes on from the last checkpoint$(kept_resources)"
}

# Reacts to the learner's end with a status other than 0.
broke() {
  local place=$1 code=$2 lasted=$((SECONDS - ATTEMPT_SINCE))
  forget "$place"
  tend
  if [[ ${PREPARED[place]:-} != yes ]]; then
    return
  elif ((code == 255)); then
    say "the connection to ${NAMES[place]} was lost: $(tail -n 3 "$SCRATCH/error-$place")"
    return
  fi
  if [[ $VERB == check ]]; then
    FINISHED=$code
    return
  fi
  if ((code == REFUSED)) || refuses "$place"; then refused "$place"; fi
  ((lasted < STEADY_S)) || RESTARTS=0
  RESTARTS=$((RESTARTS + 1))
  ((RESTARTS <= MAX_RESTARTS)) || fail "the learner ended with status $code, for the \
$RESTARTS. time in a row, after $(duration "$lasted"): see what it said above. The \
resources are kept; when it is mended, the same command goes on from the last \
checkpoint, or delete them: $(teardown_command)"
  say "the learner ended with status $code after $(duration "$lasted"); it starts \
again from its last checkpoint (restart $RESTARTS of at most $MAX_RESTARTS)"
}
