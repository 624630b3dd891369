"""Tests of `losses.advantages.turns`: returns and GAE over turns."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax.losses.advantages import turns
from agentrl_jax.losses.advantages.returns import discounted_returns, gae
from tests.losses.advantages.random_inputs import random_episodes
from tests.reference.advantages import turns as reference

few_examples = hypothesis.settings(
  deadline=None, database=None, max_examples=20
)
# For properties, of which many batches are tried: compiled once.
compiled_gae = jax.jit(gae, static_argnames=("discount", "gae_lambda"))
compiled_turn_gae = jax.jit(
  turns.turn_gae, static_argnames=("discount", "gae_lambda")
)
compiled_returns = jax.jit(discounted_returns, static_argnames="discount")
compiled_turn_returns = jax.jit(turns.turn_returns, static_argnames="discount")
DISCOUNTS = {"discount": 0.9, "gae_lambda": 0.8}
FUNCTIONS = parameterized.named_parameters(
  ("turn_gae", turns.turn_gae, reference.turn_gae, DISCOUNTS),
  (
    "bi_level_gae",
    turns.bi_level_gae,
    reference.bi_level_gae,
    DISCOUNTS | {"turn_discount": 0.7},
  ),
)


class EveryGaeOfTurnsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @FUNCTIONS
  def test_matches_reference_and_hides_nan(self, function, expected, settings):
    estimate = self.variant(functools.partial(function, **settings))
    for seed in range(3):
      batch = random_episodes(seed)
      for segment_BT in (batch.segment_BT, None):
        found = estimate(*batch[:4], segment_BT=segment_BT)
        wanted = expected(*batch[:4], segment_BT=segment_BT, **settings)
        for x_BT, expected_BT in zip(found, wanted, strict=True):
          self.assertGreater(np.abs(expected_BT).max(), 0.5)
          np.testing.assert_allclose(x_BT, expected_BT, rtol=1e-5, atol=1e-5)

  @FUNCTIONS
  def test_twelve_digits_in_float64(self, function, expected, settings):
    batch = random_episodes(seed=2)
    arguments = (batch.reward_BT / np.float64(3), *batch[1:4])
    with jax.enable_x64(True):
      found = function(*arguments, **settings)
    wanted = expected(*arguments, **settings)
    for x_BT, expected_BT in zip(found, wanted, strict=True):
      np.testing.assert_allclose(x_BT, expected_BT, rtol=1e-12, atol=1e-13)

  @FUNCTIONS
  def test_turns_of_one_token_are_tokens(self, function, _, settings):
    batch = random_episodes(seed=3)
    turn_BT = np.broadcast_to(np.arange(12), (5, 12))
    settings = settings | {"segment_BT": batch.segment_BT}
    found = function(*batch[:3], turn_BT, **settings)
    settings["discount"] = settings.pop("turn_discount", settings["discount"])
    wanted = gae(*batch[:3], **settings)
    for x_BT, expected_BT in zip(found, wanted, strict=True):
      np.testing.assert_allclose(x_BT, expected_BT, atol=1e-6)

  @FUNCTIONS
  def test_a_broken_reward_reaches_its_own_past_only(
    self, function, _, settings
  ):
    reward_BT = np.zeros((1, 8), np.float32)
    reward_BT[0, 4] = np.nan
    advantage_BT, return_BT = function(
      reward_BT,
      np.zeros((1, 8), np.float32),
      np.ones((1, 8), bool),
      np.array([[7, 7, 8, 8, 9, 9, 9, 9]]),
      segment_BT=np.array([[0, 0, 1, 1, 1, 1, 2, 2]]),
      **settings,
    )
    broken_BT = [[False] * 2 + [True] * 4 + [False] * 2]
    np.testing.assert_array_equal(np.isnan(advantage_BT), broken_BT)
    np.testing.assert_array_equal(np.isnan(return_BT), broken_BT)

  @FUNCTIONS
  def test_is_a_constant(self, function, _, settings):
    batch = random_episodes(seed=4)

    def total(reward_BT, value_BT):
      found = function(reward_BT, value_BT, *batch[2:4], **settings)
      return sum(jnp.sum(x_BT**2) for x_BT in found)

    for gradient_BT in jax.grad(total, argnums=(0, 1))(*batch[:2]):
      np.testing.assert_array_equal(gradient_BT, np.zeros((5, 12)))

  @FUNCTIONS
  def test_nothing_trained_gives_nothing(self, function, _, settings):
    for shape in ((0, 4), (2, 4)):
      nan_BT = jnp.full(shape, jnp.nan)
      for x_BT in function(
        nan_BT,
        nan_BT,
        jnp.zeros(shape, bool),
        jnp.zeros(shape, int),
        **settings,
      ):
        np.testing.assert_array_equal(x_BT, np.zeros(shape))

  @FUNCTIONS
  def test_refuses_what_cannot_be_meant(self, function, _, settings):
    zeros_BT, mask_BT = jnp.zeros((2, 3)), jnp.ones((2, 3), bool)
    turn_BT = jnp.zeros((2, 3), int)
    for name in settings:
      with self.assertRaisesRegex(ValueError, "=-1 must be from 0 to 1"):
        function(zeros_BT, zeros_BT, mask_BT, turn_BT, **settings | {name: -1})
    with self.assertRaises(AssertionError):
      function(zeros_BT, zeros_BT, mask_BT, turn_BT[0], **settings)
    with self.assertRaises(AssertionError):
      function(zeros_BT, zeros_BT, zeros_BT, turn_BT, **settings)


class TurnGaeTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_length_of_a_turn_and_place_of_its_reward_do_not_matter(self, seed):
    batch = random_episodes(seed)
    first_BT = reference.first_of_turn(
      batch.mask_BT, batch.turn_BT, segment_BT=batch.segment_BT
    )
    settings = DISCOUNTS | {"segment_BT": batch.segment_BT}
    advantage_BT, _ = compiled_turn_gae(*batch[:4], **settings)
    # The same episodes, told by their turns' first tokens alone.
    total_BT = compiled_turn_returns(
      *batch[:1], *batch[2:4], discount=0.0, segment_BT=batch.segment_BT
    )
    short_BT, _ = compiled_gae(total_BT, batch.value_BT, first_BT, **settings)
    np.testing.assert_allclose(
      np.where(first_BT, advantage_BT, 0), short_BT, atol=1e-5
    )


class BiLevelGaeTest(parameterized.TestCase):
  def test_one_turn_is_gae_with_the_reward_at_its_end(self):
    batch = random_episodes(seed=5)
    mask_BT = np.ones((5, 12), bool)
    reward_BT = np.zeros((5, 12), np.float32)
    reward_BT[:, -1] = [1, 0, -0.2, 0.3, 2]
    value_BT = np.where(batch.mask_BT, batch.value_BT, 0.1)
    found = turns.bi_level_gae(
      reward_BT,
      value_BT,
      mask_BT,
      np.zeros((5, 12), int),
      turn_discount=0.3,
      **DISCOUNTS,
    )
    for x_BT, expected_BT in zip(
      found, gae(reward_BT, value_BT, mask_BT, **DISCOUNTS), strict=True
    ):
      np.testing.assert_allclose(x_BT, expected_BT, atol=1e-5)


class TurnReturnsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_matches_reference_and_hides_nan(self):
    returns = self.variant(functools.partial(turns.turn_returns, discount=0.9))
    batch = random_episodes(seed=6)
    arguments = (batch.reward_BT, *batch[2:4])
    for segment_BT in (batch.segment_BT, None):
      np.testing.assert_allclose(
        returns(*arguments, segment_BT=segment_BT),
        reference.turn_returns(*arguments, discount=0.9, segment_BT=segment_BT),
        rtol=1e-5,
        atol=1e-5,
      )

  @pytest.mark.slow
  def test_a_worked_example(self):
    # Turns of rewards 1, 0 and 2, the last in an episode of its own.
    return_BT = turns.turn_returns(
      jnp.array([[0.0, 1.0, 9.0, 4.0, -4.0, 2.0]]),
      jnp.array([[True, True, False, True, True, True]]),
      jnp.array([[5, 5, 0, 6, 6, 6]]),
      discount=0.5,
      segment_BT=jnp.array([[0, 0, 0, 0, 0, 1]]),
    )
    np.testing.assert_array_equal(return_BT, [[1, 1, 0, 0, 0, 2]])

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_undiscounted_it_is_the_tokens_return_at_each_first(self, seed):
    batch = random_episodes(seed)
    settings = {"discount": 1.0, "segment_BT": batch.segment_BT}
    first_BT = turns.first_of_turn(*batch[2:4], segment_BT=batch.segment_BT)
    np.testing.assert_allclose(
      np.where(
        first_BT,
        compiled_turn_returns(batch.reward_BT, *batch[2:4], **settings),
        0,
      ),
      np.where(
        first_BT,
        compiled_returns(batch.reward_BT, batch.mask_BT, **settings),
        0,
      ),
      atol=1e-5,
    )


class FirstOfTurnTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_matches_reference(self, seed):
    batch = random_episodes(seed)
    for segment_BT in (batch.segment_BT, None):
      np.testing.assert_array_equal(
        turns.first_of_turn(*batch[2:4], segment_BT=segment_BT),
        reference.first_of_turn(*batch[2:4], segment_BT=segment_BT),
      )
