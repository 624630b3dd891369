"""Adaptive weights follow their formula and stay within their bounds."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.controller import policy_slot_weights as weighting
from agentrl_jax.controller.policy_slot_weights import (
  PolicySlotWeightsConfig,
  credit_of,
)
from agentrl_jax.data.records import Group, Status, Task, Trajectory, Turn
from agentrl_jax.errors import CheckpointError, ConfigError
from configs.base import defaults

PRIOR = np.array([0.6, 0.4])


def a_config(**changes):
  free = {"rule": "adaptive", "min_sample_size": 0.0, "floor": 0.0}
  return defaults(
    PolicySlotWeightsConfig, "policy_slot_weights", **free | changes
  )


def evidence(*, draws, credit=0.0, kl=0.0, inverse=1.0, tokens=5.0):
  """Makes evidence of means per policy slot, in the shape of `draws`."""
  draws = np.atleast_2d(np.asarray(draws, float))

  def total(mean):
    return np.broadcast_to(np.asarray(mean, float), draws.shape) * draws

  return weighting.Evidence(
    attempts=weighting.EpisodeSums(
      draws=draws, credit=total(credit), successes=draws, tokens=total(tokens)
    ),
    drift=weighting.Drift(draws=draws, kl=total(kl), inverse=total(inverse)),
    version=np.zeros(draws.shape[1], int),
  )


def weights(observed, prior=PRIOR, **changes):
  config = a_config(**changes)
  estimates = weighting.estimate(observed, prior_draws=config.prior_draws)
  return weighting.weigh(estimates, prior, config)


class WeightsTest(parameterized.TestCase):
  def test_no_data_is_the_prior(self):
    weight_NZ = weights(weighting.no_evidence(3, 2))
    np.testing.assert_allclose(weight_NZ, np.tile(PRIOR, (3, 1)), rtol=1e-15)

  def test_the_formula_itself(self):
    observed = evidence(
      draws=[300, 100], credit=[0.0, 0.08], kl=[0.01, 0.03], tokens=4
    )

    mean = 8.0 / 400
    gain = np.array(
      [-300 * mean / 350, (8 - 100 * mean) / 150]
    ) - 2.0 * np.array([3 / 350, 3 / 150])
    expected = PRIOR * np.exp(gain / 0.1)
    np.testing.assert_allclose(
      weights(observed, prior_draws=50.0, kl_cost=2.0, temperature=0.1)[0],
      expected / expected.sum(),
    )

  def test_a_policy_slot_that_helps_gains_and_one_that_harms_loses(self):
    for credit, sign in (([0, 0.1], 1), ([0, -0.1], -1)):
      gained = weights(evidence(draws=[500, 500], credit=credit))[0, 1] - 0.4
      self.assertGreater(sign * gained, 0.1)

  def test_a_policy_slot_far_from_the_policy_loses(self):
    near, far = (
      evidence(draws=[500, 500], kl=[0.001, kl]) for kl in (0.002, 0.2)
    )
    self.assertLess(weights(far)[0, 1], 0.05)
    self.assertAlmostEqual(weights(near)[0, 1], 0.4, delta=0.01)
    self.assertAlmostEqual(weights(far, kl_cost=0.0)[0, 1], 0.4)

  def test_few_observations_do_not_decide(self):
    many = weights(evidence(draws=[1000, 1000], credit=[0, 0.3]))[0, 1]
    few = weights(evidence(draws=[3, 3], credit=[0, 0.3]))[0, 1]
    self.assertGreater(many, 0.8)
    self.assertAlmostEqual(few, 0.4, delta=0.05)

  def test_a_task_without_data_takes_what_the_others_say(self):
    weight_NZ = weights(evidence(draws=[[400, 400], [0, 0]], credit=[0, 0.2]))
    self.assertGreater(weight_NZ[1, 1], 0.55)
    self.assertAlmostEqual(weight_NZ[0, 1], weight_NZ[1, 1])

  def test_a_hard_task_and_an_easy_one_have_weights_of_their_own(self):
    draws, credit = np.full((2, 2), 2000), [[0, 0.2], [0, -0.2]]
    weight_NZ = weights(evidence(draws=draws, credit=credit))
    self.assertGreater(weight_NZ[0, 1], 0.8)
    self.assertLess(weight_NZ[1, 1], 0.1)

  def test_one_policy_slot_alone(self):
    weight_NZ = weights(
      evidence(draws=[50.0], credit=0.3, inverse=9.0),
      np.array([2.0]),
      min_sample_size=0.9,
      floor=0.1,
    )
    np.testing.assert_allclose(weight_NZ, [[1.0]])

  def test_a_policy_slot_of_prior_weight_0_is_not_drawn(self):
    weight_NZ = weights(
      evidence(draws=[9, 9, 9], credit=[0, 0, 1]),
      np.array([1.0, 1.0, 0.0]),
      floor=0.1,
    )
    self.assertEqual(weight_NZ[0, 2], 0.0)
    self.assertAlmostEqual(weight_NZ.sum(), 1.0)

  def test_the_floor(self):
    weight_NZ = weights(evidence(draws=[900, 900], credit=[0, -1.0]), floor=0.1)
    np.testing.assert_allclose(weight_NZ, [[0.9, 0.1]])
    weight_NZ = weights(evidence(draws=[9, 9], credit=[0, -0.01]), floor=0.1)
    self.assertGreater(weight_NZ[0, 1], 0.3)

  def test_just_as_far_towards_fresh_as_the_sample_size_asks_for(self):
    observed = evidence(draws=[1e9, 1e9], inverse=[1.0, 4.0], tokens=[1.0, 3.0])
    weight = weights(observed, min_sample_size=0.5)[0]
    # (w0 + 3 w1) / (w0 + 12 w1) = 1/2 at w1 = 1/7.
    np.testing.assert_allclose(weight, [6 / 7, 1 / 7], rtol=1e-6)
    weight = weights(observed, min_sample_size=0.3)[0]
    np.testing.assert_allclose(weight, PRIOR, rtol=1e-6)

  def test_fresh_tokens_of_little_use_do_not_push_away_better_ones(self):
    observed = evidence(draws=[1e9, 1e9], inverse=[4.0, 2.0])
    weight = weights(observed, min_sample_size=0.8)[0]
    np.testing.assert_allclose(weight, PRIOR, rtol=1e-6)

  @parameterized.parameters(range(8))
  @pytest.mark.slow
  def test_bounds_hold_whatever_was_seen(self, seed):
    draw = np.random.default_rng(seed)
    for _ in range(100):
      num_tasks, num_policy_slots = draw.integers(1, 5, 2)
      shape = (num_tasks, num_policy_slots)
      observed = evidence(
        draws=draw.exponential(300, shape) * (draw.random(shape) < 0.8),
        credit=draw.uniform(-1, 1, shape),
        kl=draw.exponential(0.1, shape),
        inverse=1 + draw.exponential(3, shape),
        tokens=draw.exponential(30, shape),
      )
      prior_Z = draw.uniform(0.1, 1, num_policy_slots)
      config = a_config(
        floor=draw.uniform(0, prior_Z.min() / prior_Z.sum()),
        min_sample_size=draw.uniform(0, 1),
        temperature=draw.exponential(0.1) + 1e-4,
        kl_cost=draw.exponential(),
      )
      estimates = weighting.estimate(observed, prior_draws=30.0)
      weight_NZ = weighting.weigh(estimates, prior_Z, config)
      self.assertTrue((weight_NZ >= 0).all())
      np.testing.assert_allclose(weight_NZ.sum(1), 1)
      bound_N = np.minimum(config.min_sample_size, 1 / estimates.inverse[:, 0])
      useful_N = weighting.sample_size(weight_NZ, estimates)
      self.assertTrue((useful_N >= bound_N * (1 - 1e-9)).all())
      unbound = dataclasses.replace(config, min_sample_size=0.0)
      weight_NZ = weighting.weigh(estimates, prior_Z, unbound)
      self.assertTrue((weight_NZ >= config.floor * (1 - 1e-9)).all())


class ConfigTest(parameterized.TestCase):
  @parameterized.parameters(
    ({"rule": "greedy"}, "'greedy' is not one of fixed, adaptive"),
    ({"temperature": 0.0}, "temperature=0.0 must be above 0"),
    ({"prior_draws": 0.0}, "prior_draws=0.0 must be above 0"),
    ({"kl_cost": -1.0}, "kl_cost=-1.0"),
    ({"floor": 1.5}, "floor=1.5 must be from 0 to 1"),
    ({"memory": float("nan")}, "memory=nan"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      a_config(**changes)


TASKS = {"a": 0, "b": 1}


def a_turn(policy_slot, *, version=0, tokens=2):
  ids = np.zeros(tokens, np.int32)
  real = np.zeros(tokens, np.float32)
  return Turn(
    ids, ids, real, real, ids + np.int32(version), policy_slot=policy_slot
  )


def a_group(*members, task="a"):
  """Makes a group of members, each (reward, policy slots of its turns)."""
  played = tuple(
    Trajectory(
      Task(task, "train", 0),
      "g",
      n,
      n,
      tuple(turn if isinstance(turn, Turn) else a_turn(turn) for turn in turns),
      Status.COMPLETED,
      float(reward),
    )
    for n, (reward, turns) in enumerate(members)
  )
  return Group("g", played[0].task, played)


def count(groups, *, per_turn=True, exploration=0.0):
  return weighting.count_episodes(
    groups, TASKS, 2, per_turn=per_turn, exploration=exploration
  )


def metrics(policy_slot=1, task="a", *, share=0.5, kl=0.1, sample_size=0.8):
  where = f"policy_slot{policy_slot}/{task}"
  return {
    f"policy/share_of_tokens/{where}": share,
    f"policy/kl_to_behavior/{where}": kl,
    f"policy/effective_sample_size/{where}": sample_size,
  }


class CreditTest(parameterized.TestCase):
  @parameterized.parameters(
    ([1, 0, 0], 0.0, [1, -0.5, -0.5]),
    ([1, 1, 0], 0.0, [0.5, 0.5, -1]),
    ([1, 0, 0], 1.0, [1, 0, 0]),
    ([1, 1, 0], 1.0, [0, 0, 0]),
    ([0, 0], 0.5, [0, 0]),
    ([1, 1], 0.5, [0, 0]),
    ([1, 0], 0.5, [1, -0.5]),
    ([1], 0.5, [1]),
    ([0], 0.5, [0]),
  )
  def test_of_groups(self, success, exploration, expected):
    np.testing.assert_allclose(
      credit_of(np.array(success), exploration), expected
    )

  @parameterized.parameters(0.0, 0.3, 1.0)
  def test_is_the_gradient_of_what_the_group_achieves(self, exploration):
    """Compares it with the derivative of the sum over all outcomes."""
    win_Z = np.array([0.3, 0.6])  # success of an attempt that z plays
    size = 3

    def achieved(weight):
      w_Z = np.array([1 - weight, weight])
      p = w_Z @ win_Z
      best = 1 - (1 - p) ** size
      return (1 - exploration) * p + exploration * best / size

    weight, step = 0.4, 1e-6
    gradient = (achieved(weight + step) - achieved(weight - step)) / (2 * step)
    w_Z = np.array([1 - weight, weight])
    score_Z = np.array([-1 / (1 - weight), 1 / weight])  # d log w_z / d weight
    expected = 0.0
    for policy_slots in itertools.product((0, 1), repeat=size):
      for wins in itertools.product((0, 1), repeat=size):
        chance = np.prod(
          [
            w_Z[z] * (win_Z[z] if win else 1 - win_Z[z])
            for z, win in zip(policy_slots, wins, strict=True)
          ]
        )
        credit_G = credit_of(np.array(wins), exploration)
        expected += chance * (credit_G * score_Z[list(policy_slots)]).mean()
    self.assertAlmostEqual(expected, gradient, places=6)


class CountTest(absltest.TestCase):
  def test_a_draw_is_a_turn(self):
    groups = [
      a_group((1, [0, 0, 1]), (0, [1])),
      a_group((1, [0]), (1, [0]), task="b"),
    ]
    sums = count(groups)
    np.testing.assert_array_equal(sums.draws, [[2, 2], [2, 0]])
    np.testing.assert_array_equal(sums.successes, [[2, 1], [2, 0]])
    np.testing.assert_array_equal(sums.credit, [[2, 0], [0, 0]])
    np.testing.assert_array_equal(sums.tokens, [[4, 4], [4, 0]])

  def test_a_draw_is_an_episode(self):
    sums = count([a_group((1, [1, 1, 1]), (0, [0]))], per_turn=False)
    np.testing.assert_array_equal(sums.draws[0], [1, 1])
    np.testing.assert_array_equal(sums.credit[0], [-1, 1])
    np.testing.assert_array_equal(sums.tokens[0], [2, 6])

  def test_an_episode_without_turns_tells_nothing(self):
    self.assertEqual(count([a_group((0, []))], per_turn=False).draws.sum(), 0)

  def test_the_version_of_most_tokens(self):
    old, new = a_turn(1, version=3, tokens=2), a_turn(1, version=5, tokens=4)
    versions = weighting.versions_of([a_group((0, [old, new, old]))], 3)
    np.testing.assert_array_equal(versions, [-1, 5, -1])


class DriftTest(absltest.TestCase):
  def test_weighs_by_draws_and_leaves_out_what_was_not_trained(self):
    draws = np.array([[3.0, 5.0], [1.0, 1.0]])
    both = metrics() | metrics(0, "b", share=0.0, kl=9.0, sample_size=0.0)
    drift = weighting.measure_drift(both, TASKS, draws)
    np.testing.assert_array_equal(drift.draws, [[0, 5], [0, 0]])
    np.testing.assert_allclose(drift.kl, [[0, 0.5], [0, 0]])
    np.testing.assert_allclose(drift.inverse, [[0, 6.25], [0, 0]])

  def test_an_update_that_was_not_made_tells_nothing(self):
    drift = weighting.measure_drift({}, TASKS, np.ones((2, 2)))
    self.assertEqual(drift.draws.sum(), 0)


class EvidenceTest(absltest.TestCase):
  def _added(self, evidence, *, version=0, memory=0.5):
    group = a_group((1, [1]), (0, [a_turn(1, version=version, tokens=9)]))
    sums = count([group])
    return weighting.add_batch(
      evidence,
      sums,
      weighting.measure_drift(metrics(), TASKS, sums.draws),
      weighting.versions_of([group], 2),
      memory=memory,
    )

  def test_fades(self):
    evidence = weighting.no_evidence(2, 2)
    for draws in (2, 3, 3.5):
      evidence = self._added(evidence)
      self.assertEqual(evidence.attempts.draws[0, 1], draws)
      self.assertEqual(evidence.drift.draws[0, 1], draws)

  def test_another_version_drifts_from_anew(self):
    evidence = self._added(weighting.no_evidence(2, 2), version=1)
    evidence = self._added(evidence, version=4)
    self.assertEqual(evidence.drift.draws[0, 1], 2)
    self.assertEqual(evidence.attempts.draws[0, 1], 3)
    np.testing.assert_array_equal(evidence.version, [-1, 4])

  def test_comes_back_from_json_to_the_bit(self):
    evidence = self._added(weighting.no_evidence(2, 2), memory=0.3)
    evidence = self._added(evidence, memory=1 / 3)
    again = weighting.evidence_from_json(
      json.loads(json.dumps(evidence.to_json())), weighting.no_evidence(2, 2)
    )
    self.assertEqual(again.to_json(), evidence.to_json())
    np.testing.assert_array_equal(again.drift.inverse, evidence.drift.inverse)

  def test_refuses_what_is_of_another_run(self):
    body = weighting.no_evidence(2, 3).to_json()
    with self.assertRaisesRegex(CheckpointError, r"\(2, 3\).*\(2, 2\)"):
      weighting.evidence_from_json(body, weighting.no_evidence(2, 2))
    with self.assertRaisesRegex(CheckpointError, "cannot be read"):
      weighting.evidence_from_json({}, weighting.no_evidence(2, 2))
