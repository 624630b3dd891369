"""How far engine and learner are apart about the same tokens and weights.

A token that was sampled with the very params that are about to be updated has
one probability; the engine's and the learner's differ by rounding alone. Any
more than that is a fault of one of them, which no other number shows: the
ratios of older versions hide it.

Axes: B rows, T tokens, N trajectories, U turns.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.data.trajectory import Trajectory, Turn
from agentrl_jax.losses import RatioMoments

DRIFT = "policy/engine_drift"
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
    numbers[DRIFT] = float(drift.total) / count
    numbers[f"{DRIFT}_max"] = float(drift.largest)
  return numbers


def _version(turn: Turn) -> int:
  found = set(turn.version.tolist())
  return found.pop() if len(found) == 1 else _SEVERAL


POLICY_SLOT = (
  "policy/policy_slot"  # of what is measured; a task's name may follow
)
TRUNCATED = "policy/truncated"  # of weights held at CAP
# One ratio of 400 leaves an effective sample size of 0.01 or so to a thousand
# tokens, though every loss but plain REINFORCE bounds what it may count. At 2,
# where truncated importance sampling is usually cut off (Ionides, 2008; verl's
# rollout correction), it says what is left of the others.
CAP = 2.0


def measure_policy_slots(
  log_ratio_BT: jax.Array,
  batch: Batch,
  task_BT: jax.Array | np.ndarray | None,
  *,
  num_policy_slots: int,
  tasks: Mapping[str, int],
) -> dict[str, RatioMoments]:
  """Moments of policy over sampler by policy slot, in all and by task.

  `tasks` numbers the tasks' names as `task_BT` does, if that is known.
  """
  masks = {"": batch.mask}
  if task_BT is not None:
    masks |= {
      f"/{name}": batch.mask & (task_BT == number)
      for name, number in tasks.items()
    }
  capped_BT = losses.truncated_weight(log_ratio_BT, cap=CAP)
  return {
    f"{kind}{task}": losses.ratio_moments(
      log_ratio_BT,
      mask_BT,
      batch.policy_slot,
      num_policy_slots,
      weight_BT=weight_BT,
    )
    for task, mask_BT in masks.items()
    for kind, weight_BT in ((POLICY_SLOT, None), (TRUNCATED, capped_BT))
  }


def policy_slot_numbers(name: str, moments: RatioMoments) -> dict[str, float]:
  """How much each policy slot sampled, and how stale it is.

  `name` is that of `measure_policy_slots`; a task's goes to the end of what is
  told.
  """
  if name.startswith(TRUNCATED):
    task = name.removeprefix(TRUNCATED)
    by_policy_slot = {"truncated_sample_size": moments.effective_sample_size()}
  else:
    task = name.removeprefix(POLICY_SLOT)
    by_policy_slot = {
      "abs_log_ratio": moments.abs_log_ratio(),
      "effective_sample_size": moments.effective_sample_size(),
      "kl_to_behavior": moments.kl(),
      "share_of_tokens": moments.share(),
    }
  return {
    f"policy/{what}/policy_slot{z}{task}": float(value)
    for what, value_Z in by_policy_slot.items()
    for z, value in enumerate(np.asarray(value_Z))
  }
