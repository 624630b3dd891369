"""Tests of `preference`: DPO, and SWEET-RL's form of it on turns."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import ratios, reductions
from studies.credit import preference

B, T, P = 3, 8, 5


def _tokens(seed: int):
  """NaN off the mask; the last row is all off."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.8
  mask_BT[-1] = False
  return np.where(mask_BT, rng.normal(size=(B, T)), np.nan), mask_BT


class ImplicitRewardTest(parameterized.TestCase):
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


def _pairs(seed: int):
  """NaN where invalid."""
  rng = np.random.default_rng(seed)
  valid_P = np.arange(P) != 2
  rewards = rng.normal(scale=3, size=(2, P))
  return *(np.where(valid_P, x_P, np.nan) for x_P in rewards), valid_P


class PreferenceLossTest(parameterized.TestCase):
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


class PairWithBestTest(parameterized.TestCase):
  @parameterized.parameters(*range(5))
  def test_has_the_pairs_of_the_released_code(self, seed):
    """By its arithmetic: k rows of attempts, a column for every task."""
    k, num_tasks = 3, 40
    rng = np.random.default_rng(seed)
    reward_KM = rng.choice([0.0, 0.2, 0.6, 1.0], size=(k, num_tasks))
    valid_KM = rng.random(reward_KM.shape) < 0.8  # it has no others
    expected = set()
    for task in range(num_tasks):
      column_K = np.where(valid_KM[:, task], reward_KM[:, task], -1)
      if column_K.max() >= 1:
        best = int(np.argmax(column_K))
        for attempt in range(k):
          if 0 <= column_K[attempt] < column_K.max():
            expected.add((num_tasks * best + task, num_tasks * attempt + task))
    chosen_N, pair_N = preference.pair_with_best(
      np.where(valid_KM, reward_KM, np.nan).ravel(),
      np.tile(np.arange(num_tasks), k),
      num_groups=num_tasks,
      valid_N=valid_KM.ravel(),
      lowest_chosen=1.0,
    )
    rejected = np.flatnonzero(pair_N)
    found = set(zip(np.asarray(chosen_N)[rejected], rejected, strict=True))
    self.assertEqual(found, expected)
    self.assertNotEmpty(expected)

  @parameterized.named_parameters(
    ("equals", [1.0, 1.0, 1.0], [0, 0, 0]),
    ("alone", [0.0, 0.5, 1.0], [0, 1, 2]),
    ("unknown_group", [0.0, 1.0, 1.0], [3, 3, -1]),
    ("nan", [0.0, 1.0, np.nan], [0, 0, 0]),
  )
  def test_without_pairs_loss_and_gradient_are_0(self, reward_N, group_N):
    """Rewards of trajectories that are NaN do not come through either."""
    chosen_N, pair_N = preference.pair_with_best(
      np.array(reward_N),
      np.array(group_N),
      num_groups=3,
      valid_N=np.ones(3, bool),
    )
    self.assertFalse(np.any(pair_N))

    def loss(x_N):
      loss_N = preference.preference_loss(x_N[chosen_N], x_N, pair_N, beta=0.1)
      return reductions.pair_mean(loss_N, pair_N).value()

    for x_N in (np.ones(3), np.full(3, np.nan)):
      value, gradient_N = jax.value_and_grad(loss)(x_N)
      self.assertEqual(value, 0)
      np.testing.assert_array_equal(gradient_N, np.zeros(3))


class PairHalvesTest(parameterized.TestCase):
  @parameterized.parameters(*range(3))
  def test_has_the_pairs_of_the_released_code(self, seed):
    """All that it may draw: places of an argsort, then put in order."""
    score_K = np.random.default_rng(seed).normal(size=16)
    order = np.argsort(score_K)
    expected = set()
    for one in order[:8]:
      for other in order[8:]:
        pair = (one, other) if score_K[one] > score_K[other] else (other, one)
        expected.add(pair)
    score_K = np.append(score_K, [np.nan] * 3)  # of answers that are not there
    (found_KK,) = preference.pair_halves(
      score_K[None], np.isfinite(score_K)[None]
    )
    self.assertEqual(
      set(zip(*np.nonzero(np.asarray(found_KK)), strict=True)), expected
    )

  def test_a_score_of_nan_leaves_its_turn_without_pairs(self):
    score_NK = np.array([[0.0, 1.0, np.nan, 2.0], [0.0, 1.0, 3.0, 2.0]])
    pair_NKK = preference.pair_halves(score_NK, np.ones((2, 4), bool))
    np.testing.assert_array_equal(pair_NKK.sum(axis=(1, 2)), [0, 4])


def _turns(seed: int):
  """Two attempts of three turns; log-probabilities of policy and reference."""
  rng = np.random.default_rng(seed)
  turn_BT = np.array([[0, 0, 1, 2, 2, 2], [0, 1, 1, 1, 2, 2]], np.int32)
  policy_BT, reference_BT = -rng.gamma(2.0, 0.5, size=(2, *turn_BT.shape))
  return turn_BT, policy_BT, reference_BT


class SweetRLTest(parameterized.TestCase):
  def _loss(self, policy_BT, reference_BT, **turns):
    mask_BT = np.ones(policy_BT.shape, bool)
    reward_BS, any_BS = preference.implicit_reward(
      policy_BT - reference_BT, mask_BT, average=True, **turns
    )
    return preference.preference_loss(
      reward_BS[0], reward_BS[1], any_BS[0] & any_BS[1], beta=0.1
    )[0]

  @parameterized.parameters(*range(3))
  def test_is_the_papers_loss_of_sums_over_turns(self, seed):
    """Means of turns, summed, and Bradley-Terry."""
    turn_BT, policy_BT, reference_BT = _turns(seed)
    ratio_BT = policy_BT - reference_BT
    chosen, rejected = (
      sum(ratio_BT[b][turn_BT[b] == u].mean() for u in range(3)) for b in (0, 1)
    )
    margin = 0.1 * (chosen - rejected)
    slope_BT = [
      sign * -0.1 / (1 + np.exp(margin)) / np.bincount(turn_T)[turn_T]
      for sign, turn_T in zip((1, -1), turn_BT, strict=True)
    ]
    with jax.enable_x64(True):
      loss, gradient_BT = jax.value_and_grad(self._loss)(
        policy_BT, reference_BT, turn_BT=turn_BT, num_turns=3
      )
    np.testing.assert_allclose(loss, np.log1p(np.exp(-margin)), rtol=1e-12)
    np.testing.assert_allclose(gradient_BT, slope_BT, rtol=1e-10)

  @parameterized.parameters(*range(3))
  def test_without_turns_it_is_the_released_codes_mean(self, seed):
    """Sums over all tokens divided by their number, DPO's loss."""
    _, policy_BT, reference_BT = _turns(seed)
    chosen, rejected = (policy_BT - reference_BT).mean(1)
    with jax.enable_x64(True):
      loss = self._loss(policy_BT, reference_BT)
    expected = np.log1p(np.exp(-0.1 * (chosen - rejected)))
    np.testing.assert_allclose(loss, expected, rtol=1e-12)

  def test_packed_attempts_have_the_rewards_of_rows_of_their_own(self):
    turn_BT, policy_BT, _ = _turns(seed=5)
    apart, together = (
      preference.implicit_reward(
        policy_BT.reshape(shape),
        np.ones(shape, bool),
        segment_BT,
        num_segments=num_segments,
        turn_BT=turn_BT.reshape(shape),
        num_turns=3,
        average=True,
      )[0]
      for shape, segment_BT, num_segments in (
        ((2, 6), None, 1),
        ((1, 12), np.repeat([[0, 1]], 6, axis=1), 2),
      )
    )
    np.testing.assert_allclose(together[0], apart[:, 0], rtol=1e-6)

  def test_turns_as_segments_have_the_advantages_of_each(self):
    turn_BT, policy_BT, reference_BT = _turns(seed=4)
    ratio_BT = policy_BT - reference_BT
    advantage_BU, _ = preference.implicit_reward(
      ratio_BT,
      np.ones(turn_BT.shape, bool),
      turn_BT,
      num_segments=3,
      average=True,
    )
    expected_BU = [
      [ratio_BT[b][turn_BT[b] == u].mean() for u in range(3)] for b in (0, 1)
    ]
    np.testing.assert_allclose(advantage_BU, expected_BU, rtol=1e-5)
