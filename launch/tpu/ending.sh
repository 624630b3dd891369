# Ends of a run: completion, --stop, --teardown, signals. Sourced.
# shellcheck shell=bash

teardown_command() {
  written launch/tpu_run.sh "--name=$RUN" --teardown "--zone=$ZONE" \
    "--project=$PROJECT"
}

# Prints what to do about resources that are kept; nothing if there are none.
kept_resources() {
  [[ -n $LOCAL ]] || printf '; the resources are kept, or delete them: %s' \
    "$(teardown_command)"
}

teardown() {
  local kind name any='' failed=''
  LIMIT=1800
  if [[ -n $DRY_RUN ]]; then
    cloud_existing
    delete_resource tpu "$RUN-learner"
    return
  fi
  while read -r kind name; do
    any=yes
    say "deleting $name"
    delete_resource "$kind" "$name" >&2 || {
      failed=yes
      say "$name could not be deleted: $(<"$ERROR")"
    }
  done < <(cloud_existing)
  [[ -z $failed ]] || fail "some of $RUN is still there, and costs money; try again: \
$(teardown_command)"
  if [[ -n $any ]]; then
    say "nothing of $RUN is left in $ZONE; its folder and checkpoints are kept"
  else
    say "there is nothing of $RUN in $ZONE, project $PROJECT"
  fi
}

# Asks the learner to save and to end; the resources stay.
stop_learner() {
  local seconds
  seconds="\$(cat agentrl/places/learner/grace 2>/dev/null || echo $GRACE_S)"
  [[ -z $GRACE_GIVEN ]] || seconds=$((GRACE_S + MARGIN_S))
  CODE='' COORDINATOR_PORT=0
  # Every version of the bootstrap can stop a command that another one started.
  everywhere 0 "for b in agentrl/code-*/launch/tpu/bootstrap.sh; do \
bash \"\$b\" stop learner $seconds; break; done" ||
    fail "the learner could not be reached to be stopped"
  say "the learner has ended; the same command without --stop goes on, and \
$(teardown_command) deletes the resources"
}

# The learner is done: stops the other roles.
farewell() {
  local place node
  SAID=yes
  for place in "${!ROLES[@]}"; do
    [[ ${ROLES[place]} != learner ]] || continue
    forget "$place"
    LIMIT=600
    node=$(nodes "$place")
    on "$place" "$node" all "$(bootstrap "$place" stop "$(label "$place")" 30)" \
      >&"$TOLD" 4>&- || say "${NAMES[place]} could not be told to stop"
  done
  stop_controller
  if [[ -n $LOCAL ]]; then
    say "$RUN is done; it is in $WORKDIR/$RUN"
  elif [[ -n $TEARDOWN_ON_EXIT ]]; then
    say "$RUN is done; it is in $WORKDIR/$RUN"
    teardown
  else
    say "$RUN is done; it is in $WORKDIR/$RUN. Its resources still cost money: \
$(teardown_command)"
  fi
}

stop_controller() {
  [[ -n $PLAYED && ( -z $CONTROLLER || -n $LOCAL ) ]] || return 0
  LIMIT=600
  on 0 "$(nodes 0 | head -n 1)" 0 "$(bootstrap 0 stop controller 30)" >&"$TOLD" 4>&- ||
    say "the controller could not be told to stop"
}

# After SIGINT or SIGTERM; a second one acts at once.
leave() {
  local code
  trap - INT TERM
  case $SIGNAL in INT) code=130 ;; *) code=143 ;; esac
  SIGNAL=''
  SAID=stopped
  if [[ $VERB == check ]]; then
    say "the check is ended"
  elif [[ -n $LOCAL ]]; then
    say "stopping; the learner saves first (at most $(duration "$GRACE_S"))"
    stop_here
    say "the same command goes on where this one stopped"
  elif [[ -n $TEARDOWN_ON_EXIT ]]; then
    teardown
  else
    say "watching ends, and the run goes on without being watched: what breaks or is \
taken away is not started again until the same command is given. To end it: \
$(teardown_command)"
  fi
  exit "$code"
}

stop_here() {
  local place
  for place in "${!ROLES[@]}"; do
    [[ ${PREPARED[place]:-} == yes ]] || continue
    on "$place" '' all "$(bootstrap "$place" stop "$(label "$place")" own)" \
      >&2 4>&- || true
  done
  stop_controller
}

on_exit() {
  local code=$? entry of node pid
  trap - EXIT INT TERM
  for entry in "${FOLLOWED[@]}"; do
    read -r of node pid <<<"$entry"
    kill -TERM -- "-$pid" 2>/dev/null || true
  done
  if ((code)) && [[ -n $LOCAL && $SAID != stopped ]]; then stop_here; fi
  if [[ $VERB == check ]]; then (end_check) || code=1; fi
  ((code == 0)) || [[ -n $SAID ]] || say "ended with status $code where it should \
not; bash -x ${BASH_SOURCE[-1]} shows where"
  rm -rf "$SCRATCH"
  exit "$code"
}
