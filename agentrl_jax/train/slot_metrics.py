"""How far the policy is from each version slot: measured, then as numbers."""

from collections.abc import Mapping

import jax
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.losses import RatioMoments

NAME = "policy/slot"  # of what is measured; a task's name may follow


def measure_slots(
  log_ratio_BT: jax.Array,
  batch: Batch,
  task_BT: jax.Array | np.ndarray | None,
  *,
  num_slots: int,
  tasks: Mapping[str, int],
) -> dict[str, RatioMoments]:
  """Moments of policy over sampler by slot, in all and by task.

  `tasks` numbers the tasks' names as `task_BT` does, if that is known.
  """
  masks = {NAME: batch.mask}
  if task_BT is not None:
    masks |= {
      f"{NAME}/{name}": batch.mask & (task_BT == number)
      for name, number in tasks.items()
    }
  return {
    name: losses.ratio_moments(log_ratio_BT, mask_BT, batch.slot, num_slots)
    for name, mask_BT in masks.items()
  }


def slot_numbers(name: str, moments: RatioMoments) -> dict[str, float]:
  """How much each version slot sampled, and how stale it is.

  `name` is that of `measure_slots`; a task's goes to the end of what is told.
  """
  by_slot = {
    "effective_sample_size": moments.effective_sample_size(),
    "kl_to_behavior": moments.kl(),
    "share_of_tokens": moments.share(),
  }
  return {
    f"policy/{what}/slot{z}{name.removeprefix(NAME)}": float(value)
    for what, value_Z in by_slot.items()
    for z, value in enumerate(np.asarray(value_Z))
  }
