"""Every benchmark in turn, each in a process of its own.

  python -m bench.run                      # all of them
  python -m bench.run losses environments  # some

Each says which work it did. Quote the ratios: the
peers ran in the same minutes, and absolute times are those of this machine.
"""

import subprocess
import sys

BENCHMARKS = (
  "losses",
  "parity",
  "rollout_engine",
  "admission",
  "environments",
  "searches",
  "learner",
  "rollout",
)
DEADLINE_S = 1800


def main() -> None:
  """Runs those named, or all; fails if any does."""
  wanted = sys.argv[1:] or list(BENCHMARKS)
  unknown = set(wanted) - set(BENCHMARKS)
  if unknown:
    sys.exit(f"no benchmark {sorted(unknown)}; there are {BENCHMARKS}")
  for name in wanted:
    sys.stdout.write(f"== {name}\n")
    sys.stdout.flush()
    subprocess.run(
      [sys.executable, "-m", f"bench.{name}"], check=True, timeout=DEADLINE_S
    )


if __name__ == "__main__":
  main()
