"""Tests of `controller.policies` and `controller.seeds`."""

import collections
import dataclasses
import subprocess
import sys
import unittest

from agentrl_jax.controller import policies
from agentrl_jax.controller.policies import CrossPolicy
from agentrl_jax.data import seeds
from agentrl_jax.data.trajectory import Status
from agentrl_jax.errors import ConfigError
from tests.controller.stage import a_trajectory


class CrossPolicyTest(unittest.TestCase):
  def test_shares_follow_the_weights(self):
    choose = CrossPolicy(draw_per="turn", weights=(3.0, 0.0, 1.0))
    drawn = collections.Counter(
      choose(s, t) for s in range(500) for t in range(4)
    )
    self.assertEqual(set(drawn), {0, 2})
    self.assertAlmostEqual(drawn[2] / 2000, 0.25, delta=0.04)

  def test_per_turn_changes_within_a_trajectory(self):
    choose = CrossPolicy(draw_per="turn", weights=(0.5, 0.5))
    self.assertEqual({choose(1, t) for t in range(30)}, {0, 1})

  def test_per_trajectory_stays_within_one_and_changes_between(self):
    choose = CrossPolicy(draw_per="trajectory", weights=(0.5, 0.5))
    for seed in range(20):
      self.assertEqual(len({choose(seed, t) for t in range(10)}), 1)
    self.assertEqual({choose(seed, 0) for seed in range(30)}, {0, 1})

  def test_never_is_policy_slot_0_whatever_the_weights(self):
    choose = CrossPolicy(draw_per="never", weights=(0.0, 1.0))
    self.assertEqual({choose(s, t) for s in range(9) for t in range(9)}, {0})

  def test_shares_are_what_is_drawn_by(self):
    weights = (3.0, 0.0, 1.0)
    for draw_per, shares in (("turn", (0.75, 0, 0.25)), ("never", (1, 0, 0))):
      choose = CrossPolicy(draw_per=draw_per, weights=weights)
      self.assertEqual(choose.shares, shares)

  def test_wrong_settings_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "turn, trajectory, never"):
      CrossPolicy(draw_per="step")
    for weights in ((), (0.0,), (-1.0, 2.0), (float("nan"), 1.0)):
      with self.subTest(weights=weights), self.assertRaises(ConfigError):
        CrossPolicy(draw_per="turn", weights=weights)


class SucceededTest(unittest.TestCase):
  def test_full_pay_is_success_unless_the_environment_says(self):
    for reward, metrics, expected in (
      (1.0, {}, True),
      (0.9, {}, False),
      (0.9, {"success": 1.0}, True),
      (1.0, {"success": 0.0}, False),
    ):
      trajectory = dataclasses.replace(
        a_trajectory(status=Status.COMPLETED, reward=reward), metrics=metrics
      )
      with self.subTest(reward=reward, metrics=metrics):
        self.assertEqual(policies.succeeded(trajectory), expected)


class SeedsTest(unittest.TestCase):
  def test_same_in_another_process(self):
    program = (
      "from agentrl_jax.controller import seeds;"
      "print(seeds.seed_of(1, 'turn', 2))"
    )
    said = subprocess.run(
      [sys.executable, "-c", program], capture_output=True, check=True
    )
    self.assertEqual(int(said.stdout), seeds.seed_of(1, "turn", 2))

  def test_parts_order_and_kind_matter(self):
    several = [(1, 2), (2, 1), (12,), ("1", 2), (1, 2, ""), ("1\x1fint:2",)]
    self.assertEqual(len({seeds.seed_of(*p) for p in several}), len(several))

  def test_fits_in_31_bits_and_spreads(self):
    found = [seeds.seed_of(0, n) for n in range(2000)]
    self.assertEqual(len(set(found)), 2000)
    self.assertTrue(all(0 <= seed < 2**31 for seed in found))
    self.assertGreater(max(found), 2**30)

  def test_uniform(self):
    found = [seeds.uniform_of(0, n) for n in range(4000)]
    self.assertTrue(all(0 <= x < 1 for x in found))
    self.assertAlmostEqual(sum(found) / 4000, 0.5, delta=0.03)


if __name__ == "__main__":
  unittest.main()
