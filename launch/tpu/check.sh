# The check of a slice, --check: what it may cost, its report, its end. Sourced.
# shellcheck shell=bash
#
# A slice costs money from the moment that it is there. From then on the check may
# take as long as --dollars buy by the list price, less a margin for its deletion;
# then it ends, however far it is. A slice that this command asked for is deleted
# at its end, whatever ended it, unless --keep is given.

DOLLARS=10 PRICE='' KEEP='' REPORT=.
CHECK_S=${AGENTRL_CHECK_S:-600}  # for the checks; half of it more to install
CHECK_MARGIN_S=${AGENTRL_CHECK_MARGIN_S:-300}  # for the last commands
CHECK_LIMIT=90  # seconds of a command on the host
MOST_S=3600  # however little the slice costs
PAID_S=0 PAID_SINCE='' CREATED='' CHECK_ENDED=''

# Dollars for an hour of a chip on demand in us-central1, read 2026-11-23.
declare -A LIST_PRICES=([v5e]=1.20 [v5p]=4.20 [v6e]=2.70)

# Refuses slices for which the money is too little, and what no check needs.
plan_check() {
  local type=${TYPES[0]} kind=${TYPES[0]%-*} value
  kind=${kind/#v5litepod/v5e}
  [[ -z $ROLLOUT$ENVIRONMENTS$CONTROLLER ]] || fail "--check needs one slice, \
--learner, and nothing else: leave --rollout, --environments and --controller out"
  ((COUNTS[0] == 1 && $(num_hosts "$type") == 1)) || fail "--check is of one host, \
and --learner=$LEARNER has more: take $(single_host "$type")"
  PRICE=${PRICE:-${LIST_PRICES[$kind]:-}}
  [[ -n $PRICE ]] || fail "no list price is known of $kind: give \
--price=DOLLARS, for an hour of a chip"
  for value in "dollars=$DOLLARS" "price=$PRICE"; do
    [[ ${value#*=} =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "--$value must be a number of \
dollars"
  done
  PAID_S=$(awk -v d="$DOLLARS" -v p="$PRICE" -v n="$(chips "$type")" \
    -v most="$MOST_S" 'BEGIN {
      s = p > 0 ? d * 3600 / (p * n) : most
      printf "%d", s < most ? s : most }')
  PAID_S=$((PAID_S - CHECK_MARGIN_S))
  ((PAID_S >= CHECK_S * 3 / 2)) || fail "\$$DOLLARS buy \
$(duration $((PAID_S + CHECK_MARGIN_S))) of $type at \$$PRICE for an hour of a chip, \
and a check needs $(duration $((CHECK_S * 3 / 2 + CHECK_MARGIN_S))): take a smaller \
slice, or give --dollars"
  say "the check of $type ends at the latest $(duration "$PAID_S") after the slice \
is there, and costs at most \$$DOLLARS at \$$PRICE for an hour of a chip"
}

# Refuses a slice that was there before, unless it is to be kept.
refuse_existing() {
  [[ $VERB == check && -z $KEEP$CREATED ]] || return 0
  [[ $2 == absent || $2 == unknown ]] || fail "${NAMES[$1]} exists already: --keep \
checks it and keeps it; or take another --name, or delete it: $(teardown_command)"
}

# Ends a check for which the money is spent.
heed_money() {
  [[ $VERB == check && -z $DRY_RUN ]] || return 0
  if [[ -z $PAID_SINCE && ${HEARD[0]:-} == ready ]]; then PAID_SINCE=$SECONDS; fi
  [[ -z $PAID_SINCE ]] || ((SECONDS - PAID_SINCE < PAID_S)) || fail "the slice has \
been there for $(duration "$PAID_S"), as long as \$$DOLLARS allow, and the check is \
ended"
}

# Fetches the report and deletes the slice, once.
end_check() {
  local file node
  [[ -z $CHECK_ENDED && -n ${MADE[0]:-}$CREATED ]] || return 0
  CHECK_ENDED=yes
  LIMIT=$CHECK_LIMIT
  node=$(nodes 0)
  if [[ -n $DRY_RUN ]]; then
    for file in json txt; do on 0 "$node" 0 "cat agentrl/check/report.$file"; done
  elif [[ -n ${MADE[0]:-} ]]; then
    for file in json txt; do
      on 0 "$node" 0 "cat agentrl/check/report.$file" >"$SCRATCH/report.$file" \
        2>"$ERROR" || continue
      mkdir -p "$REPORT"
      mv "$SCRATCH/report.$file" "$REPORT/$RUN-check.$file"
    done
  fi
  LIMIT=1800
  if [[ -n $CREATED && -z $KEEP ]]; then
    say "deleting ${NAMES[0]}"
    delete_resource tpu "${NAMES[0]}" >&"$TOLD" || fail "${NAMES[0]} could not be \
deleted, and costs money: $(<"$ERROR"). Try again: $(teardown_command)"
    say "${NAMES[0]} is deleted"
  elif [[ -n ${MADE[0]:-} ]]; then
    say "${NAMES[0]} is kept, and costs money: $(teardown_command)"
  fi
}

# Says how the check ended; its status is 1 unless every check passed.
judge_check() {
  local file=$REPORT/$RUN-check
  end_check
  [[ -z $DRY_RUN ]] || return 0
  [[ $FINISHED == 0 && -e $file.txt ]] || fail "the check ended with status \
$FINISHED$([[ -e $file.txt ]] || printf ' and left no report'): see what it said above"
  cat "$file.txt"
  SAID=yes
  say "send $file.json to the authors"
  grep -q '"passed": true' "$file.json"
}
