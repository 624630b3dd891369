#!/usr/bin/env bash
# Stands in for python on a host where launch/tpu_run.sh is what is tested: it
# counts to STEPS, or until $SAVED/enough exists, as a learner that saves at every
# step and goes on from there. What it saves is in $SAVED, and so are the words of
# its command.
printf '%s\n' "$@" >"$SAVED/$2-$AGENTRL_WORKER.words"
[[ $2 != launch.train ]] || env | grep ^AGENTRL_ >"$SAVED/environment-$AGENTRL_WORKER"
file=$SAVED/$2-$AGENTRL_WORKER.step
step=$(cat "$file" 2>/dev/null || echo 0)
echo "goes on at $step"
[[ -z ${BREAK_WITH:-} || ${REFUSED_BY:-$2} != "$2" ]] || exit "$BREAK_WITH"
trap 'echo "saved $step"; exit 143' TERM
while [[ $step -lt $STEPS && ! -e $SAVED/enough ]] || [[ $2 != launch.train ]]; do
  step=$((step + 1))
  echo "$step" >"$file"
  echo "step $step"
  if [[ ${BREAK_AT:-} == "$AGENTRL_WORKER:$step" ]]; then exit 3; fi
  # A process whose peer is gone hangs, as collectives do.
  while [[ -n ${BREAK_AT:-} && ${BREAK_AT%:*} != "$AGENTRL_WORKER" &&
    $step == "${BREAK_AT#*:}" && ! -e $SAVED/hung-$AGENTRL_WORKER ]]; do
    echo hangs
    : >"$SAVED/hung-$AGENTRL_WORKER"
    sleep 1000 &
    wait "$!"
  done
  sleep 0.1 &
  wait "$!"
done
echo done
