"""How fast the learner is, against its peers and its limits.

  python -m bench.learner                       # all rows
  python -m bench.learner train_step packing    # some
    [--pairs=5] [--peer_python=.venv-peers/bin/python]
    [--tunix_python=.venv-tunix/bin/python]

- train_step: an update of W-tiny, against transformers and XLA's product rate.
- packing: useful tokens per second of packed rows, against padded ones.
- collectives: bytes that devices exchange per update, against the formula.
- checkpoint: what saving holds up, against copying the same bytes.
- rl_step: sampling and one update, against Tunix and TRL.

Float32 on the CPU, on both sides. Peers take turns with ours; what counts is
the median of the ratios, from a machine that nobody else uses: `contended` says
whether somebody did. Prints one JSON object per row.

An update takes gigabytes of fresh memory; with

  GLIBC_TUNABLES=glibc.malloc.hugetlb=1

in the environment, which peers inherit, it comes in pages of 2 MiB where the
kernel offers them on request.
"""

import argparse
import importlib
import json
import os
import pathlib
import sys

import jax

ROWS = ("train_step", "packing", "collectives", "checkpoint", "rl_step")


def main() -> None:
  """Prints the rows, one by one."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("rows", nargs="*", choices=[[], *ROWS])
  parser.add_argument("--pairs", type=int, default=5)
  parser.add_argument(
    "--peer_python", type=pathlib.Path, default=".venv-peers/bin/python"
  )
  parser.add_argument(
    "--tunix_python", type=pathlib.Path, default=".venv-tunix/bin/python"
  )
  options = parser.parse_args()
  pythons = {"torch": options.peer_python, "tunix": options.tunix_python}
  for python in pythons.values():
    if not python.exists():
      sys.stderr.write(
        f"{python} is not there, so peers in it are left out; `make bench` "
        "makes it\n"
      )
  for row in options.rows or ROWS:
    module = importlib.import_module(f"bench.learner_{row}")
    found = module.measure(options.pairs, pythons)
    about = {
      "row": row,
      "jax": jax.__version__,
      "pairs": options.pairs,
      "huge_pages": os.environ.get("GLIBC_TUNABLES", ""),
    }
    sys.stdout.write(json.dumps(about | found, indent=2) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
  jax.config.update("jax_platforms", "cpu")
  main()
