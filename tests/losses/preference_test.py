"""Tests of `losses.preference`: DPO, and SWEET-RL's form of it on turns."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import preference, ratios, reductions
from tests.losses.gradients import assert_gradient
from tests.losses.inputs import segment_ids
from tests.reference import preference as reference

B, T, NUM_SEGMENTS, NUM_TURNS, P = 3, 8, 2, 2, 5


def _tokens(seed: int):
  """NaN off the mask; the last row is all off."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.8
  mask_BT[-1] = False
  return np.where(mask_BT, rng.normal(size=(B, T)), np.nan), mask_BT


def _case(name: str, **settings):
  return (
    name,
    functools.partial(preference.implicit_reward, **settings),
    functools.partial(reference.implicit_reward, **settings),
  )


TURNS = dict(turn_BT=segment_ids(8, (B, T), NUM_TURNS), num_turns=NUM_TURNS)
PACKED = dict(
  segment_BT=segment_ids(9, (B, T), NUM_SEGMENTS), num_segments=NUM_SEGMENTS
)
ALL = (
  _case("dpo", average=False),
  _case("mean_of_tokens", average=True),
  _case("sweet_rl", average=True, **TURNS),
  _case("sum_of_turns", average=False, **TURNS),
  _case("packed_dpo", average=False, **PACKED),
  _case("packed_sweet_rl", average=True, **PACKED, **TURNS),
)


class ImplicitRewardTest(parameterized.TestCase):
  @parameterized.named_parameters(*ALL)
  def test_matches_reference_and_hides_nan(self, reward, expected):
    inputs = _tokens(seed=0)
    with jax.enable_x64(True):
      reward_BS, any_BS = jax.jit(reward)(*inputs)
    expected_BS, expected_any_BS = expected(*inputs)
    np.testing.assert_allclose(reward_BS, expected_BS, atol=1e-14)
    np.testing.assert_array_equal(any_BS, expected_any_BS)

  @parameterized.named_parameters(*ALL)
  def test_gradient_matches_finite_differences_and_hides_nan(
    self, reward, expected
  ):
    log_ratio_BT, mask_BT = _tokens(seed=1)
    assert_gradient(
      lambda x: jnp.square(reward(x, mask_BT)[0]).sum(),
      lambda x: np.square(expected(x, mask_BT)[0]).sum(),
      log_ratio_BT,
    )

  def test_over_all_tokens_the_sum_is_the_sequence_log_ratio(self):
    log_ratio_BT, mask_BT = _tokens(seed=2)
    for average in (False, True):
      reward_BS, _ = preference.implicit_reward(
        log_ratio_BT, mask_BT, average=average
      )
      np.testing.assert_allclose(
        np.where(mask_BT, reward_BS, 0),
        ratios.sequence_log_ratio(
          log_ratio_BT, mask_BT, average=average, limit=None
        ),
        rtol=1e-6,
      )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(length=st.integers(1, 6), x=st.floats(-3, 3, width=32))
  def test_the_length_of_a_turn_does_not_matter_to_sweet_rl(self, length, x):
    mask_BT = (np.arange(8) < length)[None] | (np.arange(8) == 7)[None]
    reward_BS, _ = preference.implicit_reward(
      np.where(np.arange(8) < 7, x, 1.0)[None].astype(np.float32),
      mask_BT,
      turn_BT=(np.arange(8) == 7).astype(np.int32)[None],
      num_turns=2,
      average=True,
    )
    np.testing.assert_allclose(reward_BS, [[x + 1]], atol=1e-5)

  @parameterized.parameters("turn", "segment")
  def test_refuses_several_without_ids(self, kind):
    given = {k: v for k, v in TURNS.items() if kind == "segment"}
    with self.assertRaisesRegex(ValueError, f"num_{kind}s=3 without {kind}_BT"):
      preference.implicit_reward(
        jnp.ones((B, T)),
        jnp.ones((B, T), bool),
        average=True,
        **given | {f"num_{kind}s": 3},
      )

  def test_refuses_a_mask_that_is_not_bool(self):
    with self.assertRaises(AssertionError):
      preference.implicit_reward(
        jnp.ones((B, T)), jnp.ones((B, T)), average=True
      )


def _pairs(seed: int):
  """NaN where invalid."""
  rng = np.random.default_rng(seed)
  valid_P = np.arange(P) != 2
  rewards = rng.normal(scale=3, size=(2, P))
  return *(np.where(valid_P, x_P, np.nan) for x_P in rewards), valid_P


SETTINGS = (
  ("dpo", dict(beta=0.1)),
  ("steep", dict(beta=2.0)),
  ("smoothed", dict(beta=0.5, label_smoothing=0.1)),
)


class PreferenceLossTest(parameterized.TestCase):
  @parameterized.named_parameters(*SETTINGS)
  def test_matches_reference_and_hides_nan(self, settings):
    pairs = _pairs(seed=0)
    loss = functools.partial(preference.preference_loss, **settings)
    with jax.enable_x64(True):
      loss_P = jax.jit(loss)(*pairs)
    np.testing.assert_allclose(
      loss_P, reference.preference_loss(*pairs, **settings), rtol=1e-13
    )

  @parameterized.named_parameters(*SETTINGS)
  def test_gradient_matches_finite_differences_and_hides_nan(self, settings):
    chosen_P, rejected_P, valid_P = _pairs(seed=1)

    def mean(rewards_2P):
      loss_P = preference.preference_loss(*rewards_2P, valid_P, **settings)
      return reductions.pair_mean(loss_P, valid_P).value()

    def expected(rewards_2P):
      loss_P = reference.preference_loss(*rewards_2P, valid_P, **settings)
      return loss_P[valid_P].mean()

    assert_gradient(mean, expected, np.stack([chosen_P, rejected_P]))

  def test_a_policy_like_its_reference_loses_one_bit(self):
    loss_P = preference.preference_loss(
      jnp.zeros(P), jnp.zeros(P), jnp.ones(P, bool), beta=0.3
    )
    np.testing.assert_allclose(loss_P, np.log(2), rtol=1e-6)

  def test_smoothing_has_an_optimum_to_stop_at(self):
    """The loss is least where sigmoid(beta m) is the share of right labels."""
    margin = np.log(0.9 / 0.1) / 0.5
    gradient_P = jax.grad(
      lambda m: preference.preference_loss(
        m, 0 * m, jnp.ones(1, bool), beta=0.5, label_smoothing=0.1
      ).sum()
    )(jnp.array([margin]))
    np.testing.assert_allclose(gradient_P, [0], atol=1e-7)

  @parameterized.parameters(-1e4, 1e4)
  def test_the_extremes_are_finite(self, margin):
    loss, gradient_P = jax.value_and_grad(
      lambda m: preference.preference_loss(
        m, 0 * m, jnp.ones(1, bool), beta=1.0
      ).sum()
    )(jnp.array([margin]))
    np.testing.assert_allclose(loss, max(-margin, 0))
    np.testing.assert_allclose(gradient_P, [-1.0 if margin < 0 else 0.0])

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_the_two_outcomes_are_all_there_is(self, seed):
    chosen_P, rejected_P, valid_P = _pairs(seed)
    loss = functools.partial(
      preference.preference_loss, valid_P=valid_P, beta=0.7
    )
    np.testing.assert_allclose(
      jnp.exp(-loss(chosen_P, rejected_P))
      + jnp.exp(-loss(rejected_P, chosen_P)),
      np.where(valid_P, 1, 2),
      rtol=1e-5,
    )

  @parameterized.parameters(
    (dict(beta=0), "beta=0 must be positive"),
    (dict(label_smoothing=0.5), "label_smoothing=0.5 must be at least 0 and"),
    (dict(label_smoothing=-0.1), "label_smoothing=-0.1"),
  )
  def test_refuses_settings_that_cannot_be_meant(self, changed, message):
    settings = dict(beta=0.1) | changed
    with self.assertRaisesRegex(ValueError, message):
      preference.preference_loss(*_pairs(seed=2), **settings)
