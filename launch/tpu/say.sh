# Words and commands. Sourced; expects DRY_RUN, and PROGRAM for messages.
# shellcheck shell=bash

SAID=''  # whether the end was explained

# A dry run has nothing to tell but its commands.
say() { [[ -n $DRY_RUN ]] || tell "$*"; }

tell() { printf '%s: %s\n' "$PROGRAM" "$*" >&2; }

SIGNAL=''  # that has come, and that the loop heeds

fail() {
  # What was asked for when ctrl-C came has failed for that reason.
  [[ -z $SIGNAL ]] || leave
  SAID=yes
  tell "$*"
  exit 1
}

# A command as one could type it.
written() {
  local word line=''
  for word in "$@"; do
    if [[ $word =~ ^[A-Za-z0-9_./:=,@%+~-]+$ ]]; then
      line+=" $word"
    else
      line+=" '${word//\'/\'\\\'\'}'"
    fi
  done
  printf '%s\n' "${line# }"
}

# Runs a command, or prints it where nothing is to be done.
perform() {
  if [[ -n $DRY_RUN ]]; then
    written "$@"
  else
    "$@"
  fi
}

# 90 is "90 s", 5400 is "90 min".
duration() {
  if (($1 < 120)); then printf '%s s' "$1"; else printf '%s min' "$(($1 / 60))"; fi
}
