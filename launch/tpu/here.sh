# Places on this machine, for --local. Sourced.
# shellcheck shell=bash
#
# A host is a folder that is the home of its processes, so that all steps are the
# same as on a separate host: copy, install, start, follow.

# Prints the home folder of worker i of a place.
here_home() { printf '%s/%s/%s' "$LOCAL_FOLDER" "${NAMES[$1]}" "$2"; }

here_state() { if [[ -n ${MADE[$1]:-} ]]; then printf ready; else printf absent; fi; }

here_create() {
  local i
  for ((i = 0; i < TYPES[$1]; i++)); do
    perform mkdir -p "$(here_home "$1" "$i")"
  done
}

here_on() {
  local place=$1 workers=$3 line=$4 i first=0 last pids=() pid code=0
  last=$((TYPES[place] - 1))
  [[ $workers == all ]] || first=$workers last=$workers
  for ((i = first; i <= last; i++)); do
    if [[ -n $DRY_RUN ]]; then
      here_worker "$place" "$i" "$line"
    else
      here_worker "$place" "$i" "$line" &
      pids+=("$!")
    fi
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
  return "$code"
}

here_worker() {
  local home
  home=$(here_home "$1" "$2")
  if [[ -n $DRY_RUN ]]; then
    written env "HOME=$home" "AGENTRL_WORKER=$2" bash -c "$3"
  else
    cd "$home" || return
    HOME=$home AGENTRL_WORKER=$2 exec bash -c "$3"
  fi
}

here_copy() {
  local i
  for ((i = 0; i < TYPES[$1]; i++)); do
    perform cp "$3" "$(here_home "$1" "$i")/"
  done
}
