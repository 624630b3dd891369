#!/usr/bin/env bash
# Prints the manifests of a run, for the options of launch/tpu_run.sh: a JobSet of
# its learner and rollout servers, and with --environments a controller and machines
# of environments, as Deployments:
#
#   launch/gke/render.sh --image=REGION-docker.pkg.dev/PROJECT/agentrl/trainer:1 \
#     --name=qwen --learner=v5p-64 --rollout=4xv5p-8 --spot \
#     --environments=2xn2-standard-32:dbbench --max-environments=20 \
#     --workdir=gs://bucket/runs -- --config=configs/pod.py:qwen2.5-14b |
#     kubectl apply -f -
#
# Options that launch/tpu_run.sh does not have:
#   --image=IMAGE           the image of all Pods (launch/gke/Dockerfile)
#   --max-environments=N    the number of machines of environments grows with the
#                           load to N; that of --environments is the least
#   --tokens-secret=NAME    the Secret with the controller's tokens: agentrl-tokens
#   --runtime-class=NAME    of the Pods of environments, as gvisor
#
# The commands are those that launch/tpu_run.sh would run, by the same bootstrap.
set -euo pipefail
shopt -s inherit_errexit  # so that no half of the manifests is printed

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

IMAGE='' MAX_ENVIRONMENTS='' TOKENS_SECRET=agentrl-tokens RUNTIME_CLASS=''

main() {
  local words=()
  while (($#)); do
    case $1 in
      --image=*) IMAGE=${1#*=} ;;
      --max-environments=*) MAX_ENVIRONMENTS=${1#*=} ;;
      --tokens-secret=*) TOKENS_SECRET=${1#*=} ;;
      --runtime-class=*) RUNTIME_CLASS=${1#*=} ;;
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
  check_autoscaler
  [[ -z $PLAYED ]] || TOKENS=/etc/agentrl/tokens
  manifests
}

check() {
  [[ -n $IMAGE ]] || fail "--image must name a container image of the code: \
docker build --file launch/gke/Dockerfile --tag IMAGE . && docker push IMAGE"
  [[ -z $LOCAL ]] || fail "--local is for launch/tpu_run.sh"
  [[ -n $BUCKET ]] || fail "--workdir=$WORKDIR must be a bucket (gs://bucket/path): \
it is mounted in the Pods of learner and rollout servers"
  [[ $TOKENS_SECRET =~ ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$ ]] || fail "\
--tokens-secret=$TOKENS_SECRET must be the name of a Secret"
}

check_slices() {
  ((COUNTS[0] == 1 || $(num_hosts "${TYPES[0]}") > 1)) || fail "--learner=$LEARNER: on \
Kubernetes only slices of several hosts learn together \
(cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice), and ${TYPES[0]} is \
one host: ask for one larger slice, or use launch/tpu_run.sh"
}

check_autoscaler() {
  [[ -n $MAX_ENVIRONMENTS ]] || return 0
  [[ $MAX_ENVIRONMENTS =~ ^[1-9][0-9]{0,5}$ ]] || fail "\
--max-environments=$MAX_ENVIRONMENTS must be a number of machines"
  [[ -n $PLAYED ]] || fail "--max-environments=$MAX_ENVIRONMENTS: there are no machines \
of environments; name them with --environments"
  ((MAX_ENVIRONMENTS >= $(num_places environments))) || fail "\
--max-environments=$MAX_ENVIRONMENTS is less than the machines of \
--environments=$ENVIRONMENTS, which are the least"
}

# Policies come before the Pods that they are about. Fields that are left out leave
# an empty line.
manifests() {
  local text
  text=$(documents)
  sed '/^ *$/d' <<<"$text"
}

documents() {
  role_values learner
  fill learner.yaml
  if [[ -n $ROLLOUT ]]; then
    printf -- '---\n'
    fill rollout.yaml
  fi
  if [[ -n $PLAYED ]]; then
    printf -- '---\n'
    role_values controller
    fill controller.yaml
    printf -- '---\n'
    role_values environments
    fill environments.yaml
  fi
  if [[ -n $MAX_ENVIRONMENTS ]]; then
    printf -- '---\n'
    fill autoscaler.yaml
  fi
  printf -- '---\n'
  jobset
}

jobset() {
  local jobs
  role_values learner
  jobs=$(fill jobs.yaml)
  if [[ -n $ROLLOUT ]]; then
    role_values rollout
    jobs+=$'\n'$(fill jobs.yaml)
  fi
  VALUE[JOBS]=$jobs
  fill jobset.yaml
}

# Prints a template with each @KEY@ as VALUE[KEY]. Values are not looked through, so
# that they may contain any text.
fill() {
  local rest key
  rest=$(<"$GKE/$1")
  while [[ $rest =~ @([A-Z_]+)@ ]]; do
    key=${BASH_REMATCH[1]}
    printf '%s%s' "${rest%%"@$key@"*}" "${VALUE[$key]}"
    rest=${rest#*"@$key@"}
  done
  printf '%s\n' "$rest"
}

# --- One role -----------------------------------------------------------------

declare -A VALUE

num_places() {
  local place number=0
  for place in "${!ROLES[@]}"; do
    [[ ${ROLES[place]} != "$1" ]] || number=$((number + 1))
  done
  printf '%s' "$number"
}

# Sets VALUE, the values of a role's templates.
role_values() {
  local role=$1 place='' p kind='' type='' restart
  for p in "${!ROLES[@]}"; do [[ ${ROLES[p]} != "$role" ]] || place=$p; done
  [[ -z $place ]] || kind=${KINDS[place]} type=${TYPES[place]}
  role_command "$role" 0 "$RUN-controller" "$(servers)"
  role_environment "$role"
  restart=$(restart_of "$role")
  VALUE=([RUN]=$RUN [ROLE]=$role [IMAGE]=$(quoted "$IMAGE")
    [REPLICAS]=$(num_places "$role") [REPLICAS_MIN]=$(num_places "$role")
    [REPLICAS_MAX]=$MAX_ENVIRONMENTS [REPLICAS_FIELD]='' [RUNTIME_CLASS_FIELD]=''
    [ROLLOUT_PORT]=$ROLLOUT_PORT [CONTROLLER_PORT]=$CONTROLLER_PORT
    [WORKER_PORT]=$((CONTROLLER_PORT + 1)) [TOKENS]=$TOKENS
    [SECRET]=$(quoted "$TOKENS_SECRET") [RESTARTS]=$MAX_RESTARTS [REFUSED]=$REFUSED
    [GRACE]=$((GRACE_S + MARGIN_S)) [MOUNT]=$(quoted "$MOUNT")
    [BUCKET]=$(quoted "$BUCKET")
    [SERVICE_ACCOUNT]=$(quoted "${SERVICE_ACCOUNT:-default}") [TOLERATIONS]='[]')
  "values_of_$role" "$type"
  values_of_node "$kind" "$type"
  VALUE[ENV]=$(variables)
  VALUE[COMMAND]=$(list bash launch/tpu/bootstrap.sh run "$role" "$restart" \
    -- "${COMMAND[@]}")
}

values_of_learner() {
  values_of_tpu "$1"
  VALUE[REPLICAS]=${COUNTS[0]}
  VALUE[BACKOFF]=0 VALUE[DISRUPTED]=FailJob
  # One slice per Job, each on its own node pool.
  VALUE[PLACEMENT]='{alpha.jobset.sigs.k8s.io/exclusive-topology: '
  VALUE[PLACEMENT]+='cloud.google.com/gke-nodepool}'
  VALUE[PORTS]='[]' VALUE[PROBES]=''
  [[ -n $TOKENS ]] || return 0
  VALUE[TOKENS_MOUNT]="- {name: tokens, mountPath: $TOKENS, readOnly: true}"
  VALUE[TOKENS_VOLUME]="- {name: tokens, secret: {secretName: ${VALUE[SECRET]}, "
  VALUE[TOKENS_VOLUME]+="defaultMode: 0400, items: [{key: client, path: client}]}}"
}

values_of_rollout() {
  values_of_tpu "$1"
  VALUE[BACKOFF]=1000 VALUE[DISRUPTED]=Ignore VALUE[PLACEMENT]='{}'
  VALUE[PORTS]="[{name: http, containerPort: $ROLLOUT_PORT}]"
  # Loading and compiling may take an hour before the port opens.
  VALUE[PROBES]="startupProbe: $(probe /health 10 360)$INDENT"
  VALUE[PROBES]+="readinessProbe: $(probe /ready 10 3)$INDENT"
  VALUE[PROBES]+="livenessProbe: $(probe /health 20 6)"
}

values_of_tpu() {
  VALUE[HOSTS]=$(num_hosts "$1") VALUE[TOKENS_MOUNT]='' VALUE[TOKENS_VOLUME]=''
  # Less than the smallest host of a TPU has.
  VALUE[RESOURCES]='{requests: {cpu: 8, memory: 32Gi}, '
  VALUE[RESOURCES]+="limits: {google.com/tpu: $(chips_per_host "$1")}}"
}

values_of_controller() {
  VALUE[RESOURCES]='{requests: {cpu: 1, memory: 1Gi, ephemeral-storage: 1Gi}, '
  VALUE[RESOURCES]+='limits: {cpu: 4, memory: 4Gi, ephemeral-storage: 2Gi}}'
  # By default a Pod stays for five minutes on a node that does not answer, and
  # episodes wait for a controller for two.
  VALUE[TOLERATIONS]='[{key: node.kubernetes.io/unreachable, operator: Exists, '
  VALUE[TOLERATIONS]+='effect: NoExecute, tolerationSeconds: 30}]'
  values_of_deployment
}

values_of_environments() {
  machine_resources "$1"
  # After it, workers get half a minute to free sessions that have not ended.
  COMMAND+=("--drain_s=$((GRACE_S - 60))")
  # With an autoscaler the number is its own.
  [[ -n $MAX_ENVIRONMENTS ]] || VALUE[REPLICAS_FIELD]="replicas: ${VALUE[REPLICAS]}"
  [[ -z $RUNTIME_CLASS ]] ||
    VALUE[RUNTIME_CLASS_FIELD]="runtimeClassName: $(quoted "$RUNTIME_CLASS")"
  values_of_deployment
}

# The kubelet restarts the container, and its root file system is read-only.
values_of_deployment() {
  restart=never
  VARIABLES+=(HOME=/tmp AGENTRL_ROOT=/tmp/agentrl)
}

values_of_node() {
  local kind=$1 type=$2 selector=() spot='{key: cloud.google.com/gke-spot, operator: Exists}'
  if [[ $kind == tpu ]]; then
    selector+=("cloud.google.com/gke-tpu-accelerator: $(gke_accelerator "$type")"
      "cloud.google.com/gke-tpu-topology: $(topology "$type")")
  elif [[ $kind == machine ]]; then
    selector+=("node.kubernetes.io/instance-type: $(quoted "$type")")
  fi
  if [[ -n $SPOT && -n $kind ]]; then
    selector+=('cloud.google.com/gke-spot: "true"')
    VALUE[TOLERATIONS]=${VALUE[TOLERATIONS]%]}
    [[ ${VALUE[TOLERATIONS]} == '[' ]] || VALUE[TOLERATIONS]+=', '
    VALUE[TOLERATIONS]+="$spot]"
  fi
  VALUE[SELECTOR]="{$(joined "${selector[@]}")}"
}

# A Pod asks for most of its machine, so that no two share one; the rest is for the
# node's own Pods. The memory in MiB per processor is the least of all families.
machine_resources() {
  local type=$1 cpus memory
  if [[ $type =~ ^[a-z0-9]+-(standard|highmem|highcpu)-([1-9][0-9]*)(-.*)?$ ]]; then
    cpus=${BASH_REMATCH[2]}
    case ${BASH_REMATCH[1]} in
      standard) memory=$((cpus * 3400)) ;;
      highmem) memory=$((cpus * 6000)) ;;
      highcpu) memory=$((cpus * 850)) ;;
    esac
  elif [[ $type =~ ^([a-z0-9]+-)?custom-([1-9][0-9]*)-([1-9][0-9]*)(-.*)?$ ]]; then
    cpus=${BASH_REMATCH[2]} memory=${BASH_REMATCH[3]}
  else
    fail "--environments=$ENVIRONMENTS: $type does not name its number of processors, \
which a Pod must ask for; take one such as n2-standard-32"
  fi
  memory=$((memory * 85 / 100 - 512))
  ((cpus > 1 && memory > 1024)) || fail "--environments=$ENVIRONMENTS: $type is too \
small to play environments"
  VALUE[RESOURCES]="{requests: {cpu: $((cpus * 3 / 4)), memory: ${memory}Mi, "
  VALUE[RESOURCES]+="ephemeral-storage: 8Gi}, limits: {cpu: $cpus, "
  VALUE[RESOURCES]+="memory: ${memory}Mi, ephemeral-storage: 32Gi}}"
}

INDENT=$'\n                  '  # of a container's keys in jobs.yaml

probe() {
  printf '{httpGet: {path: %s, port: http}, periodSeconds: %s, ' "$1" "$2"
  printf 'timeoutSeconds: 10, failureThreshold: %s}' "$3"
}

# --- Text ---------------------------------------------------------------------

joined() {
  local word text=''
  for word in "$@"; do text+="${text:+, }$word"; done
  printf '%s' "$text"
}

# Prints the addresses of rollout servers, by the names that a JobSet gives Pods.
servers() {
  local number last
  last=$(num_places rollout)
  for ((number = 0; number < last; number++)); do
    printf '"%s-rollout-%s-0.%s:%s",' "$RUN" "$number" "$RUN" "$ROLLOUT_PORT"
  done
}

# Prints these words as a YAML list.
list() {
  local word text=''
  for word in "$@"; do text+="${text:+, }$(literal "$word")"; done
  printf '[%s]' "$text"
}

# Prints a word that Kubernetes does not expand: $$ is a $, and $(NAME) a variable.
literal() { quoted "${1//\$/\$\$}"; }

quoted() {
  local text=$1
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  [[ $text != *[[:cntrl:]]* ]] || fail "$(printf '%q' "$1") has control characters, \
which a manifest cannot have"
  printf '"%s"' "$text"
}

variables() {
  local variable text=''
  for variable in "${VARIABLES[@]}"; do
    [[ $variable != AGENTRL_BUCKET=* && $variable != AGENTRL_MOUNT=* ]] || continue
    text+="${text:+, }{name: ${variable%%=*}, value: $(literal "${variable#*=}")}"
  done
  printf '[%s]' "$text"
}

main "$@"
