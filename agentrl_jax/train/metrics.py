"""Metrics of an update: drift between engine and learner, staleness by slot.

Engine and learner compute the probability of a token with the same params
whenever the sampler had the version that is about to be updated. The two then
differ by rounding alone; a larger difference is a fault of one of them. The
ratios of older versions would hide it, so it has a metric of its own.

Axes: B rows, T tokens, N trajectories, U turns, Z policy slots.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.losses import RatioMoments

DRIFT = "policy/engine_drift"
POLICY_LOGPROB = "policy/logprob"
# Updates of a step that were skipped: of a gradient of 0, and of NaN.
NO_SIGNAL = "updates/no_signal"
NOT_FINITE = "updates/not_finite"
SKIPPED = (NO_SIGNAL, NOT_FINITE)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenValues:
  """Values of tokens, which do not add up over micro-batches."""

  values_BT: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EngineDrift:
  """Sums of log-ratios that add up over micro-batches, from zeros."""

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


def measure_drift(
  log_ratio_BT: jax.Array,
  mask_BT: jax.Array,
  version_BT: jax.Array,
  version: jax.Array,
) -> EngineDrift:
  """Measures trained tokens that were sampled by `version`, the learner's.

  `log_ratio_BT` is policy over sampler; `version_BT` is from
  `train_batch.answer_versions`.
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
  """Returns the metrics; without a token on policy there is no drift."""
  count = float(drift.count)
  numbers = {"policy/on_policy_share": count / max(float(drift.trained), 1)}
  if count:
    numbers[DRIFT] = float(drift.total) / count
    numbers[f"{DRIFT}_max"] = float(drift.largest)
  return numbers


def measure_replay(
  has_BT: jax.Array, same_BT: jax.Array, mask_BT: jax.Array
) -> dict[str, losses.Mean]:
  """Measures trained tokens that are routed as the engine routed them.

  The arguments are from `token_logprobs.routed_states`.
  """
  has_BT, same_BT = map(jax.lax.stop_gradient, (has_BT, same_BT))
  return {
    "engine/router_replayed": losses.token_mean(has_BT, mask_BT),
    "engine/router_agreement": losses.token_mean(
      same_BT, mask_BT & (has_BT > 0)
    ),
  }


POLICY_SLOT = "policy/policy_slot"  # a task's name may follow
TRUNCATED = "policy/truncated"  # of weights held at CAP
# A single ratio of 400 makes the effective sample size of a thousand tokens
# 0.01 or so, though every loss but plain REINFORCE bounds its weight. Weights
# truncated at 2, the usual cap of truncated importance sampling (Ionides, 2008;
# verl's rollout correction), show how much the other tokens count.
CAP = 2.0


def measure_policy_slots(
  log_ratio_BT: jax.Array,
  batch: Batch,
  task_BT: jax.Array | np.ndarray | None,
  *,
  num_policy_slots: int,
  tasks: Mapping[str, int],
) -> dict[str, RatioMoments]:
  """Measures policy over sampler by policy slot, in total and by task.

  `tasks` maps the tasks' names to their numbers in `task_BT`.
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
  """Returns each policy slot's share of the tokens and its staleness.

  `name` is a key of `measure_policy_slots`; a task's name in it ends the names
  of the metrics.
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
    f"policy/{metric}/policy_slot{z}{task}": float(value)
    for metric, value_Z in by_policy_slot.items()
    for z, value in enumerate(np.asarray(value_Z))
  }


# What `launch.metrics` says of the learner's metrics.
MEANINGS = {
  "loss": "mean of the objective; of stage warm_start, nats per demonstrated "
  "token",
  "loss/held_out": "nats per token of the chats that a warm start holds out",
  "loss/<function>": "mean of a surrogate of your own",
  "success/<task>": "mean success of the batch's episodes, as sampled",
  "reward/mean": "mean reward of the batch's episodes",
  "reward/group_std": "standard deviation of the rewards of a group's "
  "attempts, mean over the batch's groups",
  "reward/collapsed": "1 while an alarm holds: groups have no signal, or "
  "nothing succeeds",
  "calls/collapsed": "1 while an alarm holds: no tool call can be read",
  "policy/collapsed": "1 while an alarm holds: the entropy is gone",
  "episode/<metric>/<task>": "mean of a metric that the environment or the "
  "agent reports at an episode's end",
  "calls/share_of_answers/<task>": "share of the answers with a tool call, "
  "where tools are offered",
  "calls/malformed/<task>": "share of the calls that cannot be read",
  "calls/unknown_tool/<task>": "share of the calls that name no tool",
  "calls/refused/<task>": "share of the calls whose arguments the tool's "
  "schema refuses",
  "answers/cut/<task>": "share of the answers that a number of tokens cut off",
  "advantage/mean/<task>": "mean advantage over the task's trained tokens, "
  "before they are normalised by task",
  "advantage/spread/<task>": "their standard deviation; where it is alike in "
  "all tasks there is nothing to normalise",
  "batch/trajectories": "episodes of the batch",
  "batch/trajectories_with_signal": "of these, those whose group has "
  "different rewards",
  "batch/turns": "turns of the batch's episodes",
  "batch/lines": "lines of tokens of the batch's episodes; with several "
  "agents there are more than episodes",
  "batch/trained_tokens": "sampled tokens that the loss is a mean over",
  "batch/left_out_tokens": "of these, those that are not computed: their "
  "advantage is 0 and no other term needs them",
  "batch/shared": "share of the trajectories' tokens that others share, so "
  "that they are computed once",
  "batch/fill": "share of the computed rows that is not padding",
  "policy/entropy": "nats per token",
  "policy/engine_drift": "nats per token by which engine and learner differ "
  "about tokens that the params in training sampled, mean",
  "policy/engine_drift_max": "the largest such difference, nats",
  "policy/on_policy_share": "share of the trained tokens that the drift is "
  "measured on",
  "policy/abs_log_ratio": "mean |log pi - log mu|, nats per token: the policy "
  "before the update against the one that sampled",
  "policy/kl_to_behavior": "KL(mu || pi) of these tokens (k3), nats per "
  "token; a few tokens may dominate it",
  "policy/ratio_outside_clip": "share of the tokens whose ratio is outside "
  "the clip's bounds",
  "policy/abs_log_ratio/policy_slot<k>": "policy/abs_log_ratio of the tokens "
  "of a policy slot; a task's name may follow",
  "policy/kl_to_behavior/policy_slot<k>": "policy/kl_to_behavior of a policy "
  "slot",
  "policy/share_of_tokens/policy_slot<k>": "share of the trained tokens that "
  "the policy slot sampled",
  "policy/effective_sample_size/policy_slot<k>": "effective sample size of "
  "the importance ratios, as a share of the policy slot's tokens; 1 on "
  "policy",
  "policy/truncated_sample_size/policy_slot<k>": "the same with ratios above "
  "2 set to 2, so that no single token dominates",
  "policy/importance_weight": "mean importance weight, with loss.importance",
  "policy/stale_failures": "share of the tokens that loss.stale_failures "
  "leaves out",
  "policy/token_weight": "mean weight, with loss.token_weight",
  "policy/reverse_kl": "mean log pi - log ref over the sampled tokens, with a "
  "KL term; nats per token",
  "policy/kl_to_reference": "the same by k3, which is never negative",
  "critic/loss": "loss of the critic",
  "critic/explained_variance": "share of the returns' variance that the "
  "critic explains; 1 is perfect",
  "engine/router_replayed": "share of the trained tokens whose experts came "
  "with the answer, with engine.router_replay",
  "engine/router_agreement": "of these tokens and all layers, share where the "
  "learner's router would choose the same experts",
  "expert_load": "tokens of the busiest expert over the mean, averaged over "
  "layers, of mixtures like GLM-4.5's",
  "gradient_norm": "norm of the gradient before clipping",
  "updates/no_signal": "skipped updates of the step whose gradient is exactly "
  "0",
  "updates/not_finite": "skipped updates of the step whose loss or gradient "
  "is not finite; five in a row end the run",
  "snapshots/written": "snapshots of weights written for rollout servers, "
  "since the start",
  "snapshots/skipped": "publications that were skipped, since writing takes "
  "longer than an update",
  "snapshots/lag": "updates published and not yet in the folder",
  "snapshots/write_s": "seconds that the last write took",
  "snapshots/stall_s": "seconds in all that the learner waited for the writer",
}
