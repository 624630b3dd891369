# Messages, and running of commands. Sourced; expects DRY_RUN and PROGRAM.
# shellcheck shell=bash

SAID=''  # set when the end was explained
# shellcheck disable=SC2034
REFUSED=2  # status of a command whose flags or config are refused

# A dry run prints only its commands.
say() { [[ -n $DRY_RUN ]] || tell "$*"; }

tell() { printf '%s: %s\n' "$PROGRAM" "$*" >&2; }

SIGNAL=''  # a signal that has arrived; the loop polls it

fail() {
  # Ctrl-C made the current command fail.
  [[ -z $SIGNAL ]] || leave
  SAID=yes
  tell "$*"
  exit 1
}

# Prints a command, quoted for a shell.
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

# Runs a command, or prints it on a dry run.
perform() {
  if [[ -n $DRY_RUN ]]; then
    written "$@"
  else
    "$@"
  fi
}

# Prints 90 as "90 s", 5400 as "90 min".
duration() {
  if (($1 < 120)); then printf '%s s' "$1"; else printf '%s min' "$(($1 / 60))"; fi
}
