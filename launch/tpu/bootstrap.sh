#!/usr/bin/env bash
# Installs and runs a role on one host. Called by launch/tpu_run.sh over ssh, by
# its --local on this machine, and by the containers of launch/gke.
#
#   bootstrap.sh install                        the bucket, and the lock file
#   bootstrap.sh start PLACE KEY RESTART -- COMMAND...   in the background, once
#   bootstrap.sh running PLACE KEY              0 if that command is running
#   bootstrap.sh follow PLACE                   its output to its end; its status
#   bootstrap.sh stop PLACE SECONDS             SIGTERM, and SIGKILL after SECONDS;
#                                               `own`: as it was started with
#   bootstrap.sh run PLACE RESTART -- COMMAND...         in the foreground
#
# PLACE is the role's name: learner, rollout-0. KEY identifies the command: a
# command with the same key is not started twice, and one with another key ends
# the first. RESTART is `always` for a role that restarts alone, `never` for a
# process that must restart together with others; none restarts after status 2, of
# a command whose flags or config are refused. `python` in COMMAND is the
# installed one, or that of $AGENTRL_PYTHON. Files are in $AGENTRL_ROOT, by default
# ~/agentrl; $AGENTRL_BUCKET is mounted at $AGENTRL_MOUNT. $AGENTRL_GRACE_S seconds
# (300) are what a command needs to end after SIGTERM.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CODE=$(cd "$HERE/../.." && pwd)
LOCK=${AGENTRL_LOCK:-$HERE/requirements.lock}
ROOT=${AGENTRL_ROOT:-$HOME/agentrl}
PYTHON_VERSION=3.12
UV_INSTALLER=https://astral.sh/uv/0.9.7/install.sh
PAUSE_S=${AGENTRL_PAUSE_S:-5}  # before a command is started again
# Status of a command that refuses its flags or config: the same again would end
# in the same way. As in launch/config/command_line.py.
REFUSED=2

say() { printf 'agentrl: %s\n' "$*"; }

fail() {
  printf 'agentrl: %s\n' "$*" >&2
  exit 1
}

# --- Python -------------------------------------------------------------------

venv() {
  local sum
  sum=$(sha256sum <"$LOCK")
  printf '%s/venv-%s' "$ROOT" "${sum:0:12}"
}

install() {
  mount_bucket
  if [[ -n ${AGENTRL_PYTHON:-} ]]; then
    [[ -x $AGENTRL_PYTHON ]] || fail "there is no $AGENTRL_PYTHON on \
$(hostname), which was named as the Python to use: leave --python out to install \
one from $LOCK"
    return
  fi
  [[ -r $LOCK ]] || fail "there is no lock file $LOCK to install from"
  mkdir -p "$ROOT"
  exec 9>"$ROOT/installing"
  flock -w 1800 9 || fail "waited 30 minutes on $(hostname) for another \
installation in $ROOT; see whether one hangs: ps -ef | grep bootstrap"
  local into
  into=$(venv)
  if [[ -e $into/ready ]]; then
    say "packages of $(hostname) are those of the lock file"
    return
  fi
  rm -rf "$into"
  say "installing on $(hostname) into $into"
  fill "$into"
  touch "$into/ready"
}

# The lock file lists all requirements, so nothing is resolved here.
fill() {
  local into=$1 python
  if python=$(own_python); then
    "$python" -m venv "$into"
    "$into/bin/python" -m pip install --quiet --no-deps -r "$LOCK"
  else
    local uv
    uv=$(own_uv)
    "$uv" venv --quiet --python "$PYTHON_VERSION" "$into"
    "$uv" pip install --quiet --python "$into/bin/python" --no-deps -r "$LOCK"
  fi
}

own_python() {
  local name
  for name in python3.12 python3.11; do
    if "$name" -c 'import ensurepip, venv' 2>/dev/null; then
      printf '%s' "$name"
      return
    fi
  done
  return 1
}

# TPU VMs have Python 3.10, which is too old; uv installs a newer one.
own_uv() {
  local path
  for path in "$(command -v uv || true)" "$HOME/.local/bin/uv"; do
    if [[ -n $path && -x $path ]]; then
      printf '%s' "$path"
      return
    fi
  done
  curl --fail --silent --show-error --location --retry 5 "$UV_INSTALLER" |
    UV_UNMANAGED_INSTALL="$HOME/.local/bin" sh >&2 ||
    fail "$(hostname) has no Python 3.11 or 3.12, and uv cannot be had from \
$UV_INSTALLER: let the host reach the internet, or name a Python with --python"
  printf '%s' "$HOME/.local/bin/uv"
}

# --- The bucket ---------------------------------------------------------------

# All hosts see the run's folder at the same path. Renaming a folder is one step
# in a bucket with a hierarchical namespace, and many in another.
mount_bucket() {
  [[ -n ${AGENTRL_BUCKET:-} ]] || return 0
  if mountpoint -q "$AGENTRL_MOUNT"; then return; fi
  command -v gcsfuse >/dev/null || install_gcsfuse
  sudo mkdir -p "$AGENTRL_MOUNT"
  sudo chown "$(id -u):$(id -g)" "$AGENTRL_MOUNT"
  gcsfuse --implicit-dirs --rename-dir-limit=100000 "$AGENTRL_BUCKET" \
    "$AGENTRL_MOUNT" >&2 || fail "bucket $AGENTRL_BUCKET cannot be mounted on \
$(hostname): does it exist, and may the service account of this host read and write \
it (roles/storage.objectUser)?"
}

install_gcsfuse() {
  local name key=/usr/share/keyrings/cloud.google.asc
  local apt=https://packages.cloud.google.com/apt
  name=gcsfuse-$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  say "installing gcsfuse on $(hostname)"
  curl --fail --silent --show-error --retry 5 "$apt/doc/apt-key.gpg" |
    sudo tee "$key" >/dev/null
  printf 'deb [signed-by=%s] %s %s main\n' "$key" "$apt" "$name" |
    sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
  # A new host holds the lock while it installs updates.
  sudo apt-get -o DPkg::Lock::Timeout=600 -qq update >&2
  sudo apt-get -o DPkg::Lock::Timeout=600 -qq install -y gcsfuse >&2
}

# --- One command per place ----------------------------------------------------

index() {
  local host
  host=$(hostname)
  if [[ -n ${AGENTRL_WORKER:-} ]]; then
    printf '%s' "$AGENTRL_WORKER"
  elif [[ -n ${TPU_WORKER_ID:-} ]]; then
    printf '%s' "$TPU_WORKER_ID"
  elif [[ -n ${JOB_COMPLETION_INDEX:-} ]]; then
    printf '%s' "$JOB_COMPLETION_INDEX"
  elif [[ $host =~ -w-([0-9]+)$ ]]; then  # names of hosts of a TPU slice
    printf '%s' "${BASH_REMATCH[1]}"
  else
    printf 0
  fi
}

# Sets the working directory and environment of the command.
surround() {
  cd "$CODE"
  export PYTHONUNBUFFERED=1
  if [[ -n ${AGENTRL_PYTHON:-} ]]; then
    PATH=$(dirname "$AGENTRL_PYTHON"):$PATH
  elif [[ -e $(venv)/ready ]]; then
    PATH=$(venv)/bin:$PATH
  fi
  export PATH
  if [[ ${AGENTRL_NUM_PROCESSES:-} =~ ^[0-9]+$ ]]; then
    AGENTRL_PROCESS_ID=$(index)
    export AGENTRL_PROCESS_ID
  fi
}

folder() { printf '%s/places/%s' "$ROOT" "$1"; }

read_file() { cat "$1" 2>/dev/null || true; }

# Process ids are not valid after a restart of the host.
boot() { read_file /proc/sys/kernel/random/boot_id; }

alive() {
  local pid
  pid=$(read_file "$(folder "$1")/pid")
  [[ -n $pid ]] && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" |
    grep -q "bootstrap.sh supervise $1 "
}

running() { alive "$1" && [[ $(read_file "$(folder "$1")/key") == "$2" ]]; }

start() {
  local place=$1 key=$2 restart=$3 dir
  shift 3
  [[ ${1:-} == -- ]] && shift
  dir=$(folder "$place")
  if running "$place" "$key"; then
    say "$place runs on $(hostname) already"
    return
  fi
  stop "$place" own
  mkdir -p "$dir"
  rm -f "$dir/status" "$dir/log"
  : >"$dir/log"
  surround
  setsid nohup bash "$HERE/bootstrap.sh" supervise "$place" "$restart" -- "$@" \
    >>"$dir/log" 2>&1 </dev/null 9>&- &
  printf '%s' "$!" >"$dir/pid"
  printf '%s' "$key" >"$dir/key"
  printf '%s' "${AGENTRL_GRACE_S:-300}" >"$dir/grace"
  say "$place started on $(hostname)"
}

# Runs the command, forwards SIGTERM to it, and leaves its status in a file.
supervise() {
  local place=$1 restart=$2 dir code
  shift 2
  [[ ${1:-} == -- ]] && shift
  dir=$(folder "$place")
  mkdir -p "$dir"
  set -m  # a process group per command, so that all its processes can be killed
  CHILD='' ASKED='' WOKEN=''
  trap 'ASKED=1; WOKEN=1; [[ -z $CHILD ]] || kill -TERM "$CHILD" || true' TERM INT
  while :; do
    "$@" &
    CHILD=$!
    printf '%s %s' "$CHILD" "$(boot)" >"$dir/child"
    wait_for_child
    code=$CODE_OF_CHILD
    kill -KILL -- "-$CHILD" 2>/dev/null || true
    rm -f "$dir/child"
    CHILD=''
    [[ $restart == always && -z $ASKED ]] || break
    if [[ $code == "$REFUSED" ]]; then
      say "$place refuses its flags or its config; it is not started again"
      break
    fi
    say "$place ended with status $code; it starts again in $PAUSE_S s"
    sleep "$PAUSE_S" &
    wait "$!" || true
    [[ -z $ASKED ]] || break
  done
  # A single write: no process of its own would be left if this one is killed.
  printf '%s' "$code" >"$dir/status"
  return "$code"
}

# `wait` also returns when a signal comes, with a status that is not the child's.
wait_for_child() {
  local code
  CODE_OF_CHILD=1
  while :; do
    WOKEN='' code=0
    wait "$CHILD" || code=$?
    [[ $code == 127 ]] || CODE_OF_CHILD=$code
    [[ -n $WOKEN ]] || break
  done
}

# Names the host learner/3, or learner/1.3 in the second of several slices.
follow() {
  local place=$1 dir line status host
  host=$place/${AGENTRL_SLICE:+$AGENTRL_SLICE.}$(index)
  dir=$(folder "$place")
  [[ -e $dir/pid ]] || fail "$place was never started on $(hostname)"
  tail -n +1 -s 0.2 -F --pid="$(read_file "$dir/pid")" "$dir/log" 2>/dev/null |
    while IFS= read -r line || [[ -n $line ]]; do
      printf '[%s] %s\n' "$host" "$line"
    done
  # No status: the command was killed with its supervisor, or the host restarted.
  status=$(read_file "$dir/status")
  status=${status:-137}
  printf 'agentrl: %s ended with status %s\n' "$host" "$status"
  return "$status"
}

stop() {
  local place=$1 seconds=$2 dir pid
  dir=$(folder "$place")
  pid=$(read_file "$dir/pid")
  if [[ $seconds == own ]]; then
    seconds=$(read_file "$dir/grace")
    seconds=${seconds:-300}
  fi
  if alive "$place"; then
    kill -TERM "$pid" || true
    local end=$((SECONDS + seconds))
    while alive "$place" && ((SECONDS < end)); do sleep 0.1; done
    if alive "$place"; then
      say "$place on $(hostname) did not end within $seconds s of SIGTERM; killed"
      kill -KILL "$pid" || true
      end=$((SECONDS + 10))
      while alive "$place" && ((SECONDS < end)); do sleep 0.1; done
    fi
  fi
  # The child of a supervisor that is gone.
  local child since
  read -r child since <<<"$(read_file "$dir/child")"
  if [[ -n $child && $since == "$(boot)" ]]; then
    kill -KILL -- "-$child" 2>/dev/null || true
  fi
  rm -f "$dir/child"
}

run() {
  local place=$1
  surround
  supervise "$@" || exit "$?"
  say "$place is done"
}

main() {
  local verb=${1:-}
  case $verb in
    install | start | running | follow | stop | run | supervise) ;;
    *) fail "$verb is no command; see the head of ${BASH_SOURCE[0]}" ;;
  esac
  shift
  "$verb" "$@"
}

main "$@"
