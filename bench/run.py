"""Runs every benchmark in turn, each in its own process.

  python -m bench.run                                 # all of them
  python -m bench.run learner.losses environments  # some

Each prints the work that it measured. Quote the ratios: peers run in the same
minutes, while absolute times hold for this machine only.
"""

import subprocess
import sys

BENCHMARKS = (
  "learner.losses",
  "learner.parity",
  "rollout.engine",
  "system.layouts",
  "system.pipeline",
  "environments",
  "controller.playing",
  "environments.searches",
  "learner",
  "rollout",
  "system",
)
DEADLINE_S = 1800


def main() -> None:
  """Runs the named benchmarks, or all; fails if any fails."""
  wanted = sys.argv[1:] or list(BENCHMARKS)
  if {"--help", "-h"} & {*wanted}:
    sys.stdout.write(f"{__doc__}\n{' '.join(BENCHMARKS)}\n")
    return
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
