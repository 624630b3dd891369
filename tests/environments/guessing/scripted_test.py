"""Tests that lazy players lose, and that questions win."""

import unittest

from agentrl_jax.env.scripted import TRIVIAL_SUCCESS
from environments.guessing import Guessing
from tests.environments.scripted_test import success

LAZY = ("constant", "random", "first_fit", "same_question")


class ScriptedTest(unittest.IsolatedAsyncioTestCase):
  async def test_lazy_players_lose(self):
    for name in LAZY:
      with self.subTest(policy=name):
        rate = await success(Guessing(), Guessing.policies[name], num_tasks=200)
        self.assertLess(rate, TRIVIAL_SUCCESS)

  async def test_every_question_in_turn_wins(self):
    for options in (
      {},
      {"num_things": 64, "num_attributes": 4, "max_turns": 13},
    ):
      environment = Guessing(**options)
      rate = await success(environment, environment.policies["in_order"])
      self.assertEqual(rate, 1.0)

  def test_every_policy_is_tested(self):
    self.assertEqual({*LAZY, "in_order"}, set(Guessing.policies))
