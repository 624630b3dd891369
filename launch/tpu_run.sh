#!/usr/bin/env bash
# Trains on Cloud TPU: creates or finds a run's resources, starts every role, and
# restarts the run after failures.
#
#   launch/tpu_run.sh --name=qwen --learner=v5p-64 --rollout=4xv5p-8 \
#     --zone=us-east5-a --spot --workdir=gs://bucket/runs \
#     -- --config=configs/pod.py:qwen2.5-14b
#
# The same command again attaches to the run, or resumes it. See docs/tpu.md.
set -euo pipefail

PROGRAM=tpu_run
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/.." && pwd)
DRY_RUN=''
# shellcheck source=launch/tpu/say.sh
source "$HERE/tpu/say.sh"

((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) ||
  fail "bash $BASH_VERSION is too old; 4.4 is needed (macOS: brew install bash)"

# shellcheck source=launch/tpu/accelerators.sh
source "$HERE/tpu/accelerators.sh"
# shellcheck source=launch/tpu/options.sh
source "$HERE/tpu/options.sh"
# shellcheck source=launch/tpu/places.sh
source "$HERE/tpu/places.sh"
# shellcheck source=launch/tpu/cloud.sh
source "$HERE/tpu/cloud.sh"
# shellcheck source=launch/tpu/here.sh
source "$HERE/tpu/here.sh"
# shellcheck source=launch/tpu/bundle.sh
source "$HERE/tpu/bundle.sh"
# shellcheck source=launch/tpu/bring.sh
source "$HERE/tpu/bring.sh"
# shellcheck source=launch/tpu/watch.sh
source "$HERE/tpu/watch.sh"
# shellcheck source=launch/tpu/ending.sh
source "$HERE/tpu/ending.sh"
# shellcheck source=launch/tpu/check.sh
source "$HERE/tpu/check.sh"

main() {
  read_options "$@"
  # 3: commands of a dry run, also from within $(...). TOLD: output of hosts
  # during setup.
  exec 3>/dev/null
  TOLD=2
  if [[ -n $DRY_RUN ]]; then
    exec 3>&1
    TOLD=1
  fi
  exec 4<> <(:)  # never written to: a read with a timeout is a pause
  SCRATCH=$(mktemp -d)
  ERROR=$SCRATCH/error
  : >"$ERROR"
  trap on_exit EXIT
  if [[ $VERB == teardown ]]; then
    teardown
    return
  fi
  plan_places
  if [[ $VERB == stop ]]; then
    stop_learner
    return
  fi
  [[ $VERB != check ]] || plan_check
  make_bundle
  trap 'SIGNAL=INT' INT
  trap 'SIGNAL=TERM' TERM
  run
  if [[ $VERB == check ]]; then judge_check; else farewell; fi
}

main "$@"
