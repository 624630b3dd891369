"""Prints how far training with several layouts is from training with one.

  python -m tests.launch.run.layouts_program [plain|adapters]

Prepared groups are short, then long, then short again, so that the learner goes
to the mesh of short lines, comes back at once, and goes there again.
"""

import json
import pathlib
import sys
import tempfile
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from agentrl_jax.data.records import Group
from agentrl_jax.train.weights.publish import Publisher
from launch.run.context import open_run
from launch.run.group_source import GroupSource
from launch.run.reinforcement import Reinforcement
from launch.storage.load_params import fresh_params
from tests.data.records import make_group
from tests.launch import tiny
from tests.launch.processes.learners import state_of

STEPS, STOP = 8, 4
LAYOUTS = ("16 tokens 8 rows data=8", "48 tokens 8 rows")
TURNS = (1, 1, 1, 8, 1, 1, 1, 3)  # of the groups of each update
CHANGES = {
  "mesh.data": 2,
  "mesh.fsdp": 2,
  "mesh.tensor": 2,
  "train.micro_batch": 8,
  "train.sharing": 2,
  "cross_policy.policy_slots": ("fresh",),
  "cross_policy.weights": (1.0,),
  "engine.slots": (4,),
  "loss.kl_coefficient": 0.1,  # its reference moves, too
  "advantage.task_decay": 0.5,  # and so do the moments of the tasks
  "optimizer.learning_rate": 1e-3,
  "optimizer.warmup_steps": 0,  # which would depend on the number of updates
  "report.trace_share": 0.0,
}
VARIANTS: Mapping[str, dict[str, Any]] = {
  "plain": {},
  "adapters": {"lora.rank": 2},
}


class _Prepared(GroupSource):
  """Supplies groups that are the same in every run."""

  def __init__(self) -> None:
    self.row_lengths: list[float] = []

  def take(self, version: int) -> list[Group]:
    rng = np.random.default_rng(version)
    return [
      make_group(rng, id=str(n), task="arithmetic", turns=TURNS[version])
      for n in range(3)
    ]

  def account(self, version, after, report, learned=None) -> None:
    del version, after, learned
    self.row_lengths.append(report["batch/row_length"])


def _train(workdir: str, changes: Mapping[str, Any]) -> _Prepared:
  config = tiny.get_config()
  config.workdir = workdir
  config.update_from_flattened_dict(CHANGES | dict(changes))
  groups = _Prepared()
  with open_run(config) as context:
    publisher = Publisher(context.policy, None, gathered=True)
    params = fresh_params(context.settings, context.policy)
    # No answer follows a grammar, and no critic is informed.
    codec: Any = types.SimpleNamespace(encode_plain=None)
    Reinforcement(context, groups, publisher, codec).train(params)
  return groups


def _change(begin: Mapping, end: Mapping) -> dict[str, np.ndarray]:
  """Returns by how much each float of a checkpoint's state has changed."""
  return {
    name: np.asarray(end[name], np.float64) - np.asarray(begin[name])
    for name, x in end.items()
    if np.issubdtype(x.dtype, np.floating)
  }


def _norm(tree: Mapping[str, np.ndarray]) -> float:
  return float(np.sqrt(sum(np.sum(x**2) for x in tree.values())))


def main() -> None:
  """Trains once with one layout, once with several, once with a stop."""
  assert jax.device_count() == 8
  changes = VARIANTS[sys.argv[1]] | {"train.steps": STEPS}
  with tempfile.TemporaryDirectory() as folder:
    changes |= {"compile_cache": f"{folder}/compiled"}
    several = changes | {"train.layouts": LAYOUTS}
    one, through, stopped = (f"{folder}/{n}" for n in range(3))
    keep = {"checkpoint.keep_every": STEPS, "checkpoint.keep": STEPS}
    _train(one, changes | keep)
    groups = _train(through, several)
    _train(stopped, several | {"train.steps": STOP})
    rest = _train(stopped, several)
    states = {
      name: state_of(pathlib.Path(folder) / "tiny", STEPS)
      for name, folder in {
        "one": one,
        "through": through,
        "stopped": stopped,
      }.items()
    }
    begin = state_of(pathlib.Path(one) / "tiny", 0)
  changed = _change(begin, states["one"])
  apart = _change(states["one"], states["through"])
  resumed = states["stopped"]
  found = {
    "apart": _norm(apart) / _norm(changed),
    "differs": any((x != 0).any() for x in apart.values()),
    "resumed_alike": all(
      np.array_equal(x, resumed[name]) for name, x in states["through"].items()
    ),
    "row_lengths": groups.row_lengths,
    "after_the_stop": rest.row_lengths,
  }
  sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
  main()
