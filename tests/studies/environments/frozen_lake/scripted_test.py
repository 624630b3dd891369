"""Tests that walks without a plan lose more lakes than they win."""

import unittest

import pytest

from studies.environments.frozen_lake import FrozenLake
from tests.environments.scripted_test import success

# Most that a policy may win of lakes without slips, and with 0.2.
MOST = {
  "constant": (0.0, 0.05),
  "random": (0.1, 0.1),
  "down_then_right": (0.5, 0.4),
  "next_cell": (0.85, 0.6),
  "planner": (1.0, 0.9),
}


class ScriptedTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_who_does_not_plan_loses_lakes(self):
    for slip, place in ((0.0, 0), (0.2, 1)):
      environment = FrozenLake(slip=slip)
      for name, most in MOST.items():
        with self.subTest(policy=name, slip=slip):
          rate = await success(
            environment, environment.policies[name], num_tasks=150
          )
          self.assertLessEqual(rate, most[place])
