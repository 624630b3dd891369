"""Tests of learning curves: whose answers are drawn, and what they cost."""

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from studies.credit import archer as credit_archer
from studies.credit import exact as credit_exact
from studies.credit import learned as credit_learned
from studies.credit.archer import Point
from tests.studies.credit.exact_test import policy_of, rules_of
from tests.studies.credit.learned_test import episodes_of


def always(rules, call):
  """A policy that gives one call everywhere."""
  logit_UXA = np.full(rules.shape, -30.0)
  logit_UXA[..., call] = 30.0
  return credit_exact.TablePolicy(rules, logit_UXA)


class FreshAnswersTest(absltest.TestCase):
  def test_targets_of_v_are_about_the_present_policys_answers(self):
    """The turns were played by another one, which asked something else."""
    rules = rules_of("success")
    turns = credit_learned.recorded_turns(
      rules, episodes_of(policy_of(rules)), version=0
    )
    *_, fresh_WN = credit_learned.twin_batches(
      always(rules, 2),
      turns.at(np.arange(40)),
      steps=4,
      rng=np.random.default_rng(0),
    )
    np.testing.assert_array_equal(fresh_WN, 2)

  @pytest.mark.slow
  def test_v_is_the_value_of_the_present_policy_on_old_turns(self):
    """It guesses the first thing at once: right in one of three games."""
    rules = rules_of("success")
    guess = int(np.flatnonzero(rules.guess_A)[0])
    old = policy_of(rules)
    turns = credit_learned.recorded_turns(
      rules, episodes_of(old, attempts=3000), version=0
    )
    rng = np.random.default_rng(0)
    drawn = turns.at(rng.integers(len(turns), size=2000 * 128))
    batches = credit_learned.twin_batches(
      always(rules, guess), drawn, steps=2000, rng=rng
    )
    params, _, _ = credit_learned.fit_twins(
      credit_learned.new_twins(rules, seed=0), batches
    )
    first_N = np.zeros(1, int)
    input_NF = credit_learned.state_inputs(rules, first_N, first_N)
    _, v_2N = credit_learned.twin_outputs(params, input_NF, first_N)
    np.testing.assert_allclose(v_2N, 1 / 3, atol=0.05)
    self.assertGreater(abs(old.exact.value_UX[0, 0] - 1 / 3), 0.1)


class LearnTest(parameterized.TestCase):
  @parameterized.parameters(*credit_archer.ARMS)
  @pytest.mark.slow
  def test_every_arm_learns(self, arm):
    rules = rules_of("success")
    start = credit_exact.TablePolicy(rules, np.zeros(rules.shape))
    points = credit_archer.learn(
      start, arm, seed=0, attempts=40, learning_rate=0.1, updates=40
    )
    self.assertGreater(
      points[-1].expected_return, start.exact.expected_return + 0.15
    )
    self.assertEqual(points[-1].attempts, 40 * 40 * 3)

  @parameterized.parameters("success", "questions")
  def test_all_answers_are_counted(self, reward):
    rules = rules_of(reward)
    start = credit_exact.TablePolicy(rules, np.zeros(rules.shape))
    updates = credit_archer.WARM_UP + 2
    plain, archer = (
      credit_archer.learn(
        start, arm, seed=0, attempts=8, learning_rate=1e-9, updates=updates
      )[-1]
      for arm in ("grpo", "ArCHer")
    )
    of_critic = credit_archer.CRITIC_STEPS * credit_archer.TURNS * updates
    of_actor = 2 * 3 * credit_archer.ACTOR_TURNS
    self.assertEqual(archer.answers - plain.answers, of_critic + of_actor)

  def test_without_a_replay_no_turn_is_old(self):
    rules = rules_of("success")
    start = credit_exact.TablePolicy(rules, np.zeros(rules.shape))
    ages = {
      arm: credit_archer.learn(
        start, arm, seed=0, attempts=8, learning_rate=0.1, updates=8
      )[-1].age
      for arm in ("ArCHer", "ArCHer without replay")
    }
    self.assertEqual(ages["ArCHer without replay"], 0)
    self.assertBetween(ages["ArCHer"], 3.0, 4.0)

  @pytest.mark.slow
  def test_the_actors_gradient_leads_where_the_exact_one_does(self):
    """From turns of a policy that is another one by now."""
    rules = rules_of("success")
    learner = credit_archer.Archer(
      policy_of(rules), credit_archer.ArcherSettings(actor_steps=0), seed=0
    )
    present = policy_of(rules, seed=1)
    rng = np.random.default_rng(0)
    for policy in (policy_of(rules), *[present] * 150):
      holder = credit_archer._Policy(policy, 0.0)
      learner.update(holder, credit_exact.play(policy, attempts=20, rng=rng))
    gradient_UXA = np.mean(
      [learner.gradient(present) for _ in range(200)], axis=0
    )
    exact_UXA = present.exact.gradient_UXA
    cosine = np.vdot(gradient_UXA, exact_UXA) / (
      np.linalg.norm(gradient_UXA) * np.linalg.norm(exact_UXA)
    )
    self.assertGreater(cosine, 0.85)


class ReadingTest(absltest.TestCase):
  POINTS = (Point(8, 100, 0.1, 0.0), Point(16, 250, 0.2, 0.0))

  def test_reads_what_was_reached_by_then(self):
    attempts = [credit_archer.at_attempts(self.POINTS, n) for n in (15, 16)]
    answers = [
      credit_archer.at_answers(self.POINTS, n, 0.0) for n in (99, 249, 250)
    ]
    self.assertEqual((attempts, answers), ([0.1, 0.2], [0.0, 0.1, 0.2]))

  def test_a_curve_that_ended_before_says_nothing(self):
    self.assertTrue(np.isnan(credit_archer.at_answers(self.POINTS, 500, 0.0)))
