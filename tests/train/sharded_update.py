"""Prints, per mesh shape on eight devices, how far an update is from one's."""

import json
import sys

import jax
import numpy as np

from agentrl_jax.model import sharding
from tests.train import small

SHAPES = (
  {"data": 8},
  {"fsdp": 8},
  {"data": 2, "fsdp": 4},
  {"data": 4, "tensor": 2},
  {"data": 2, "fsdp": 2, "tensor": 2},
)


def two_updates(mesh):
  lessons = small.make_lessons(micro_batch=8, num_groups=12)
  policy, learner = small.make_learner(mesh, learning_rate=1e-3)
  state = learner.init(policy.init(jax.random.key(0)))
  for _ in range(2):
    state, metrics = learner.update(state, lessons)
  return metrics["loss"], jax.tree.map(np.asarray, state.params)


def main() -> None:
  one = sharding.make_mesh({"data": 1}, jax.devices()[:1])
  loss, params = two_updates(one)
  found = {}
  for shape in SHAPES:
    other_loss, other = two_updates(sharding.make_mesh(shape))
    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), other, params)
    found[str(shape)] = (
      abs(other_loss - loss),
      float(max(jax.tree.leaves(gaps))),
    )
  sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
  main()
