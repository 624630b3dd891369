# Names of TPU types, and the hosts of each slice, of slices.txt. Sourced.
# shellcheck shell=bash
#
# Types as queued resources take them: v4, v5p and tpu7x count cores, two per
# chip; the others chips. gcloud calls v5e v5litepod; the table and the plan do
# not.

declare -A SLICE_SHAPE SLICE_HOSTS

read_slices() {
  local name kind shape hosts
  while read -r name kind shape hosts; do
    [[ $name != '' && $name != '#'* ]] || continue
    SLICE_SHAPE[$name]=$shape SLICE_HOSTS[$name]=$hosts
  done <"$(dirname "${BASH_SOURCE[0]}")/slices.txt"
}
read_slices

accelerator_type() { printf '%s' "${1/#v5e-/v5litepod-}"; }

check_accelerator() {
  [[ $1 =~ ^(v4|v5p|v5litepod|v6e|tpu7x)-[1-9][0-9]*$ ]] || fail "$1 is no TPU that \
is known here: v4-N, v5p-N or tpu7x-N (N cores, two per chip), v5e-N or v6e-N (N \
chips)"
  [[ -n ${SLICE_SHAPE[${1/#v5litepod-/v5e-}]:-} ]] || fail "there is no slice $1; the nearest are \
$(nearest "$1"), and launch/tpu/slices.txt has all of them"
  [[ $1 != tpu7x-* || ${VERB:-} == render ]] || fail "Cloud TPU's queued resources \
have no $1: Google rents TPU7x on Kubernetes, where launch/gke/render.sh prints the \
JobSet for the same options"
}

runtime_version() {
  case $1 in
    v4-*) printf tpu-ubuntu2204-base ;;
    v5p-*) printf v2-alpha-tpuv5 ;;
    v5litepod-*) printf v2-alpha-tpuv5-lite ;;
    v6e-*) printf v2-alpha-tpuv6e ;;
  esac
}

topology() { printf '%s' "${SLICE_SHAPE[${1/#v5litepod-/v5e-}]}"; }

num_hosts() { printf '%s' "${SLICE_HOSTS[${1/#v5litepod-/v5e-}]}"; }

chips() {
  local shape
  shape=$(topology "$1")
  printf '%s' "$((${shape//x/*}))"
}

# Chips per host; a Pod on GKE must request all of them.
chips_per_host() { printf '%s' "$(($(chips "$1") / $(num_hosts "$1")))"; }

# Prints the next smaller and the next larger slice of the family.
nearest() {
  local name size wanted=${1##*-} family smaller=0 larger=0
  family=${1/#v5litepod-/v5e-} family=${family%-*}
  for name in "${!SLICE_SHAPE[@]}"; do
    [[ $name == "$family"-* ]] || continue
    size=${name##*-}
    if ((size < wanted && size > smaller)); then smaller=$size; fi
    if ((size > wanted && (size < larger || !larger))); then larger=$size; fi
  done
  ((!smaller)) || printf '%s-%s' "$family" "$smaller"
  ((!smaller || !larger)) || printf ' and '
  ((!larger)) || printf '%s-%s' "$family" "$larger"
}

gke_accelerator() {
  case $1 in
    v4-*) printf tpu-v4-podslice ;;
    v5p-*) printf tpu-v5p-slice ;;
    v5litepod-*) printf tpu-v5-lite-podslice ;;
    v6e-*) printf tpu-v6e-slice ;;
    tpu7x-*) printf tpu7x ;;
  esac
}
