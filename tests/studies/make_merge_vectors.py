"""Records what other programs merge from random arrays, for a test of ours.

  PYTHONPATH=<folder>:. python -m tests.studies.make_merge_vectors

Needs torch, mergekit 0.1.5, and `ram-main.py` of the paper's repository
(xiangchi-yuan/mrl, e2d930d) renamed to `ram_main.py`. Arrays are float32, and
some entries are changed by one expert alone.
"""

import json
import pathlib

import numpy as np
import ram_main
import torch
from mergekit.merge_methods import registry
from mergekit.merge_methods.base import TensorGroup

FILE = pathlib.Path(__file__).with_name("merge_vectors.json")
SHAPES = {"first": (4, 6), "second": (20,)}
EXPERTS = ("a", "b", "c")


def inputs() -> dict[str, dict[str, np.ndarray]]:
  """Returns the arrays of the base and of each expert, by the array's name."""
  dice = np.random.default_rng(0)
  base = {n: dice.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
  models = {"base": base}
  for share, expert in zip((0.3, 0.4, 0.5), EXPERTS, strict=True):
    models[expert] = {
      name: (
        x + dice.normal(size=x.shape) * (dice.random(x.shape) < share)
      ).astype(np.float32)
      for name, x in base.items()
    }
  return models


def of_mergekit(models, method: str, **parameters):
  """Merges each array with a method of mergekit; weights are 1."""
  chosen = registry.get(method)
  merged = {}
  for name in SHAPES:
    arrays = [torch.tensor(models[m][name]) for m in ("base", *EXPERTS)]
    group = TensorGroup.from_tensors(
      arrays, ids=("base", *EXPERTS), base_index=0, name=name
    )
    merged[name] = chosen.merge_group(group, **parameters)
  return merged


def of_ram_main(models, function, **parameters):
  """Merges whole models with a function of the paper's code."""
  torches = {
    m: {n: torch.tensor(x) for n, x in arrays.items()}
    for m, arrays in models.items()
  }
  taus = ram_main.compute_task_vectors(
    torches["base"], [torches[e] for e in EXPERTS]
  )
  return function(torches["base"], taus, **parameters)


def main() -> None:
  """Writes `merge_vectors.json`."""
  models = inputs()
  per_expert = {
    "weight": dict.fromkeys(EXPERTS, 1.0),
    "density": dict.fromkeys(EXPERTS, 0.5),
  }
  shared = {"int8_mask": False, "rescale": False, "lambda": 0.7}
  found = {
    "task_arithmetic": of_mergekit(
      models, "task_arithmetic", **per_expert, **shared, normalize=False
    ),
    "ties": of_mergekit(models, "ties", **per_expert, **shared, normalize=True),
    "ram": of_mergekit(models, "ram", epsilon=1e-5),
    "ram of the paper": of_ram_main(
      models, ram_main.agentic_reinforcement_merge
    ),
    "ram_plus": of_ram_main(
      models, ram_main.agentic_reinforcement_merge_rescale_v2, r=1.2
    ),
  }
  body = {
    "models": _listed(models),
    "merged": {key: _listed({"": value})[""] for key, value in found.items()},
  }
  FILE.write_text(json.dumps(body) + "\n")


def _listed(models):
  return {
    m: {name: np.asarray(x).tolist() for name, x in arrays.items()}
    for m, arrays in models.items()
  }


if __name__ == "__main__":
  main()
