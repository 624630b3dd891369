"""Tests of `losses.diagnostics`: counts, and addition of parts."""

import functools

import chex
import hypothesis
import numpy as np
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.compiled import functions_of, grad

diagnostics = functions_of(losses.diagnostics)
policy_gradient = functions_of(losses.policy_gradient)
B, T, NUM_VERSIONS = 6, 7, 4
CLIP = dict(clip_low=0.2, clip_high=0.3, dual_clip=1.5)


def _batch(seed: int):
  """(log-ratio, advantage, version, mask), useless off the mask.

  Version 2 sampled nothing.
  """
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  arrays = rng.normal(scale=0.5, size=(2, B, T))
  version_BT = rng.choice(np.array([0, 1, 3], np.int32), size=(B, T))
  return (
    *(np.where(mask_BT, x_BT, np.nan) for x_BT in arrays),
    np.where(mask_BT, version_BT, -7).astype(np.int32),
    mask_BT,
  )


def _answers(moments):
  return np.stack(
    [
      moments.share(),
      moments.effective_sample_size(),
      moments.mean_weight(),
      moments.kl(),
      moments.kl_k1(),
      moments.abs_log_ratio(),
    ]
  )


class RatioMomentsTest(parameterized.TestCase):
  def test_on_policy_every_sample_counts(self):
    moments = diagnostics.ratio_moments(np.zeros((B, T)), np.ones((B, T), bool))
    np.testing.assert_array_equal(_answers(moments)[:, 0], [1, 1, 1, 0, 0, 0])

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(ratios=st.lists(st.floats(-20, 20), min_size=5, max_size=5))
  def test_the_effective_share_lies_between_one_sample_and_all(self, ratios):
    moments = diagnostics.ratio_moments(
      np.array([ratios]), np.ones((1, 5), bool)
    )
    share = moments.effective_sample_size().item()
    self.assertBetween(share, 1 / 5 - 1e-5, 1 + 1e-5)
    self.assertGreaterEqual(moments.kl().item(), 0)

  def test_versions_out_of_range_are_not_counted(self):
    moments = diagnostics.ratio_moments(
      np.ones((1, 4)), np.ones((1, 4), bool), np.array([[-1, 0, 1, 2]]), 2
    )
    np.testing.assert_array_equal(moments.count_Z, [1, 1])


class ClipFractionsTest(parameterized.TestCase):
  def test_counts_the_tokens_without_a_gradient(self):
    log_ratio_BT, advantage_BT, _, mask_BT = _batch(seed=5)
    fractions = diagnostics.clip_fractions(
      log_ratio_BT, advantage_BT, mask_BT, **CLIP
    )
    gradient_BT = grad(
      lambda x: policy_gradient.clipped_surrogate(x, advantage_BT, **CLIP).sum()
    )(log_ratio_BT)
    self.assertEqual(
      sum(mean.total.item() for mean in fractions.values()),
      (np.asarray(gradient_BT)[mask_BT] == 0).sum(),
    )


class ExtremesTest(parameterized.TestCase):
  def test_extremes_of_parts_are_those_of_the_whole(self):
    x_BT, _, _, mask_BT = _batch(seed=6)
    found = diagnostics.extremes(x_BT, mask_BT)
    np.testing.assert_allclose(found.low, x_BT[mask_BT].min(), rtol=1e-6)
    np.testing.assert_allclose(found.high, x_BT[mask_BT].max(), rtol=1e-6)
    parts = [
      diagnostics.extremes(x_BT[b : b + 1], mask_BT[b : b + 1])
      for b in range(B)
    ]
    chex.assert_trees_all_equal(
      functools.reduce(diagnostics.Extremes.__add__, parts), found
    )

  def test_nan_on_the_mask_is_not_hidden(self):
    found = diagnostics.extremes(
      np.array([[1.0, np.nan]]), np.ones((1, 2), bool)
    )
    self.assertTrue(np.isnan(found.low) and np.isnan(found.high))
