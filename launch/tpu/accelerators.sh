# Names of TPU types, and the number of hosts of each slice. Sourced.
# shellcheck shell=bash
#
# Types as queued resources take them: v4 and v5p count cores, two per chip; the
# others chips. Hosts of slices have four chips; the small slices of v5e and v6e
# are one host of up to eight.

# gcloud calls v5e v5litepod.
accelerator_type() { printf '%s' "${1/#v5e-/v5litepod-}"; }

check_accelerator() {
  [[ $1 =~ ^(v4|v5p|v5litepod|v6e)-[1-9][0-9]*$ ]] || fail "$1 is no TPU that is \
known here: v4-N, v5p-N (N cores, two per chip), v5e-N or v6e-N (N chips)"
  [[ -n $(topology "$1") ]] || fail "there is no slice $1; there are: \
$(sizes "${1%-*}")"
}

runtime_version() {
  case $1 in
    v4-*) printf tpu-ubuntu2204-base ;;
    v5p-*) printf v2-alpha-tpuv5 ;;
    v5litepod-*) printf v2-alpha-tpuv5-lite ;;
    v6e-*) printf v2-alpha-tpuv6e ;;
  esac
}

chips() {
  case $1 in
    v4-* | v5p-*) printf '%s' "$((${1#*-} / 2))" ;;
    *) printf '%s' "${1#*-}" ;;
  esac
}

num_hosts() {
  local chips
  chips=$(chips "$1")
  case $1 in
    v5litepod-[148] | v6e-[148]) printf 1 ;;
    *) printf '%s' "$((chips / 4))" ;;
  esac
}

# Chips per host; a Pod on GKE must request all of them.
chips_per_host() { printf '%s' "$(($(chips "$1") / $(num_hosts "$1")))"; }

# "size=topology ..." of a family.
topologies() {
  case $1 in
    v4 | v5p)
      printf '8=2x2x1 16=2x2x2 32=2x2x4 64=2x4x4 128=4x4x4 256=4x4x8 512=4x8x8 '
      printf '1024=8x8x8 2048=8x8x16 4096=8x16x16'
      ;;
    *) printf '1=1x1 4=2x2 8=2x4 16=4x4 32=4x8 64=8x8 128=8x16 256=16x16' ;;
  esac
}

topology() {
  local pair
  for pair in $(topologies "${1%-*}"); do
    [[ ${pair%=*} == "${1#*-}" ]] && printf '%s' "${pair#*=}"
  done
  return 0
}

sizes() {
  local pair
  for pair in $(topologies "$1"); do printf '%s-%s ' "$1" "${pair%=*}"; done
}

gke_accelerator() {
  case $1 in
    v4-*) printf tpu-v4-podslice ;;
    v5p-*) printf tpu-v5p-slice ;;
    v5litepod-*) printf tpu-v5-lite-podslice ;;
    v6e-*) printf tpu-v6e-slice ;;
  esac
}
