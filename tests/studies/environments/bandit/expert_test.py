"""Tests of the expert, and of the outcome of each of its mistakes."""

import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Status, Task
from studies.environments.bandit import Bandit
from tests.environments.playing import play

NUM_TASKS = 40


async def results_of(environment, mistakes=None):
  """Returns the last steps of the expert's episodes, each with its own luck."""
  return [
    (
      await play(
        environment, Task("bandit", "test", i), seed=i, mistakes=mistakes
      )
    )[-1]
    for i in range(NUM_TASKS)
  ]


class ExpertTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  @parameterized.parameters((0.25, {0.0, 1.0}), (0.04, {0.1}))
  async def test_it_pulls_the_better_machine(self, chance, rewards):
    results = await results_of(Bandit(chance=chance))
    self.assertEqual({step.metrics["success"] for step in results}, {1.0})
    self.assertEqual({step.reward for step in results}, rewards)

  async def test_it_does_not_know_the_luck(self):
    paid = sum(step.reward for step in await results_of(Bandit()))
    self.assertTrue(0 < paid < NUM_TASKS / 2, paid)

  @parameterized.parameters(
    ("worse_machine", Status.COMPLETED, 0.1),
    ("no_call", Status.TASK_LIMIT_REACHED, 0.0),
    ("broken_json", Status.TASK_LIMIT_REACHED, 0.0),
    ("unknown_machine", Status.TASK_LIMIT_REACHED, 0.0),
  )
  async def test_each_mistake_has_its_outcome(self, mistake, status, reward):
    results = await results_of(Bandit(), {mistake: 1.0})
    self.assertEqual({step.status for step in results}, {status})
    self.assertEqual({step.reward for step in results}, {reward})
    self.assertEqual({step.metrics["success"] for step in results}, {0.0})
