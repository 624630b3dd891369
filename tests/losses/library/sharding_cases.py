"""The functions with statistics of a whole batch, and a batch for them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agentrl_jax import losses
from tests.losses.library import batches

B, T, N, U = 16, 32, 64, 4
NUM_GROUPS, NUM_TASKS, NUM_SEGMENTS, NUM_STATES = 12, 3, 3, 5
NUM_PAIRS = 16

Table = dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]


def table(seed: int) -> Table:
  """Name, function and arrays; all of them have B or N for a first axis."""
  return of_attempts(seed) | of_tokens(seed + 1) | of_ratios(seed + 2)


def of_attempts(seed: int) -> Table:
  """Functions of one number per trajectory, or per step of one."""
  x = batches.attempts(seed, N, NUM_GROUPS, NUM_TASKS)
  groups = (x["reward_N"], x["group_N"], x["valid_N"])
  success = (x["reward_N"] > 0.5, x["group_N"], x["valid_N"])
  tasks = (x["reward_N"], x["task_N"], x["num_tokens_N"], x["valid_N"])
  pairs = batches.pairs(seed, NUM_PAIRS)
  steps = batches.steps(seed, N, U, NUM_STATES)
  steps = (
    steps["reward_NU"],
    steps["state_NU"],
    x["group_N"],
    steps["valid_NU"],
  )

  def by_group(function, **settings):
    return lambda reward_N, group_N, valid_N: function(
      reward_N, group_N, num_groups=NUM_GROUPS, valid_N=valid_N, **settings
    )

  def by_state(function, **settings):
    return lambda x_NU, state_NU, group_N, valid_NU: function(
      x_NU,
      state_NU,
      group_N,
      num_groups=NUM_GROUPS,
      num_states=NUM_STATES,
      valid_NU=valid_NU,
      **settings,
    )

  def by_task(over):
    return functools.partial(
      losses.task_normalise_weighted, num_tasks=NUM_TASKS, over=over
    )

  def baseline(reward_N, group_N, valid_N, num_tokens_N):
    return losses.reinforce_plus_plus_baseline_advantage(
      reward_N, group_N, num_tokens_N, num_groups=NUM_GROUPS, valid_N=valid_N
    )

  return {
    "group_advantage": (by_group(losses.group_advantage), groups),
    "leave_one_out_advantage": (
      by_group(losses.leave_one_out_advantage),
      groups,
    ),
    "best_of_group_advantage": (
      by_group(losses.best_of_group_advantage),
      groups,
    ),
    "pass_at_k_advantage": (
      by_group(losses.pass_at_k_advantage, k=3),
      success,
    ),
    "max_at_k_advantage": (by_group(losses.max_at_k_advantage, k=3), groups),
    "group_has_signal": (by_group(losses.group_has_signal), groups),
    "group_std": (by_group(losses.group_std), groups),
    "keep_groups_above": (
      by_group(losses.keep_groups_above, threshold=0.45),
      groups,
    ),
    "keep_top_groups": (by_group(losses.keep_top_groups, share=0.5), groups),
    "keep_top_signal": (by_group(losses.keep_top_signal, share=0.9), groups),
    "keep_top_softmax": (by_group(losses.keep_top_softmax, share=0.7), groups),
    "gigpo_advantage": (by_state(losses.gigpo_advantage, discount=0.9), steps),
    "step_advantage": (by_state(losses.step_advantage), steps),
    "task_normalise_weighted": (by_task("tokens"), tasks),
    "task_normalise_weighted/trajectories": (by_task("trajectories"), tasks),
    "reinforce_plus_plus_baseline_advantage": (
      baseline,
      (*groups, x["num_tokens_N"]),
    ),
    "mutual_information": (_values(losses.mutual_information), pairs),
    "retrieval_accuracy": (_values(losses.retrieval_accuracy, k=4), pairs),
    "whiten_weighted": (
      losses.whiten_weighted,
      (x["reward_N"], x["num_tokens_N"], x["valid_N"]),
    ),
    "pair_mean": (
      lambda x_P, valid_P: losses.pair_mean(x_P, valid_P).value(),
      (x["reward_N"], x["valid_N"]),
    ),
  }


def of_tokens(seed: int) -> Table:
  """Functions of whole rows of tokens, or of all rows."""
  x = batches.tokens(seed, B, T, NUM_SEGMENTS, NUM_TASKS)
  values = (x["x_BT"], x["mask_BT"])
  packed = (*values, x["segment_BT"])
  tasks = (x["x_BT"], x["task_BT"], x["mask_BT"])
  episodes = (
    x["reward_BT"],
    x["value_BT"],
    x["mask_BT"],
    x["turn_BT"],
    x["segment_BT"],
  )

  def over_time(function, **settings):
    return lambda *episodes: function(
      *episodes[:-1], segment_BT=episodes[-1], **settings
    )

  def with_slope(reduction, **settings):
    """A mean's value, and its gradient in x."""

    def value(x_BT, mask_BT, *segment_BT):
      return reduction(x_BT, mask_BT, *segment_BT, **settings).value()

    return jax.value_and_grad(value)

  segments = {"num_segments": NUM_SEGMENTS}
  gae_lambda = {"discount": 0.95, "gae_lambda": 0.9}
  rewards = (x["reward_BT"], x["mask_BT"])
  return {
    "whiten": (losses.whiten, values),
    "task_normalise": (
      functools.partial(losses.task_normalise, num_tasks=NUM_TASKS),
      tasks,
    ),
    "measure_tasks": (_measured, tasks),
    "blend_moments": (_running, tasks),
    "normalise_by_moments": (_normalised, tasks),
    "gae": (
      over_time(losses.gae, **gae_lambda),
      (*episodes[:3], x["segment_BT"]),
    ),
    "discounted_returns": (
      over_time(losses.discounted_returns, discount=0.95),
      (*rewards, x["segment_BT"]),
    ),
    "reinforce_plus_plus_advantage": (
      over_time(losses.reinforce_plus_plus_advantage, discount=0.95),
      (*rewards, x["segment_BT"]),
    ),
    "turn_gae": (over_time(losses.turn_gae, **gae_lambda), episodes),
    "turn_returns": (
      over_time(losses.turn_returns, discount=0.95),
      (*rewards, x["turn_BT"], x["segment_BT"]),
    ),
    "bi_level_gae": (
      over_time(losses.bi_level_gae, turn_discount=0.9, **gae_lambda),
      episodes,
    ),
    "token_mean": (with_slope(losses.token_mean), values),
    "weighted_mean": (
      with_slope(losses.weighted_mean),
      (*values, np.abs(x["value_BT"])),
    ),
    "sequence_mean": (with_slope(losses.sequence_mean), values),
    "segment_mean": (with_slope(losses.segment_mean, **segments), packed),
    "sequence_sum_mean": (
      with_slope(losses.sequence_sum_mean, **segments),
      packed,
    ),
    "fixed_length_mean": (
      with_slope(losses.fixed_length_mean, length=T, **segments),
      packed,
    ),
    "task_weights": (
      functools.partial(losses.task_weights, num_tasks=NUM_TASKS),
      (x["task_BT"], x["mask_BT"]),
    ),
    "explained_variance": (
      lambda *rows: losses.explained_variance(*rows).value(),
      (x["value_BT"], x["return_BT"], x["mask_BT"]),
    ),
    "extremes": (losses.extremes, values),
  }


def of_ratios(seed: int) -> Table:
  """Functions of the log-probabilities of two policies."""
  x = batches.tokens(seed, B, T, NUM_SEGMENTS, NUM_TASKS)
  mask_BT = x["mask_BT"]
  ratio_BT = np.where(mask_BT, x["policy_BT"] - x["behavior_BT"], 0)
  ratios = (ratio_BT, mask_BT)
  log_probabilities = (x["policy_BT"], x["behavior_BT"], x["reference_BT"])
  batch = (*log_probabilities, x["x_BT"], mask_BT)

  def agentrl_loss(*batch, **settings):
    return losses.agentrl_loss(*batch, kl_coefficient=0.1, **settings).value()

  def by_version(log_ratio_BT, mask_BT, version_BT):
    moments = losses.ratio_moments(log_ratio_BT, mask_BT, version_BT, NUM_TASKS)
    return (
      moments.share(),
      moments.effective_sample_size(),
      moments.mean_weight(),
      moments.kl(),
      moments.kl_k1(),
      moments.abs_log_ratio(),
    )

  def clip_fractions(*rows):
    shares = losses.clip_fractions(
      *rows, clip_low=0.2, clip_high=0.2, dual_clip=1.5
    )
    return {name: share.value() for name, share in shares.items()}

  def normalised_weight(log_ratio_BT, mask_BT):
    weight_BT = losses.truncated_weight(log_ratio_BT, cap=1.5)
    mean = losses.token_mean(weight_BT, mask_BT)
    return losses.normalised_weight(weight_BT, mean)

  return {
    "agentrl_loss": (jax.value_and_grad(agentrl_loss), batch),
    "agentrl_loss/sequence": (
      jax.value_and_grad(
        functools.partial(
          agentrl_loss, num_segments=NUM_SEGMENTS, reduction="sequence"
        )
      ),
      (*batch, x["segment_BT"]),
    ),
    "ratio_moments": (by_version, (*ratios, x["task_BT"])),
    "clip_fractions": (clip_fractions, (ratio_BT, x["x_BT"], mask_BT)),
    "normalised_weight": (normalised_weight, ratios),
  }


def _values(function, **settings):
  """The values of the means that a function returns by name."""
  return lambda *arrays: {
    name: mean.value() for name, mean in function(*arrays, **settings).items()
  }


def _measured(x_BT, task_BT, mask_BT):
  return losses.measure_tasks(x_BT, task_BT, mask_BT, num_tasks=NUM_TASKS)


def _running(x_BT, task_BT, mask_BT):
  """Of two batches, the second with another mean."""
  running = _measured(x_BT, task_BT, mask_BT)
  batch = _measured(x_BT + 0.5, task_BT, mask_BT)
  return losses.blend_moments(running, batch, decay=0.5)


def _normalised(*tokens):
  return losses.normalise_by_moments(*tokens, _running(*tokens))
