"""Tests of the expert, and of the outcome of each of its mistakes."""

import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Status, Task
from environments.guessing import Guessing
from environments.guessing.expert import MISTAKES
from tests.environments.playing import play

NUM_TASKS = 40


async def results_of(environment, mistakes=None, num_tasks=NUM_TASKS):
  """Returns the last steps of the expert's games."""
  return [
    (await play(environment, Task("guessing", "test", i), mistakes=mistakes))[
      -1
    ]
    for i in range(num_tasks)
  ]


class ExpertTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  @parameterized.parameters((16, 2), (16, 3), (64, 3), (64, 4))
  async def test_three_questions_per_attribute_suffice(
    self, things, attributes
  ):
    environment = Guessing(
      num_things=things, num_attributes=attributes, max_turns=3 * attributes + 1
    )
    results = await results_of(environment)
    self.assertEqual({step.reward for step in results}, {1.0})

  async def test_the_last_turn_is_a_guess(self):
    results = await results_of(Guessing(max_turns=2))
    self.assertEqual({step.status for step in results}, {Status.COMPLETED})
    won = sum(step.reward for step in results)
    self.assertBetween(won, 1, NUM_TASKS // 2)

  async def test_expert_does_not_know_the_secret(self):
    """One guess of 16, without a question, is right as often as by chance."""
    results = await results_of(Guessing(), {"early_guess": 1.0}, num_tasks=320)
    self.assertEqual({step.metrics["questions"] for step in results}, {0.0})
    self.assertBetween(sum(step.reward for step in results), 5, 40)

  @parameterized.parameters(
    ("no_call", Status.TASK_LIMIT_REACHED, 0.0),
    ("broken_json", Status.TASK_LIMIT_REACHED, 0.0),
    ("excluded_guess", Status.COMPLETED, 0.0),
    ("repeated_question", Status.COMPLETED, None),
    ("wrong_attribute", Status.COMPLETED, None),
    ("early_guess", Status.COMPLETED, None),
  )
  async def test_each_mistake_has_its_outcome(self, mistake, status, reward):
    results = await results_of(Guessing(), {mistake: 1.0})
    self.assertEqual({step.status for step in results}, {status})
    if reward is None:  # a guess in the last turn may be right
      self.assertLess(sum(s.reward for s in results), NUM_TASKS / 2)
    else:
      self.assertEqual({step.reward for step in results}, {reward})

  def test_every_mistake_is_tested(self):
    self.assertLen(MISTAKES, 6)
