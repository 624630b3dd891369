#!/usr/bin/env bash
# Prints the JobSet of a run, for the options of launch/tpu_run.sh:
#
#   launch/gke/render.sh --image=REGION-docker.pkg.dev/PROJECT/agentrl/trainer:1 \
#     --name=qwen --learner=v5p-64 --rollout=4xv5p-8 --spot \
#     --workdir=gs://bucket/runs -- --config=configs/pod.py:qwen2.5-14b |
#     kubectl apply -f -
#
# The commands are those that launch/tpu_run.sh would run, by the same bootstrap.
set -euo pipefail

PROGRAM=render
GKE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
HERE=$(cd "$GKE/.." && pwd)
ROOT=$(cd "$HERE/.." && pwd)
DRY_RUN=''
# Half of the sourced variables are used by launch/tpu_run.sh alone.
# shellcheck disable=SC2034
# shellcheck source=launch/tpu/say.sh
source "$HERE/tpu/say.sh"
# shellcheck source=launch/tpu/accelerators.sh
source "$HERE/tpu/accelerators.sh"
# shellcheck source=launch/tpu/options.sh
source "$HERE/tpu/options.sh"
# shellcheck source=launch/tpu/places.sh
source "$HERE/tpu/places.sh"

IMAGE=''

main() {
  local words=()
  while (($#)); do
    case $1 in
      --image=*) IMAGE=${1#*=} ;;
      --) words+=("$@"); break ;;
      *) words+=("$1") ;;
    esac
    shift
  done
  VERB=render
  read_options "${words[@]}"
  check
  plan_places
  check_slices
  document
}

check() {
  [[ -n $IMAGE ]] || fail "--image must name a container image of the code: \
docker build --file launch/gke/Dockerfile --tag IMAGE . && docker push IMAGE"
  [[ -z $LOCAL ]] || fail "--local is for launch/tpu_run.sh"
  [[ -n $BUCKET ]] || fail "--workdir=$WORKDIR must be a bucket (gs://bucket/path): \
it is mounted in every Pod"
}

check_slices() {
  ((COUNTS[0] == 1 || $(num_hosts "${TYPES[0]}") > 1)) || fail "--learner=$LEARNER: on \
Kubernetes only slices of several hosts learn together \
(cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice), and ${TYPES[0]} is \
one host: ask for one larger slice, or use launch/tpu_run.sh"
}

document() {
  local text jobs='' role
  for role in learner rollout controller environments; do
    jobs+=$(job "$role")
    jobs+=$'\n'
  done
  text=$(<"$GKE/jobset.yaml")
  text=${text//@RUN@/$RUN}
  text=${text//@RESTARTS@/$MAX_RESTARTS}
  text=${text//@REFUSED@/$REFUSED}
  printf '%s\n' "${text//@JOBS@/"${jobs%$'\n'}"}" | sed '/^ *$/d'
}

# --- One role -----------------------------------------------------------------

job() {
  local role=$1 place='' replicas=0 p text key
  for p in "${!ROLES[@]}"; do
    [[ ${ROLES[p]} == "$role" ]] || continue
    place=$p
    replicas=$((replicas + 1))
  done
  # The controller has its own Pod if there are environment workers.
  if [[ $role == controller && -n $PLAYED ]]; then
    replicas=1
  elif [[ $replicas == 0 ]]; then
    return
  elif [[ $role == learner ]]; then
    replicas=${COUNTS[place]}
  fi
  values "$role" "$place"
  VALUE[REPLICAS]=$replicas
  text=$(<"$GKE/jobs.yaml")
  for key in "${!VALUE[@]}"; do
    [[ $key == COMMAND ]] || text=${text//@$key@/"${VALUE[$key]}"}
  done
  # Substituted last, because the command may contain any text.
  printf '%s' "${text//@COMMAND@/"${VALUE[COMMAND]}"}"
}

declare -A VALUE

values() {
  local role=$1 place=$2 kind='' type=''
  [[ -z $place ]] || kind=${KINDS[place]} type=${TYPES[place]}
  role_command "$role" 0 "$RUN-controller-0-0.$RUN" "$(servers)"
  role_environment "$role"
  VALUE=([RUN]=$RUN [ROLE]=$role [IMAGE]=$IMAGE [HOSTS]=1
    [GRACE]=$((GRACE_S + MARGIN_S)) [REFUSED]=$REFUSED [BACKOFF]=1000 [DISRUPTED]=Ignore [MOUNT]=$MOUNT [BUCKET]=$BUCKET
    [SERVICE_ACCOUNT]=${SERVICE_ACCOUNT:-default}
    [COMMAND]=$(list bash launch/tpu/bootstrap.sh run "$role" \
      "$(restart_of "$role")" -- "${COMMAND[@]}")
    [ENV]=$(variables) [RESOURCES]='{}' [PLACEMENT]='{}'
    [TOLERATIONS]='[]')
  if [[ $role == learner ]]; then
    VALUE[BACKOFF]=0 VALUE[DISRUPTED]=FailJob
    # One slice per Job, each on its own node pool.
    VALUE[PLACEMENT]='{alpha.jobset.sigs.k8s.io/exclusive-topology: '
    VALUE[PLACEMENT]+='cloud.google.com/gke-nodepool}'
  fi
  local selector=()
  if [[ $kind == tpu ]]; then
    VALUE[HOSTS]=$(num_hosts "$type")
    VALUE[RESOURCES]="{limits: {google.com/tpu: $(chips_per_host "$type")}}"
    selector+=("cloud.google.com/gke-tpu-accelerator: $(gke_accelerator "$type")"
      "cloud.google.com/gke-tpu-topology: $(topology "$type")")
  elif [[ $kind == machine ]]; then
    selector+=("node.kubernetes.io/instance-type: $type")
  fi
  if [[ -n $SPOT && -n $kind ]]; then
    selector+=('cloud.google.com/gke-spot: "true"')
    VALUE[TOLERATIONS]='[{key: cloud.google.com/gke-spot, operator: Exists}]'
  fi
  VALUE[SELECTOR]="{$(joined "${selector[@]}")}"
}

joined() {
  local word text=''
  for word in "$@"; do text+="${text:+, }$word"; done
  printf '%s' "$text"
}

# Prints the addresses of rollout servers, by the names that a JobSet gives Pods.
servers() {
  local place number=0
  for place in "${!ROLES[@]}"; do
    [[ ${ROLES[place]} == rollout ]] || continue
    printf '"%s-rollout-%s-0.%s:%s",' "$RUN" "$number" "$RUN" "$ROLLOUT_PORT"
    number=$((number + 1))
  done
}

# Prints these words as a YAML list.
list() {
  local word text=''
  for word in "$@"; do text+="${text:+, }$(quoted "$word")"; done
  printf '[%s]' "$text"
}

quoted() { printf "'%s'" "${1//\'/\'\'}"; }

variables() {
  local variable text=''
  for variable in "${VARIABLES[@]}"; do
    [[ $variable != AGENTRL_BUCKET=* && $variable != AGENTRL_MOUNT=* ]] || continue
    text+="${text:+, }{name: ${variable%%=*}, value: $(quoted "${variable#*=}")}"
  done
  printf '[%s]' "$text"
}

main "$@"
