"""Tests of `losses.agentrl`: one function for AgentRL's objective."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import agentrl, policy_gradient, ratios, reductions
from tests.reference import agentrl as reference
from tests.reference import finite_difference

B, T = 5, 6
SEGMENTS = np.sort(
  np.random.default_rng(9).integers(0, 2, size=(B, T)), axis=1
).astype(np.int32)
SETTINGS = (
  ("as_released", {}),
  ("strong_divergence", dict(kl_coefficient=0.5)),
  ("of_sequences", dict(kl_coefficient=0.5, reduction="sequence")),
  (
    "of_packed_sequences",
    dict(
      kl_coefficient=0.5,
      reduction="sequence",
      segment_BT=SEGMENTS,
      num_segments=2,
    ),
  ),
  (
    "other_clip",
    dict(clip_low=0.1, clip_high=0.4, dual_clip=None, kl_coefficient=0.1),
  ),
)


def _batch(seed: int):
  """Logprobs of policy, behavior, reference; advantage; mask; NaN off it."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  behavior_BT = rng.normal(-2, 1, size=(B, T))
  policy_BT, reference_BT = behavior_BT + rng.normal(size=(2, B, T))
  advantage_BT = rng.normal(size=(B, T))
  arrays = (policy_BT, behavior_BT, reference_BT, advantage_BT)
  return *(np.where(mask_BT, x_BT, np.nan) for x_BT in arrays), mask_BT


class AgentRLLossTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*SETTINGS)
  def test_value_and_gradient_match_the_reference_and_hide_nan(self, settings):
    policy_BT, *rest = _batch(seed=0)

    def value(policy_BT):
      return agentrl.agentrl_loss(policy_BT, *rest, **settings).value()

    def expected(policy_BT):
      total, weight = reference.loss(policy_BT, *rest, **settings)
      return total / weight

    with jax.enable_x64(True):
      value, gradient_BT = self.variant(jax.value_and_grad(value))(policy_BT)
    policy_BT = np.nan_to_num(policy_BT)
    np.testing.assert_allclose(value, expected(policy_BT), rtol=1e-12)
    np.testing.assert_allclose(
      gradient_BT, finite_difference.gradient(expected, policy_BT), atol=1e-8
    )

  @parameterized.named_parameters(*SETTINGS[:3])
  def test_micro_batches_add_up_to_the_whole(self, settings):
    batch = _batch(seed=1)
    loss = functools.partial(agentrl.agentrl_loss, **settings)
    parts = [
      loss(*(x[rows] for x in batch))
      for rows in (slice(0, 1), slice(1, 4), slice(4, B))
    ]
    chex.assert_trees_all_close(
      functools.reduce(reductions.Mean.__add__, parts),
      loss(*batch),
      rtol=1e-5,
    )

  def test_without_a_reference_it_is_the_clipped_surrogate(self):
    policy_BT, behavior_BT, _, advantage_BT, mask_BT = _batch(seed=2)
    surrogate_BT = policy_gradient.clipped_surrogate(
      ratios.log_ratio(policy_BT, behavior_BT, mask_BT),
      advantage_BT,
      clip_low=0.2,
      clip_high=0.2,
      dual_clip=3.0,
    )
    chex.assert_trees_all_equal(
      agentrl.agentrl_loss(
        policy_BT, behavior_BT, None, advantage_BT, mask_BT, kl_coefficient=0
      ),
      reductions.token_mean(surrogate_BT, mask_BT),
    )

  def test_all_but_the_policy_is_constant(self):
    *arrays, mask_BT = _batch(seed=3)
    gradients = jax.grad(
      lambda *x: agentrl.agentrl_loss(arrays[0], *x, mask_BT).value(),
      argnums=(0, 1, 2),
    )(*arrays[1:])
    chex.assert_trees_all_equal(gradients, (jnp.zeros((B, T)),) * 3)

  @parameterized.parameters((B, False), (0, True))
  def test_nothing_trained_costs_nothing(self, num_rows, trained):
    x_BT = jnp.full((num_rows, T), jnp.nan)
    mask_BT = jnp.full((num_rows, T), trained)
    self.assertEqual(
      agentrl.agentrl_loss(x_BT, x_BT, x_BT, x_BT, mask_BT).value(), 0
    )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_on_policy_at_the_reference_it_is_reinforce(self, seed):
    policy_BT, _, _, advantage_BT, mask_BT = _batch(seed)
    gradient_BT = jax.grad(
      lambda x: agentrl.agentrl_loss(
        x, policy_BT, policy_BT, advantage_BT, mask_BT
      ).value()
    )(policy_BT)
    np.testing.assert_allclose(
      gradient_BT,
      np.where(mask_BT, -advantage_BT, 0) / mask_BT.sum(),
      atol=1e-6,
    )

  @parameterized.parameters(
    (dict(clip_low=0), "clip_low=0 must be"),
    (dict(dual_clip=0.5), "dual_clip=0.5 must be above 1"),
    (dict(kl_coefficient=-1), "kl_coefficient=-1 must be 0 or positive"),
    (dict(reduction="mean"), "reduction='mean' must be 'token' or 'sequence'"),
    (
      dict(reference_logprob_BT=None),
      "kl_coefficient=0.0001 must be 0 without reference_logprob_BT",
    ),
  )
  def test_refuses_settings_that_cannot_be_meant(self, changed, message):
    one_BT = jnp.ones((1, 1))
    with self.assertRaisesRegex(ValueError, message):
      agentrl.agentrl_loss(
        one_BT,
        one_BT,
        advantage_BT=one_BT,
        mask_BT=one_BT == 1,
        **dict(reference_logprob_BT=one_BT) | changed,
      )


if __name__ == "__main__":
  absltest.main()
