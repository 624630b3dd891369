"""Tests of `losses.advantages.turns`: returns and GAE over turns."""

import hypothesis
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.advantages.random_inputs import few_examples, random_episodes
from tests.losses.compiled import compiled, functions_of
from tests.reference.advantages import turns as reference

turns = functions_of(losses.advantages.turns)
discounted_returns, gae = map(compiled, (losses.discounted_returns, losses.gae))
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


class EveryGaeOfTurnsTest(parameterized.TestCase):
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

  @pytest.mark.slow
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


class TurnGaeTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_length_of_a_turn_and_place_of_its_reward_do_not_matter(self, seed):
    batch = random_episodes(seed)
    first_BT = reference.first_of_turn(
      batch.mask_BT, batch.turn_BT, segment_BT=batch.segment_BT
    )
    settings = DISCOUNTS | {"segment_BT": batch.segment_BT}
    advantage_BT, _ = turns.turn_gae(*batch[:4], **settings)
    # The same episodes, told by their turns' first tokens alone.
    total_BT = turns.turn_returns(
      *batch[:1], *batch[2:4], discount=0.0, segment_BT=batch.segment_BT
    )
    short_BT, _ = gae(total_BT, batch.value_BT, first_BT, **settings)
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


class TurnReturnsTest(parameterized.TestCase):
  @pytest.mark.slow
  def test_a_worked_example(self):
    # Turns of rewards 1, 0 and 2, the last in an episode of its own.
    return_BT = turns.turn_returns(
      np.array([[0.0, 1.0, 9.0, 4.0, -4.0, 2.0]]),
      np.array([[True, True, False, True, True, True]]),
      np.array([[5, 5, 0, 6, 6, 6]]),
      discount=0.5,
      segment_BT=np.array([[0, 0, 0, 0, 0, 1]]),
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
        turns.turn_returns(batch.reward_BT, *batch[2:4], **settings),
        0,
      ),
      np.where(
        first_BT,
        discounted_returns(batch.reward_BT, batch.mask_BT, **settings),
        0,
      ),
      atol=1e-5,
    )
