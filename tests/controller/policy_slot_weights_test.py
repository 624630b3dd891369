"""Adaptive weights go the right way, and never past their bounds."""

import dataclasses

import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.controller import policy_slot_evidence, policy_slot_weights
from agentrl_jax.controller.policy_slot_weights import PolicySlotWeightsConfig
from agentrl_jax.errors import ConfigError

PRIOR = np.array([0.6, 0.4])


def a_config(**changes):
  free = {"min_sample_size": 0.0, "floor": 0.0}
  return PolicySlotWeightsConfig(rule="adaptive", **free | changes)


def evidence(*, draws, credit=0.0, kl=0.0, inverse=1.0, tokens=5.0):
  """Of means per policy slot; broadcast to the shape of `draws`."""
  draws = np.atleast_2d(np.asarray(draws, float))

  def total(mean):
    return np.broadcast_to(np.asarray(mean, float), draws.shape) * draws

  return policy_slot_evidence.Evidence(
    attempts=policy_slot_evidence.Attempts(
      draws=draws, credit=total(credit), successes=draws, tokens=total(tokens)
    ),
    drift=policy_slot_evidence.Drift(
      draws=draws, kl=total(kl), inverse=total(inverse)
    ),
    version=np.zeros(draws.shape[1], int),
  )


def weights(found, prior=PRIOR, **changes):
  config = a_config(**changes)
  believed = policy_slot_weights.estimate(found, prior_draws=config.prior_draws)
  return policy_slot_weights.weigh(believed, prior, config)


class WeightsTest(parameterized.TestCase):
  def test_no_data_is_the_prior(self):
    found = weights(policy_slot_evidence.no_evidence(3, 2))
    np.testing.assert_allclose(found, np.tile(PRIOR, (3, 1)), rtol=1e-15)

  def test_the_formula_itself(self):
    found = evidence(
      draws=[300, 100], credit=[0.0, 0.08], kl=[0.01, 0.03], tokens=4
    )

    mean = 8.0 / 400
    gain = np.array(
      [-300 * mean / 350, (8 - 100 * mean) / 150]
    ) - 2.0 * np.array([3 / 350, 3 / 150])
    expected = PRIOR * np.exp(gain / 0.1)
    np.testing.assert_allclose(
      weights(found, prior_draws=50.0, kl_cost=2.0, temperature=0.1)[0],
      expected / expected.sum(),
    )

  def test_a_policy_slot_that_helps_gains_and_one_that_harms_loses(self):
    for credit, sign in (([0, 0.1], 1), ([0, -0.1], -1)):
      gained = weights(evidence(draws=[500, 500], credit=credit))[0, 1] - 0.4
      self.assertGreater(sign * gained, 0.1)

  def test_a_policy_slot_far_from_the_policy_loses(self):
    near = weights(evidence(draws=[500, 500], kl=[0.001, 0.002]))[0, 1]
    far = weights(evidence(draws=[500, 500], kl=[0.001, 0.2]))[0, 1]
    self.assertLess(far, 0.05)
    self.assertAlmostEqual(near, 0.4, delta=0.01)
    free = weights(evidence(draws=[500, 500], kl=[0.001, 0.2]), kl_cost=0.0)
    self.assertAlmostEqual(free[0, 1], 0.4)

  def test_few_observations_do_not_decide(self):
    many = weights(evidence(draws=[1000, 1000], credit=[0, 0.3]))[0, 1]
    few = weights(evidence(draws=[3, 3], credit=[0, 0.3]))[0, 1]
    self.assertGreater(many, 0.8)
    self.assertAlmostEqual(few, 0.4, delta=0.05)

  def test_a_task_without_data_takes_what_the_others_say(self):
    found = weights(evidence(draws=[[400, 400], [0, 0]], credit=[0, 0.2]))
    self.assertGreater(found[1, 1], 0.55)
    self.assertAlmostEqual(found[0, 1], found[1, 1])

  def test_a_hard_task_and_an_easy_one_have_weights_of_their_own(self):
    found = weights(
      evidence(draws=np.full((2, 2), 2000), credit=[[0, 0.2], [0, -0.2]])
    )
    self.assertGreater(found[0, 1], 0.8)
    self.assertLess(found[1, 1], 0.1)

  def test_one_policy_slot_alone(self):
    found = weights(
      evidence(draws=[50.0], credit=0.3, inverse=9.0),
      np.array([2.0]),
      min_sample_size=0.9,
      floor=0.1,
    )
    np.testing.assert_allclose(found, [[1.0]])

  def test_what_may_not_be_drawn_is_not(self):
    found = weights(
      evidence(draws=[9, 9, 9], credit=[0, 0, 1]),
      np.array([1.0, 1.0, 0.0]),
      floor=0.1,
    )
    self.assertEqual(found[0, 2], 0.0)
    self.assertAlmostEqual(found.sum(), 1.0)

  def test_the_floor(self):
    found = weights(evidence(draws=[900, 900], credit=[0, -1.0]), floor=0.1)
    np.testing.assert_allclose(found, [[0.9, 0.1]])
    found = weights(evidence(draws=[9, 9], credit=[0, -0.01]), floor=0.1)
    self.assertGreater(found[0, 1], 0.3)

  def test_just_as_far_towards_fresh_as_the_sample_size_asks_for(self):
    found = evidence(draws=[1e9, 1e9], inverse=[1.0, 4.0], tokens=[1.0, 3.0])
    weight = weights(found, min_sample_size=0.5)[0]
    # (w0 + 3 w1) / (w0 + 12 w1) = 1/2 at w1 = 1/7.
    np.testing.assert_allclose(weight, [6 / 7, 1 / 7], rtol=1e-6)
    np.testing.assert_allclose(
      weights(found, min_sample_size=0.3)[0], PRIOR, rtol=1e-6
    )

  def test_fresh_tokens_of_little_use_do_not_push_away_better_ones(self):
    found = evidence(draws=[1e9, 1e9], inverse=[4.0, 2.0])
    np.testing.assert_allclose(
      weights(found, min_sample_size=0.8)[0], PRIOR, rtol=1e-6
    )

  @parameterized.parameters(range(8))
  def test_bounds_hold_whatever_was_seen(self, seed):
    draw = np.random.default_rng(seed)
    for _ in range(100):
      num_tasks, num_policy_slots = draw.integers(1, 5, 2)
      shape = (num_tasks, num_policy_slots)
      found = evidence(
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
      believed = policy_slot_weights.estimate(found, prior_draws=30.0)
      weight_NZ = policy_slot_weights.weigh(believed, prior_Z, config)
      self.assertTrue((weight_NZ >= 0).all())
      np.testing.assert_allclose(weight_NZ.sum(1), 1)
      bound_N = np.minimum(config.min_sample_size, 1 / believed.inverse[:, 0])
      useful_N = policy_slot_weights.sample_size(weight_NZ, believed)
      self.assertTrue((useful_N >= bound_N * (1 - 1e-9)).all())
      unbound = dataclasses.replace(config, min_sample_size=0.0)
      weight_NZ = policy_slot_weights.weigh(believed, prior_Z, unbound)
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
      PolicySlotWeightsConfig(**{"rule": "adaptive"} | changes)

  @parameterized.parameters(
    *[
      f.name
      for f in dataclasses.fields(PolicySlotWeightsConfig)
      if f.name != "rule"
    ]
  )
  def test_refuses_what_fixed_weights_do_not_read(self, name):
    with self.assertRaisesRegex(ConfigError, f"{name}=0.33 is not read"):
      PolicySlotWeightsConfig(**{name: 0.33})


if __name__ == "__main__":
  absltest.main()
