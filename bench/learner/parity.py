"""Largest differences between our losses and those of verl and RAGEN.

  python -m bench.learner.parity

Compares values and gradients in float64 and in float32 over the random batches
of `tests/golden/originals.npz`; AGENTRL_JAX_ORIGINALS names a file with more.
"""

import json
import sys

import jax
import numpy as np

from tests.golden import comparison


def largest_differences(*, double: bool) -> dict[str, float]:
  """Maps names to the largest |ours - theirs| / max(1, |theirs|)."""
  largest: dict[str, float] = {}
  for x, expected in comparison.batches():
    batch = x if double else comparison.in_float32(x)
    for name, value in comparison.results(batch):
      wanted = expected[name]
      gap = np.abs(np.asarray(value) - wanted) / np.maximum(np.abs(wanted), 1)
      if not np.isnan(wanted).all():  # the original had an answer
        largest[name] = max(largest.get(name, 0.0), float(gap.max()))
  return largest


def main() -> None:
  """Prints one JSON object."""
  with jax.enable_x64(True):
    double = largest_differences(double=True)
  single = largest_differences(double=False)
  result = {
    "work": {"batches": sum(1 for _ in comparison.batches())},
    "largest": {
      "float64": max(double.values()),
      "float32": max(single.values()),
    },
    "float64": double,
    "float32": single,
  }
  sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
  main()
