"""Random records for tests, from a seed."""

import numpy as np

from agentrl_jax.data.records import Group, Status, Task, Trajectory, Turn


def make_turn(rng, *, observed: int, sampled: int, version: int = 0) -> Turn:
  return Turn(
    observation=rng.integers(1, 50, observed).astype(np.int32),
    sampled=rng.integers(1, 50, sampled).astype(np.int32),
    behavior_logprob=-rng.random(sampled).astype(np.float32),
    raw_logprob=-rng.random(sampled).astype(np.float32),
    version=np.full(sampled, version, np.int32),
  )


def make_trajectory(
  rng, *, task="a", group="g", attempt=0, turns=2, reward=None, status=None
) -> Trajectory:
  return Trajectory(
    task=Task(task, "train", 7),
    group_id=group,
    attempt=attempt,
    seed=int(rng.integers(1 << 40)),
    turns=tuple(
      make_turn(
        rng, observed=int(rng.integers(1, 9)), sampled=int(rng.integers(1, 6))
      )
      for _ in range(turns)
    ),
    status=status or Status.COMPLETED,
    reward=float(rng.random()) if reward is None else reward,
    metrics={"success": 1.0},
    transcript=({"role": "user", "content": "hé"},),
    policy_slot_weights=(0.75, 0.25),
  )


def make_group(rng, *, id="g", task="a", size=4, **fields) -> Group:
  members = tuple(
    make_trajectory(rng, task=task, group=id, attempt=n, **fields)
    for n in range(size)
  )
  return Group(id, Task(task, "train", 7), members, num_masked=1)
