"""Sums over micro-batches equal the results of the whole batch.

Each measure is taken of a batch of 23 rows at once, of its seven uneven parts,
of which one has no trained token, and of the same parts in a scan.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax import losses
from tests.losses.library import batches

NUM_ROWS, NUM_TOKENS, NUM_SEGMENTS, NUM_TASKS = 23, 16, 3, 3
# Row 11 has no trained token, and is the third part.
CUTS = (4, 11, 12, 14, 15, 21)
TOLERANCE = 1e-6

Batch = dict[str, jax.Array]
# What two parameters of a policy and critic move.
MOVED = ("x_BT", "policy_BT", "value_BT")
PARAMS = jnp.array([0.25, -0.5])


def whole_batch(seed: int) -> Batch:
  batch = batches.tokens(seed, NUM_ROWS, NUM_TOKENS, NUM_SEGMENTS, NUM_TASKS)
  # Weights belong to the whole batch: they are made before it is cut.
  weight_BT = losses.task_weights(
    batch["task_BT"], batch["mask_BT"], num_tasks=NUM_TASKS
  )
  return batch | {"weight_BT": np.asarray(weight_BT)}


def parts_of(batch: Batch) -> list[Batch]:
  columns = {name: np.split(x, CUTS) for name, x in batch.items()}
  return [
    dict(zip(columns, rows, strict=True))
    for rows in zip(*columns.values(), strict=True)
  ]


def padded(parts: list[Batch]) -> Batch:
  """The parts with equally many rows, one after the other."""
  num_rows = max(len(part["mask_BT"]) for part in parts)

  def pad(x_BT: np.ndarray) -> np.ndarray:
    rest = [(0, num_rows - len(x_BT)), (0, 0)]
    blank = np.nan if x_BT.dtype == np.float32 else 0
    return np.pad(x_BT, rest, constant_values=blank)

  return {
    name: np.stack([pad(part[name]) for part in parts]) for name in parts[0]
  }


def moved(params: jax.Array, batch: Batch) -> Batch:
  time_1T = jnp.arange(NUM_TOKENS)[None]
  step_BT = params[0] * jnp.sin(time_1T) + params[1] * jnp.cos(time_1T)
  return batch | {name: batch[name] + step_BT for name in MOVED}


def reduction(name: str, *arrays: str, **settings: Any) -> Callable:
  def measure(batch: Batch) -> losses.Mean:
    rows = (batch[array] for array in ("x_BT", "mask_BT", *arrays))
    return getattr(losses, name)(*rows, **settings)

  return measure


def agentrl_loss(batch: Batch, **settings: Any) -> losses.Mean:
  return losses.agentrl_loss(
    batch["policy_BT"],
    batch["behavior_BT"],
    batch["reference_BT"],
    batch["reward_BT"],
    batch["mask_BT"],
    batch["segment_BT"],
    NUM_SEGMENTS,
    kl_coefficient=0.1,
    **settings,
  )


def pairs(batch: Batch) -> losses.Mean:
  """One pair of each row, some of them padding."""
  return losses.pair_mean(batch["x_BT"][:, 0], batch["mask_BT"][:, 0])


def critic(batch: Batch) -> losses.Mean:
  mask_BT = batch["mask_BT"]
  loss_BT = losses.clipped_value_loss(
    batch["value_BT"], batch["x_BT"], batch["return_BT"], mask_BT, clip=0.5
  )
  return losses.token_mean(loss_BT, mask_BT)


def log_ratio(batch: Batch) -> jax.Array:
  return losses.log_ratio(
    batch["policy_BT"], batch["behavior_BT"], batch["mask_BT"]
  )


def ratio_moments(batch: Batch) -> losses.RatioMoments:
  return losses.ratio_moments(
    log_ratio(batch), batch["mask_BT"], batch["task_BT"], NUM_TASKS
  )


def clip_fractions(batch: Batch) -> dict[str, losses.Mean]:
  return losses.clip_fractions(
    log_ratio(batch),
    batch["x_BT"],
    batch["mask_BT"],
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=1.5,
  )


def explained_variance(batch: Batch) -> losses.ExplainedVariance:
  return losses.explained_variance(
    batch["value_BT"], batch["return_BT"], batch["mask_BT"]
  )


def extremes(batch: Batch) -> losses.Extremes:
  return losses.extremes(batch["x_BT"], batch["mask_BT"])


def task_moments(batch: Batch) -> losses.TaskMoments:
  return losses.measure_tasks(
    batch["x_BT"], batch["task_BT"], batch["mask_BT"], num_tasks=NUM_TASKS
  )


PACKED = {"num_segments": NUM_SEGMENTS}
LOSSES = {
  "token_mean": reduction("token_mean"),
  "weighted_mean": reduction("weighted_mean", "weight_BT"),
  "sequence_mean": reduction("sequence_mean"),
  "segment_mean": reduction("segment_mean", "segment_BT", **PACKED),
  "sequence_sum_mean": reduction("sequence_sum_mean", "segment_BT", **PACKED),
  "fixed_length_mean": reduction(
    "fixed_length_mean", "segment_BT", length=NUM_TOKENS, **PACKED
  ),
  "agentrl_loss": agentrl_loss,
  "agentrl_loss_by_sequence": functools.partial(
    agentrl_loss, reduction="sequence"
  ),
  "pair_mean": pairs,
  "clipped_value_loss": critic,
}
MEASURES = {
  "ratio_moments": ratio_moments,
  "clip_fractions": clip_fractions,
  "explained_variance": explained_variance,
  "extremes": extremes,
  "measure_tasks": task_moments,
}


def add(left: Any, right: Any) -> Any:
  if isinstance(left, Mapping):
    return {name: left[name] + right[name] for name in left}
  return left + right


def ask(measured: Any) -> Any:
  """The numbers that a run reports of a measure."""
  if isinstance(measured, Mapping):
    return {name: mean.value() for name, mean in measured.items()}
  if isinstance(measured, losses.RatioMoments):
    return [
      getattr(measured, question)()
      for question in (
        "share",
        "effective_sample_size",
        "mean_weight",
        "kl",
        "kl_k1",
        "abs_log_ratio",
      )
    ]
  return measured.value() if hasattr(measured, "value") else measured


def add_in_a_scan(measure: Callable, parts: Batch) -> Any:
  """Adds up in a scan, from the measure of a batch without trained tokens."""
  first = jax.tree.map(lambda x: x[0], parts)
  nothing = measure(first | {"mask_BT": jnp.zeros_like(first["mask_BT"])})
  return jax.lax.scan(
    lambda total, part: (add(total, measure(part)), None), nothing, parts
  )[0]


class MicroBatchesTest(parameterized.TestCase):
  @parameterized.parameters(*MEASURES)
  def test_measures_add_up(self, name):
    batch = whole_batch(seed=0)
    parts = parts_of(batch)
    self.assertLen(parts, 7)
    self.assertFalse(parts[2]["mask_BT"].any())
    measure = MEASURES[name]

    @jax.jit
    def three_ways(batch, parts, padded):
      parts = functools.reduce(add, map(measure, parts))
      scanned = add_in_a_scan(measure, padded)
      return ask(measure(batch)), ask(parts), ask(scanned)

    whole, in_parts, in_a_scan = three_ways(batch, parts, padded(parts))
    chex.assert_tree_all_finite(whole)
    chex.assert_trees_all_close(in_parts, whole, rtol=0, atol=TOLERANCE)
    chex.assert_trees_all_close(in_a_scan, whole, rtol=0, atol=TOLERANCE)

  @parameterized.parameters(*LOSSES)
  @pytest.mark.slow
  def test_losses_and_their_gradients_add_up(self, name):
    batch = whole_batch(seed=1)
    parts = parts_of(batch)

    @jax.value_and_grad
    def value(params, batch):
      return LOSSES[name](moved(params, batch)).value()

    @functools.partial(jax.value_and_grad, has_aux=True)
    def total_of(params, part):
      mean = LOSSES[name](moved(params, part))
      return mean.total, mean

    def mean_and_slope(part):
      """A Mean, and the gradient of its total, which is not yet divided."""
      (_, mean), slope = total_of(PARAMS, part)
      return mean, slope

    def divided(mean, slope):
      return mean.value(), slope / mean.weight

    @jax.jit
    def three_ways(batch, parts, padded):
      means, slopes = zip(*map(mean_and_slope, parts), strict=True)
      in_parts = functools.reduce(operator.add, means), sum(slopes)

      def step(sums, part):
        added = map(operator.add, sums, mean_and_slope(part))
        return tuple(added), None

      nothing = losses.Mean(jnp.zeros(()), jnp.zeros_like(means[0].weight))
      sums, _ = jax.lax.scan(step, (nothing, jnp.zeros_like(PARAMS)), padded)
      return value(PARAMS, batch), divided(*in_parts), divided(*sums)

    whole, in_parts, in_a_scan = three_ways(batch, parts, padded(parts))
    self.assertGreater(np.max(np.abs(whole[1])), 1e-3)
    chex.assert_trees_all_close(in_parts, whole, rtol=0, atol=TOLERANCE)
    chex.assert_trees_all_close(in_a_scan, whole, rtol=0, atol=TOLERANCE)

  @parameterized.parameters(
    {}, {"center": False}, {"scale": False}, {"epsilon": 0.1}
  )
  def test_tasks_are_normalised_by_the_moments_of_all_parts(self, **settings):
    batch = whole_batch(seed=2)
    names = ("x_BT", "task_BT", "mask_BT")

    @jax.jit
    def both_ways(batch, parts):
      moments = functools.reduce(add, map(task_moments, parts))
      normalised = [
        losses.normalise_by_moments(
          *(part[name] for name in names), moments, **settings
        )
        for part in parts
      ]
      whole_BT = losses.task_normalise(
        *(batch[name] for name in names), num_tasks=NUM_TASKS, **settings
      )
      return whole_BT, jnp.concatenate(normalised)

    whole_BT, in_parts_BT = both_ways(batch, parts_of(batch))
    np.testing.assert_allclose(in_parts_BT, whole_BT, rtol=0, atol=TOLERANCE)
