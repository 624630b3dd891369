"""Tests of learned critics: what they see, what they learn, what they may not.

On a game of three things, of which every value is known.
"""

import jax
import numpy as np
import pytest
from absl.testing import parameterized

from studies.credit import exact as credit_exact
from studies.credit import learned as credit_learned
from studies.credit.estimators import Batch
from studies.credit.scores import score_by
from tests.studies.credit.exact_test import policy_of, rules_of

SEES = ("nothing", "secret", "random secret")


def episodes_of(policy, *, attempts=8, parts=4, seed=0):
  rng = np.random.default_rng(seed)
  return credit_exact.join(
    [
      credit_exact.play(policy, attempts=attempts, rng=rng)
      for _ in range(parts)
    ]
  )


def changed_to(episodes, **columns):
  fields = {name: getattr(episodes, name) for name in vars(episodes)}
  return credit_exact.Episodes(**fields | columns)


class SeenSecretTest(parameterized.TestCase):
  def test_a_random_secret_is_alike_in_its_group_and_tells_nothing(self):
    """Each secret is paired with all: a shift by one would be its name."""
    episodes = episodes_of(policy_of(rules_of("success")), parts=400)
    rng = np.random.default_rng(0)
    random_N = credit_learned.seen_secret(episodes, "random secret", rng)
    _, first = np.unique(episodes.group_N, return_index=True)
    np.testing.assert_array_equal(random_N, random_N[first][episodes.group_N])
    together = np.zeros((3, 3))
    np.add.at(together, (episodes.secret_N[first], random_N[first]), 1 / 1200)
    np.testing.assert_allclose(together, 1 / 9, atol=0.03)

  def test_a_critic_that_sees_nothing_has_the_same_inputs_for_all_secrets(self):
    rules = rules_of("success")
    episodes = episodes_of(policy_of(rules))
    rng = np.random.default_rng(0)
    seen_N = credit_learned.seen_secret(episodes, "nothing", rng)
    input_NUF = credit_learned.inputs_of(rules, episodes, seen_N)
    other = changed_to(episodes, secret_N=(episodes.secret_N + 1) % 3)
    np.testing.assert_array_equal(
      input_NUF, credit_learned.inputs_of(rules, other, seen_N)
    )
    self.assertFalse(input_NUF[..., -3:].any())


class ValueTest(parameterized.TestCase):
  @parameterized.parameters("success", "questions")
  @pytest.mark.slow
  def test_learns_the_values_that_it_can_see(self, reward):
    """With many episodes: V(h), and V(h | c) if it sees the secret."""
    policy = policy_of(rules_of(reward))
    episodes = episodes_of(policy, attempts=3000)
    batch = Batch(policy, episodes_of(policy, seed=1), seed=0)
    for sees, critic in (("nothing", "exact"), ("secret", "secret")):
      fitted = credit_learned.fit_value(
        policy, episodes, sees=sees, gae_lambda=0.0, steps=2000, seed=0
      )
      exact_NUK = credit_learned.with_values(
        batch,
        batch.values(critic),
        credit_learned.critic_config("turn_gae", 0.0),
      )
      played = batch.episodes.played_NU
      error = (fitted.advantages(batch) - exact_NUK)[played]
      self.assertLess(np.abs(error).mean(), 0.06)

  @pytest.mark.slow
  def test_the_secret_is_read_where_it_is_given(self):
    """A random one is worth no more than none."""
    policy = policy_of(rules_of("success"))
    episodes = episodes_of(policy, attempts=3000)
    batch = Batch(policy, episodes_of(policy, seed=1), seed=0)
    ranks = {}
    for sees in SEES:
      fitted = credit_learned.fit_value(
        policy, episodes, sees=sees, gae_lambda=0.0, steps=1000, seed=0
      )
      ranks[sees] = score_by(fitted.advantages, [batch]).secret.rank
    self.assertGreater(ranks["secret"], ranks["nothing"] + 0.1)
    self.assertGreater(ranks["secret"], ranks["random secret"] + 0.1)


class PreferenceTest(parameterized.TestCase):
  @parameterized.parameters(*SEES)
  def test_without_pairs_the_critic_knows_nothing(self, sees):
    """Equal rewards, and groups of one: zeros, and no NaN."""
    policy = policy_of(rules_of("success"))
    for attempts, scale in ((8, 0.0), (1, 1.0)):
      episodes = episodes_of(policy, attempts=attempts)
      episodes = changed_to(episodes, reward_NU=scale * episodes.reward_NU)
      self.assertEmpty(credit_learned.attempt_pairs(episodes)[0])
      fitted = credit_learned.fit_preference(
        policy, episodes, sees=sees, steps=20, seed=0
      )
      batch = Batch(policy, episodes_of(policy, seed=1), seed=0)
      np.testing.assert_allclose(fitted.advantages(batch), 0, atol=1e-6)

  def test_pairs_are_of_one_group_and_the_better_one_is_preferred(self):
    episodes = episodes_of(policy_of(rules_of("questions")), parts=9)
    chosen_P, rejected_P = credit_learned.attempt_pairs(episodes)
    reward_N = episodes.reward_NU.sum(axis=1)
    self.assertNotEmpty(chosen_P)
    np.testing.assert_array_equal(
      episodes.group_N[chosen_P], episodes.group_N[rejected_P]
    )
    self.assertTrue((reward_N[chosen_P] > reward_N[rejected_P]).all())

  @parameterized.parameters("success", "questions")
  @pytest.mark.slow
  def test_ranks_calls_as_they_deserve(self, reward):
    """And an estimate of a wrong sign would be seen."""
    policy = policy_of(rules_of(reward))
    fitted = credit_learned.fit_preference(
      policy, episodes_of(policy, parts=400), sees="nothing", steps=60, seed=0
    )
    batch = Batch(policy, episodes_of(policy, attempts=40, seed=1), seed=0)
    found = score_by(fitted.advantages, [batch])
    self.assertGreater(found.marginal.rank, 0.5)
    self.assertGreater(found.cosine_turns, 0.7)

  @pytest.mark.slow
  def test_with_the_secret_a_guess_depends_on_it(self):
    """The critic would win if it played: it may not be the policy."""
    policy = policy_of(rules_of("success"))
    params = credit_learned.preference_critic(
      policy, episodes_of(policy, parts=400), sees="secret", steps=600, seed=0
    )
    rules = policy.rules
    guess_C = np.flatnonzero(rules.guess_A)
    secret_N = np.repeat(np.arange(3), 3)
    history_F = credit_learned.history_inputs(rules)[0, 0]
    secret_NC = credit_learned.secret_inputs(rules, secret_N, (9,))
    input_NF = np.concatenate(
      [np.broadcast_to(history_F, (9, len(history_F))), secret_NC], axis=1
    )
    advantage_N1 = credit_learned.preference_advantages(
      params,
      policy,
      input_NF[:, None],
      np.zeros((9, 1), int),
      np.zeros((9, 1), int),
      np.tile(guess_C, 3)[:, None],
    )
    best_C = advantage_N1.reshape(3, 3).argmax(axis=1)
    np.testing.assert_array_equal(best_C, np.arange(3))


class ArcherTest(parameterized.TestCase):
  @parameterized.parameters("success", "questions")
  @pytest.mark.slow
  def test_learns_the_advantage_of_the_policy(self, reward):
    policy = policy_of(rules_of(reward))
    fitted = credit_learned.fit_archer(
      policy, episodes_of(policy, attempts=3000), steps=500, seed=0
    )
    self.assertEqual(fitted.fresh_answers, 500 * credit_learned.TURNS)
    batch = Batch(policy, episodes_of(policy, seed=1), seed=0)
    found = score_by(fitted.advantages, [batch])
    self.assertGreater(found.marginal.rank, 0.7)
    self.assertGreater(found.cosine_turns, 0.9)

  @pytest.mark.slow
  def test_slow_copies_do_not_move_by_gradients(self):
    policy = policy_of(rules_of("success"))
    rules = policy.rules
    turns = credit_learned.recorded_turns(rules, episodes_of(policy), version=0)
    batches = credit_learned.twin_batches(
      policy, turns.at(np.arange(40)), steps=1, rng=np.random.default_rng(0)
    )
    critic = credit_learned.new_twins(rules, seed=0)
    params, slow, _ = credit_learned.fit_twins(critic, batches)
    for before, after, moved in zip(
      *(jax.tree.leaves(x) for x in (critic[1], params, slow)), strict=True
    ):
      expected = before + credit_learned.POLYAK * (after - before)
      np.testing.assert_allclose(moved, expected, atol=1e-6)
