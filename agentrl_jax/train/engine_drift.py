"""How far engine and learner are apart about the same tokens and weights.

A token that was sampled with the very params that are about to be updated has
one probability; the engine's and the learner's differ by rounding alone. Any
more than that is a fault of one of them, which no other number shows: the
ratios of older versions hide it.

Axes: B rows, T tokens, N trajectories, U turns.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.data.trajectory import Trajectory, Turn

NAME = "policy/engine_drift"
_SEVERAL = -1  # is the version of nobody


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["total", "count", "largest", "trained"],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class EngineDrift:
  """Adds up over micro-batches; zeros are the drift of nothing."""

  total: jax.Array  # sum of |log-ratio| in nats
  count: jax.Array  # tokens that it is over
  largest: jax.Array  # |log-ratio| in nats
  trained: jax.Array  # tokens, older versions' too

  def __add__(self, other: "EngineDrift") -> "EngineDrift":
    return EngineDrift(
      self.total + other.total,
      self.count + other.count,
      jnp.maximum(self.largest, other.largest),
      self.trained + other.trained,
    )


def answer_versions(trajectories: Sequence[Trajectory]) -> np.ndarray:
  """The version behind each whole answer, int32 [N, U]; -1 if several were.

  After a swap under way, an answer goes on with what older weights made of its
  prompt. The learner has no such policy, so there is nothing to compare.
  """
  num_turns = max((len(t.turns) for t in trajectories), default=0)
  version_NU = np.full((len(trajectories), num_turns), _SEVERAL, np.int32)
  for n, trajectory in enumerate(trajectories):
    for u, turn in enumerate(trajectory.turns):
      version_NU[n, u] = _version(turn)
  return version_NU


def measure_drift(
  log_ratio_BT: jax.Array,
  mask_BT: jax.Array,
  version_BT: jax.Array,
  version: jax.Array,
) -> EngineDrift:
  """Of trained tokens whose answer is of `version`, the learner's own.

  `log_ratio_BT` is policy over sampler; `version_BT` as of `answer_versions`.
  """
  same_BT = mask_BT & (version_BT == version)
  apart_BT = jnp.abs(jax.lax.stop_gradient(log_ratio_BT))
  return EngineDrift(
    total=jnp.sum(apart_BT, where=same_BT),
    count=jnp.sum(same_BT),
    largest=jnp.max(apart_BT, where=same_BT, initial=0.0),
    trained=jnp.sum(mask_BT),
  )


def drift_numbers(drift: EngineDrift) -> dict[str, float]:
  """What to report; no drift where no token tells of it."""
  count = float(drift.count)
  numbers = {"policy/on_policy_share": count / max(float(drift.trained), 1)}
  if count:
    numbers[NAME] = float(drift.total) / count
    numbers[f"{NAME}_max"] = float(drift.largest)
  return numbers


def _version(turn: Turn) -> int:
  found = set(turn.version.tolist())
  return found.pop() if len(found) == 1 else _SEVERAL
