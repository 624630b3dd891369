"""How far the policy is from each policy slot: measured, then as numbers."""

from collections.abc import Mapping

import jax
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.losses import RatioMoments

NAME = "policy/policy_slot"  # of what is measured; a task's name may follow
TRUNCATED = "policy/truncated"  # likewise, of weights held at CAP
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
    for kind, weight_BT in ((NAME, None), (TRUNCATED, capped_BT))
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
    task = name.removeprefix(NAME)
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
