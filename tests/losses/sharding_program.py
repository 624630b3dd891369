"""Run by `sharding_test` in a process with eight devices of its own.

Prints, for each function, the largest difference between its result on one
device and its result on arrays sharded over eight, as JSON.
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentrl_jax import losses

B, T, N, NUM_GROUPS, NUM_TASKS = 16, 32, 64, 12, 3


def cases():
  """Name, function and arguments; arrays are sharded along their first axis."""
  rng = np.random.default_rng(0)
  reward_N = rng.choice([-0.2, 0.0, 0.3, 1.0], size=N).astype(np.float32)
  group_N = rng.integers(NUM_GROUPS, size=N)
  valid_N = rng.random(N) < 0.8
  advantage_BT = rng.normal(size=(B, T)).astype(np.float32)
  task_BT = rng.integers(NUM_TASKS, size=(B, T))
  mask_BT = rng.random((B, T)) < 0.5
  group = (reward_N, group_N, valid_N)
  yield (
    "group_advantage",
    lambda r, g, v: losses.group_advantage(
      r, g, num_groups=NUM_GROUPS, valid_N=v
    ),
    group,
  )
  yield (
    "group_has_signal",
    lambda r, g, v: losses.group_has_signal(r, g, NUM_GROUPS, v).astype(float),
    group,
  )
  yield (
    "task_normalise",
    functools.partial(losses.task_normalise, num_tasks=NUM_TASKS),
    (advantage_BT, task_BT, mask_BT),
  )
  yield (
    "task_normalise_weighted",
    functools.partial(losses.task_normalise_weighted, num_tasks=NUM_TASKS),
    (reward_N, group_N % NUM_TASKS, rng.integers(99, size=N), valid_N),
  )
  yield (
    "token_mean",
    lambda x, m: losses.token_mean(x, m).value(),
    (advantage_BT, mask_BT),
  )


def main() -> None:
  """Compares each case on one device and on eight."""
  devices = jax.devices()
  if len(devices) != 8:
    sys.exit(f"eight devices are needed, found {len(devices)}")
  sharding = NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))
  differences = {}
  for name, function, arguments in cases():
    alone = jax.jit(function)(*jax.device_put(arguments, devices[0]))
    spread = jax.jit(function)(*jax.device_put(arguments, sharding))
    differences[name] = float(
      jnp.max(jnp.abs(np.asarray(spread) - np.asarray(alone)))
    )
  sys.stdout.write(json.dumps(differences))


if __name__ == "__main__":
  main()
