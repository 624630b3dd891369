"""Tests that only a policy that compares expected pays is always right."""

import unittest

from absl.testing import parameterized

from studies.environments.bandit import Bandit
from tests.environments.scripted_test import success

# Least and most success with a chance of 0.25, and of 0.04.
BOUNDS = {
  "constant": ((0.35, 0.65), (0.35, 0.65)),
  "random": ((0.35, 0.65), (0.35, 0.65)),
  "first": ((0.35, 0.65), (0.35, 0.65)),
  "careful": ((0.0, 0.0), (1.0, 1.0)),
  "reckoner": ((1.0, 1.0), (1.0, 1.0)),
}


class ScriptedTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  @parameterized.parameters(*((name,) for name in BOUNDS))
  async def test_success(self, name):
    for chance, (least, most) in zip((0.25, 0.04), BOUNDS[name], strict=True):
      environment = Bandit(chance=chance)
      rate = await success(
        environment, environment.policies[name], num_tasks=150
      )
      self.assertTrue(least <= rate <= most, (chance, rate))
