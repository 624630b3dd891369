# Options of tpu_run.sh. Sourced.
# shellcheck shell=bash

VERB=run RUN='' LEARNER='' ROLLOUT='' ENVIRONMENTS='' CONTROLLER='' PLAYED=''
LOCAL='' ZONE='' PROJECT='' SPOT='' RESERVED='' NETWORK='' SUBNETWORK=''
SERVICE_ACCOUNT='' RUNTIME_VERSION='' WORKDIR='' PYTHON='' TEARDOWN_ON_EXIT=''
BUCKET='' MOUNT='' MOUNTS=${AGENTRL_MOUNTS:-/mnt/agentrl}
LOCAL_FOLDER='' ENVIRONMENT=() SSH_FLAGS=() ARGUMENTS=()
COORDINATOR_PORT=0 FIRST_PORT=0
WAIT_S=86400 POLL_S=30 GRACE_S=300 GRACE_GIVEN='' PEERS_S=180 MAX_RESTARTS=5 LIMIT=120
TICK_S=${AGENTRL_TICK_S:-1}
# Beyond --grace, after which the learner ends itself and says why.
MARGIN_S=15

usage() {
  cat <<'TEXT'
launch/tpu_run.sh --name=NAME --learner=TYPE --workdir=gs://BUCKET/PATH [options]
  -- --config=FILE [--config.KEY=VALUE ...]

Resources of the run
  --name=NAME            name of the run, and prefix of its resources' names
  --learner=[Nx]TYPE     v5p-64, v5e-16, v6e-8, v4-32 (launch/tpu/slices.txt has
                         all); N slices learn together
  --rollout=[Nx]TYPE     N rollout servers of one host each; else the learner's
                         first process answers
  --environments=[Nx]MACHINE:NAME,NAME   machines that play these environments;
                         else the learner's first process plays them
  --controller=MACHINE   of its own; else it runs beside the learner's process 0
  --workdir=gs://...     where the run is kept: a bucket, which every host mounts
                         with Cloud Storage FUSE, or a shared /folder

Cloud and hosts
  --zone=ZONE --project=PROJECT     else those of gcloud's configuration
  --spot | --reserved    else on demand
  --network= --subnetwork= --service-account= --runtime-version=
  --internal-ip          ssh to internal addresses (from inside the network)
  --ssh-flag=FLAG        passed on to gcloud's ssh and scp; may be repeated
  --env=KEY=VALUE        in the environment of every process; may be repeated
  --python=PATH          on the hosts, with everything installed; else the lock
                         file is installed

Actions
  --dry-run              print every command, and run none
  --check                in place of a run: run the tests that want a TPU on a slice
                         of one host, write NAME-check.json and .txt here, and delete the
                         slice; what follows -- is for launch.check_slice
  --stop                 ask the learner to save and end; keep the resources
  --teardown             delete the run's resources in --zone
  --teardown-on-exit     the same at the end, or on ctrl-C
  --local=N              N learner processes on this machine, and none on others;
                         then --rollout=N and --environments=N:NAME count processes
  --local-folder=PATH    folder of their homes; ~/.cache/agentrl/NAME

Of a check
  --dollars=10           what the slice may cost, at its list price
  --price=DOLLARS        for an hour of a chip, in place of the list price
  --keep                 use a slice that exists, and do not delete it
  --report=FOLDER        where the report is put

Times and limits
  --wait=86400           seconds to wait for resources
  --poll=30              seconds between requests of their states
  --grace=300            seconds for the learner to save when it is stopped: its
                         checkpoint.grace_s. A stop that is not told otherwise
                         waits for as long as the learner was started with
  --peers=180            seconds for its other processes to end when one fails
  --restarts=5           restarts in a row of a learner that fails
TEXT
}

read_options() {
  local option value
  while (($#)); do
    option=$1 value=${1#*=}
    shift
    case $option in
      --) ARGUMENTS+=("$@"); break ;;
      --name | --learner | --rollout | --environments | --controller | --workdir | \
        --zone | --project | --network | --subnetwork | --service-account | \
        --runtime-version | --ssh-flag | --env | --python | --local | \
        --local-folder | --wait | --poll | --grace | --peers | --restarts | \
        --dollars | --price | --report)
        (($#)) || fail "$option needs a value, as in $option=VALUE"
        set -- "$option=$1" "${@:2}"
        ;;
      --config | --config=* | --config.*=*) ARGUMENTS+=("$option") ;;
      --name=*) RUN=$value ;;
      --learner=*) LEARNER=$value ;;
      --rollout=*) ROLLOUT=$value ;;
      --environments=*) ENVIRONMENTS=$value ;;
      --controller=*) CONTROLLER=$value ;;
      --workdir=*) WORKDIR=${value%/} ;;
      --zone=*) ZONE=$value ;;
      --project=*) PROJECT=$value ;;
      --spot) SPOT=yes ;;
      --reserved) RESERVED=yes ;;
      --network=*) NETWORK=$value ;;
      --subnetwork=*) SUBNETWORK=$value ;;
      --service-account=*) SERVICE_ACCOUNT=$value ;;
      --runtime-version=*) RUNTIME_VERSION=$value ;;
      --internal-ip) SSH_FLAGS+=(--internal-ip) ;;
      --ssh-flag=*) SSH_FLAGS+=("--ssh-flag=$value") ;;
      --env=*) ENVIRONMENT+=("$value") ;;
      --python=*) PYTHON=$value ;;
      --dry-run) DRY_RUN=yes ;;
      --stop) VERB=stop ;;
      --check) VERB=check ;;
      --dollars=*) DOLLARS=$value ;;
      --price=*) PRICE=$value ;;
      --keep) KEEP=yes ;;
      --report=*) REPORT=$value ;;
      --teardown) VERB=teardown ;;
      --teardown-on-exit) TEARDOWN_ON_EXIT=yes ;;
      --local=*) LOCAL=$value ;;
      --local-folder=*) LOCAL_FOLDER=$value ;;
      --wait=*) WAIT_S=$value ;;
      --poll=*) POLL_S=$value ;;
      --grace=*) GRACE_S=$value GRACE_GIVEN=yes ;;
      --peers=*) PEERS_S=$value ;;
      --restarts=*) MAX_RESTARTS=$value ;;
      --help | -h) usage; exit 0 ;;
      *) fail "$option is no option of tpu_run.sh (--help lists them); what is for \
the training itself comes after --" ;;
    esac
  done
  check_options
}

check_options() {
  local name value
  [[ $RUN =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] || fail "--name=$RUN must be given, \
and be at most 40 lower-case letters, digits and dashes, beginning with a letter: \
Google's names are made of it"
  for name in wait=$WAIT_S poll=$POLL_S grace=$GRACE_S peers=$PEERS_S \
    restarts=$MAX_RESTARTS; do
    [[ ${name#*=} =~ ^[0-9]+$ ]] || fail "--$name must be a whole number"
  done
  ((GRACE_S > 0)) || fail "--grace=$GRACE_S leaves the learner no time to save: it \
must be at least 1"
  for value in "${ENVIRONMENT[@]}"; do
    [[ $value =~ ^[A-Za-z_][A-Za-z_0-9]*= ]] || fail "--env=$value must be KEY=VALUE"
  done
  [[ -z $SPOT || -z $RESERVED ]] || fail "--spot and --reserved exclude each other"
  if [[ -n $LOCAL ]]; then check_local; else check_cloud; fi
  [[ $VERB == run || $VERB == render ]] || return 0
  check_arguments
}

check_local() {
  [[ $LOCAL =~ ^[1-9][0-9]*$ ]] || fail "--local=$LOCAL must be the number of learner \
processes"
  [[ -z $LEARNER ]] || fail "--local=$LOCAL runs on this machine, --learner=$LEARNER \
in the cloud: leave one of them out"
  [[ $VERB == run ]] || fail "--$VERB is for what runs in the cloud; end a local run \
with ctrl-C"
  LOCAL_FOLDER=${LOCAL_FOLDER:-$HOME/.cache/agentrl/$RUN}
  FIRST_PORT=$((20000 + $(cksum <<<"$RUN" | cut -d ' ' -f 1) % 20000))
  COORDINATOR_PORT=$FIRST_PORT
  if [[ -n $PYTHON ]]; then
    [[ -x $PYTHON ]] || fail "--python=$PYTHON is no program"
    PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/${PYTHON##*/}
  fi
}

check_cloud() {
  [[ $VERB == teardown || -n $LEARNER ]] || fail "--learner must say on what to train, \
as in --learner=v5p-64; --local=N trains on this machine"
  [[ $VERB != render ]] || return 0
  command -v gcloud >/dev/null || [[ -n $DRY_RUN ]] || fail "gcloud is not installed: \
https://cloud.google.com/sdk/docs/install"
  TIMEOUT=$(command -v timeout || command -v gtimeout) ||
    fail "there is no timeout command (macOS: brew install coreutils)"
  PROJECT=${PROJECT:-$(configured project)}
  ZONE=${ZONE:-$(configured compute/zone)}
  [[ -n $PROJECT ]] || fail "no project: give --project, or set one with \
gcloud config set project PROJECT"
  [[ -n $ZONE ]] || fail "no zone: give --zone; \
https://cloud.google.com/tpu/docs/regions-zones lists which has what"
}

configured() { gcloud config get-value "$1" 2>/dev/null | grep -v '^(unset)$' || true; }

check_arguments() {
  local argument file='' rest=()
  for argument in "${ARGUMENTS[@]}"; do
    case $argument in
      --config=*) file=${argument#*=} file=${file%%:*} ;;
      --config.workdir=*) [[ -z $WORKDIR ]] || fail "$argument and --workdir=$WORKDIR \
are the same setting: leave one of them out"
        WORKDIR=${argument#*=}
        continue
        ;;
      --config.checkpoint.grace_s=*) take_grace "$argument"; continue ;;
      --config.name=*) fail "$argument: the run's name is --name=$RUN" ;;
    esac
    rest+=("$argument")
  done
  ARGUMENTS=("${rest[@]}")
  [[ -n $file ]] || fail "what to train is missing: -- --config=configs/quickstart.py"
  [[ -e $ROOT/$file || $file == /* ]] || fail "there is no $file in $ROOT"
  check_workdir
  ARGUMENTS+=("--config.name=$RUN")
}

# The learner's own limit and the one after which it is killed are one setting.
take_grace() {
  local seconds=${1#*=}
  [[ -z $GRACE_GIVEN ]] || fail "$1 and --grace=$GRACE_S are the same setting: \
leave one of them out"
  [[ $seconds =~ ^[0-9]+(\.0*)?$ ]] || fail "$1 must be a whole number of seconds"
  GRACE_S=${seconds%.*}
}

# Hosts are replaced, so the files of a run must not be on their disks.
check_workdir() {
  if [[ -n $LOCAL && -z $WORKDIR ]]; then
    WORKDIR=$LOCAL_FOLDER/runs
  fi
  [[ -n $LOCAL || $WORKDIR == gs://?* || $WORKDIR == /?* ]] || fail "\
--workdir=$WORKDIR must be a bucket (gs://bucket/path) or a file system that all \
hosts mount (/mnt/...): a host's own disk is gone with the host"
  KEPT=$WORKDIR
  if [[ $WORKDIR == gs://* ]]; then
    BUCKET=${WORKDIR#gs://} BUCKET=${BUCKET%%/*}
    MOUNT=$MOUNTS/$BUCKET
    KEPT=$MOUNT${WORKDIR#"gs://$BUCKET"}
  fi
  ARGUMENTS+=("--config.workdir=$KEPT")
}
