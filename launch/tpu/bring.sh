# Creates and prepares the places of a run, again if they are lost. Sourced.
# shellcheck shell=bash
#
# `tend` never waits: it requests the state of each place and takes one step.
# MADE: the place exists; PREPARED: code and packages are installed, or `no` during
# the installation; SINCE: the start of the wait for the place.

MADE=() PREPARED=() SINCE=() HEARD=() TRIES=() UNKNOWN=()
MAX_TRIES=5  # to copy and install
MAX_UNKNOWN=20  # requests in a row for which gcloud gave no state

state_of() {
  if [[ ${KINDS[$1]} == local ]]; then here_state "$1"; else cloud_state "$1"; fi
}

# on PLACE NODE WORKERS LINE
on() {
  if [[ ${KINDS[$1]} == local ]]; then here_on "$@"; else cloud_on "$@"; fi
}

tend() {
  local place state
  for place in "${!ROLES[@]}"; do
    ERROR=$SCRATCH/error-$place
    : >>"$ERROR"
    state=$(state_of "$place")
    [[ $state == unknown ]] || UNKNOWN[place]=0
    tend_one "$place" "$state"
    HEARD[place]=$state
  done
}

tend_one() {
  local place=$1 state=$2 name=${NAMES[$1]}
  refuse_existing "$place" "$state"
  case $state in
    absent) create "$place" ;;
    waiting | going)
      [[ $state == waiting ]] || lose "$place"
      SINCE[place]=${SINCE[place]:-$SECONDS}
      [[ ${HEARD[place]:-} == "$state" ]] || say "$name: ${WORDS[$state]}"
      ((SECONDS - SINCE[place] < WAIT_S)) || fail "waited $(duration "$WAIT_S") for \
$name (${TYPES[place]} in $ZONE), which is still not there: the request stays in \
the queue, so the same command goes on waiting; or try another --zone, or give up: \
$(teardown_command)"
      ;;
    ready) arrived "$place" ;;
    lost)
      lose "$place"
      say "$name is gone; its remains are deleted, and it is asked for again"
      cloud_delete "$place" || fail "$name cannot be deleted: $(<"$ERROR")"
      ;;
    refused)
      fail "$name (${TYPES[place]} in $ZONE) was refused: $(cloud_reason "$place" 3>&1). \
Delete the request ($(teardown_command)), and ask for something else, or \
elsewhere (--zone)"
      ;;
    other*)
      fail "$name exists and is a ${state#other }, not the ${TYPES[place]} that was \
asked for: take another --name, ask for ${state#other }, or delete it: \
$(teardown_command)"
      ;;
    unknown) puzzled "$place" ;;
  esac
}

declare -A WORDS=([waiting]='waiting for resources' [going]='being taken away')

puzzled() {
  UNKNOWN[$1]=$((${UNKNOWN[$1]:-0} + 1))
  if [[ -z ${HEARD[$1]:-} ]]; then
    fail "gcloud cannot say how ${NAMES[$1]} stands: $(<"$ERROR")"
  fi
  ((UNKNOWN[$1] > 1)) || say "gcloud cannot say how ${NAMES[$1]} stands, and is \
asked again: $(<"$ERROR")"
  ((UNKNOWN[$1] < MAX_UNKNOWN)) || fail "gcloud could not say $MAX_UNKNOWN times \
in a row how ${NAMES[$1]} stands: $(<"$ERROR")"
}

create() {
  local place=$1 name=${NAMES[$1]}
  SINCE[place]=${SINCE[place]:-$SECONDS}
  if [[ ${KINDS[place]} == local ]]; then
    here_create "$place"
    MADE[place]=1
    return
  fi
  CREATED=yes  # or not: a command that failed may have been heard
  if cloud_create "$place"; then
    MADE[place]=1
    say "asked for $name: ${COUNTS[place]} x ${TYPES[place]} in $ZONE${SPOT:+, spot}"
  else
    refuse_creation "$place"
  fi
}

# Reports the reason why a request was not accepted, and the remedy.
refuse_creation() {
  local place=$1 name=${NAMES[$1]} type=${TYPES[$1]} text
  text=$(<"$ERROR")
  case $text in
    *ALREADY_EXISTS* | *already\ exists*)
      CREATED=''
      say "$name exists already"
      ;;
    *[Qq]uota*)
      fail "no quota for $name: ${COUNTS[place]} x $type${SPOT:+ (spot)} in $ZONE, \
project $PROJECT. Google says: $text. Ask for quota at \
https://console.cloud.google.com/iam-admin/quotas?project=$PROJECT (service Cloud \
TPU API), take a smaller slice, another --zone, or ${SPOT:+leave }--spot${SPOT:+ \
out}, whose quota is another. Requests that failed or were suspended count too: \
gcloud compute tpus queued-resources list --zone=$ZONE --project=$PROJECT"
      ;;
    *no\ more\ capacity* | *enough\ resources* | *RESOURCE_POOL_EXHAUSTED*)
      ((SECONDS - SINCE[place] < WAIT_S)) || fail "waited $(duration "$WAIT_S") for \
$name: $ZONE has no room for $type. Google says: $text"
      [[ ${HEARD[place]:-} == absent ]] || say "$ZONE has no room for $name ($type) \
just now; it is asked for again every $POLL_S s"
      ;;
    *)
      fail "$name ($type in $ZONE, project $PROJECT) cannot be created. Google says: \
$text"
      ;;
  esac
}

arrived() {
  local place=$1 name=${NAMES[$1]}
  if [[ -z ${MADE[place]:-} ]]; then
    [[ ${KINDS[place]} == local ]] || say "$name exists; it is used again"
    MADE[place]=1
  fi
  SINCE[place]=''
  case ${PREPARED[place]:-} in
    '')
      PREPARED[place]=no
      rm -f "$SCRATCH/prepared-$place"
      if [[ -n $DRY_RUN ]]; then
        prepare "$place"
        PREPARED[place]=yes
      else
        say "$name is there; code and packages are being put on its hosts"
        prepare_aside "$place" &
      fi
      ;;
    no) is_prepared "$place" ;;
  esac
}

prepare_aside() {
  local code=0
  set +m
  prepare "$1" >"$SCRATCH/prepare-$1.log" 2>&1 4>&- || code=$?
  printf '%s' "$code" >"$SCRATCH/prepared-$1"
}

# Checks if `prepare_aside` has ended, and its status.
is_prepared() {
  local place=$1 code
  [[ -s $SCRATCH/prepared-$place ]] || return 0
  code=$(<"$SCRATCH/prepared-$place")
  if ((code == 0)); then
    PREPARED[place]=yes TRIES[place]=0
    say "${NAMES[place]} is ready"
    return
  fi
  TRIES[place]=$((${TRIES[place]:-0} + 1))
  ((TRIES[place] < MAX_TRIES)) || fail "${NAMES[place]} could not be prepared in \
$MAX_TRIES attempts. Of the last: $(tail -n 20 "$SCRATCH/prepare-$place.log"). If ssh \
is what fails: does the network let you in (--internal-ip from inside it), and does \
your agent hold the key (ssh-add ~/.ssh/google_compute_engine)?"
  say "${NAMES[place]} could not be prepared (status $code); again in $POLL_S s: \
$(tail -n 3 "$SCRATCH/prepare-$place.log" | tr '\n' ' ')"
  PREPARED[place]=''
}

# Installs code and packages on every host of a place; may be repeated.
prepare() {
  local place=$1 node line file=${BUNDLE##*/}
  line="mkdir -p $CODE && tar -xzf $file -C $CODE"
  line+=" && $(bootstrap "$place" install)"
  LIMIT=2400
  for node in $(nodes "$place"); do
    if [[ ${KINDS[place]} == local ]]; then
      here_copy "$place" "$node" "$BUNDLE"
    else
      cloud_copy "$place" "$node" "$BUNDLE"
    fi || return
    on "$place" "$node" all "$line" || return
  done
}

# bootstrap PLACE WORDS...: prints a shell line that calls the bootstrap.
bootstrap() {
  local place=$1
  shift
  role_environment "${ROLES[place]}"
  words "${VARIABLES[@]}" bash "$CODE/launch/tpu/bootstrap.sh" "$@"
}

# Prints a quoted shell line of these words; assignments come first.
words() {
  local line
  line=$(written "$@")
  if [[ $1 == *=* ]]; then line="env $line"; fi
  printf '%s' "$line"
}

# Forgets a place that was preempted, or is being preempted.
lose() {
  local place=$1
  [[ ${PREPARED[place]:-} ]] && say "${NAMES[place]} was taken away"
  MADE[place]='' PREPARED[place]='' SINCE[place]=$SECONDS
  forget "$place"
}
