# Places in Google Cloud: queued resources of TPUs, and machines. Sourced.
# shellcheck shell=bash
#
# Each function takes a place, or a node of it. The error output of gcloud is in
# the file $ERROR. On a dry run only places with MADE exist.

# Runs gcloud within $LIMIT seconds; 0 is no limit.
gcloud_() {
  local words=(gcloud "$@" "--zone=$ZONE" "--project=$PROJECT" --quiet) code=0
  if [[ -n $DRY_RUN || $LIMIT == 0 ]]; then
    perform "${words[@]}"
    return
  fi
  "$TIMEOUT" --foreground --kill-after=10 "$LIMIT" "${words[@]}" || code=$?
  ((code != 124)) || say "waited $(duration "$LIMIT") for: $(written "${words[@]}")"
  return "$code"
}

# Runs a query; on a dry run it only prints the command.
ask() {
  if [[ -n $DRY_RUN ]]; then gcloud_ "$@" >&3; else gcloud_ "$@" 2>"$ERROR"; fi
}

cloud_state() {
  case ${KINDS[$1]} in
    tpu) tpu_state "$1" ;;
    machine) machine_state "$1" ;;
  esac
}

# Prints absent, waiting, ready, lost, going or refused; `unknown` if gcloud gave
# no state, and `other TYPE` if the name belongs to another type of slice.
tpu_state() {
  local name=${NAMES[$1]} answer state type
  if ! answer=$(ask compute tpus queued-resources describe "$name" \
    '--format=value(state.state,tpu.nodeSpec[0].node.acceleratorType.basename())'); then
    absent_or_unknown
    return
  fi
  [[ -z $DRY_RUN ]] || answer=${MADE[$1]:+ACTIVE}
  read -r state type <<<"$answer"
  if [[ -n $type && $type != "${TYPES[$1]}" ]]; then
    printf 'other %s' "$type"
    return
  fi
  case $state in
    '') printf absent ;;
    ACTIVE) nodes_state "$1" ;;
    CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING) printf waiting ;;
    SUSPENDED) printf lost ;;
    SUSPENDING | DELETING) printf going ;;
    FAILED) printf refused ;;
    *) printf unknown ;;
  esac
}

# A preempted spot slice stays ACTIVE in the queue for some time.
nodes_state() {
  local node state
  for node in $(nodes "$1"); do
    if ! state=$(ask compute tpus tpu-vm describe "$node" '--format=value(state)'); then
      if not_found; then printf lost; else printf unknown; fi
      return
    fi
    [[ -z $DRY_RUN ]] || state=READY
    case $state in
      READY) ;;
      PREEMPTED | TERMINATED | STOPPED | STOPPING | DELETING | HIDDEN)
        printf lost
        return
        ;;
      *)
        printf waiting
        return
        ;;
    esac
  done
  printf ready
}

machine_state() {
  local state
  if ! state=$(ask compute instances describe "${NAMES[$1]}" \
    '--format=value(status)'); then
    absent_or_unknown
    return
  fi
  [[ -z $DRY_RUN ]] || state=${MADE[$1]:+RUNNING}
  case $state in
    '') printf absent ;;
    RUNNING) printf ready ;;
    PROVISIONING | STAGING | REPAIRING) printf waiting ;;
    STOPPING | SUSPENDING | PENDING_STOP) printf going ;;
    STOPPED | SUSPENDED | TERMINATED) printf lost ;;
    *) printf unknown ;;
  esac
}

not_found() { grep -qiE 'NOT_FOUND|was not found' "$ERROR"; }

absent_or_unknown() {
  if not_found; then printf absent; else printf unknown; fi
}

cloud_create() {
  local name=${NAMES[$1]} words=()
  local labels="--labels=agentrl-run=$RUN,agentrl-role=${ROLES[$1]}"
  [[ -z $NETWORK ]] || words+=("--network=$NETWORK")
  [[ -z $SERVICE_ACCOUNT ]] || words+=("--service-account=$SERVICE_ACCOUNT")
  if [[ ${KINDS[$1]} == machine ]]; then
    [[ -z $SUBNETWORK ]] || words+=("--subnet=$SUBNETWORK")
    [[ -z $SPOT ]] || words+=(--provisioning-model=SPOT
      --instance-termination-action=STOP)
    gcloud_ compute instances create "$name" "--machine-type=${TYPES[$1]}" \
      --image-project=ubuntu-os-cloud --image-family=ubuntu-2404-lts-amd64 \
      --boot-disk-size=200GB --scopes=cloud-platform "$labels" "${words[@]}" \
      >&3 2>"$ERROR"
    return
  fi
  [[ -z $SUBNETWORK ]] || words+=("--subnetwork=$SUBNETWORK")
  [[ -z $SPOT ]] || words+=(--spot)
  [[ -z $RESERVED ]] || words+=(--reserved)
  if ((COUNTS[$1] == 1)); then
    words+=("--node-id=$name")
  else
    words+=("--node-count=${COUNTS[$1]}" "--node-prefix=$name")
  fi
  gcloud_ compute tpus queued-resources create "$name" \
    "--accelerator-type=${TYPES[$1]}" \
    "--runtime-version=${RUNTIME_VERSION:-$(runtime_version "${TYPES[$1]}")}" \
    "$labels" "${words[@]}" >&3 2>"$ERROR"
}

# Prints the reason why an accepted request failed.
cloud_reason() {
  ask compute tpus queued-resources describe "${NAMES[$1]}" \
    '--format=value(state.failedData.error.message)' || true
}

cloud_delete() { delete_resource "${KINDS[$1]}" "${NAMES[$1]}" --async; }

# delete_resource KIND NAME [--async]
delete_resource() {
  local kind=$1 name=$2
  shift 2
  if [[ $kind == machine ]]; then
    gcloud_ compute instances delete "$name" 2>"$ERROR"
  else
    gcloud_ compute tpus queued-resources delete "$name" --force "$@" \
      2>"$ERROR"
  fi || not_found
}

# Prints all resources of this run as "kind name" lines, for any options.
cloud_existing() {
  local name
  for name in $(ask compute tpus queued-resources list \
    '--format=value(name.basename())'); do
    [[ $name =~ ^"$RUN"-(learner|rollout-[0-9]+)$ ]] && printf 'tpu %s\n' "$name"
  done
  for name in $(ask compute instances list "--filter=labels.agentrl-run=$RUN" \
    '--format=value(name)'); do
    printf 'machine %s\n' "$name"
  done
  return 0
}

# Prints the address of a node's first host within the network.
cloud_address() {
  local place=$1 node=$2 found
  if [[ ${KINDS[$place]} == machine ]]; then
    found=$(ask compute instances describe "$node" \
      '--format=value(networkInterfaces[0].networkIP)') || return 1
  else
    found=$(ask compute tpus tpu-vm describe "$node" \
      '--format=value(networkEndpoints[0].ipAddress)') || return 1
  fi
  [[ -z $DRY_RUN ]] || found="ADDRESS-OF-$node"
  printf '%s' "$found"
}

# cloud_on PLACE NODE WORKERS LINE: runs a shell line there, for all or worker 0.
cloud_on() {
  local place=$1 node=$2 workers=$3 line=$4
  if [[ ${KINDS[$place]} == machine ]]; then
    gcloud_ compute ssh "$node" "${SSH_FLAGS[@]}" "--command=$line"
  else
    gcloud_ compute tpus tpu-vm ssh "$node" "${SSH_FLAGS[@]}" \
      "--worker=$workers" "--command=$line"
  fi
}

# Copies a file into the home folders of a node's hosts.
cloud_copy() {
  local place=$1 node=$2 file=$3
  if [[ ${KINDS[$place]} == machine ]]; then
    gcloud_ compute scp "${SSH_FLAGS[@]/#--ssh-flag=/--scp-flag=}" "$file" "$node:"
  else
    gcloud_ compute tpus tpu-vm scp "${SSH_FLAGS[@]/#--ssh-flag=/--scp-flag=}" --worker=all "$file" "$node:"
  fi
}
