"""Tests of the expert, and of the outcome of each of its mistakes."""

import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Message, Status, Task
from studies.environments.frozen_lake import FrozenLake
from tests.environments.playing import play

NUM_TASKS = 30


async def results_of(environment, mistakes=None):
  """Returns the last steps of the expert's walks."""
  return [
    (
      await play(
        environment, Task("frozen_lake", "test", i), seed=i, mistakes=mistakes
      )
    )[-1]
    for i in range(NUM_TASKS)
  ]


class ExpertTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  async def test_it_takes_shortest_ways(self):
    for step in await results_of(FrozenLake()):
      self.assertEqual((step.reward, step.metrics["num_actions"]), (1.0, 6.0))

  async def test_it_goes_on_from_where_it_slipped(self):
    results = await results_of(FrozenLake(slip=0.2, max_rounds=30))
    won = [step for step in results if step.reward]
    self.assertGreater(len(won), NUM_TASKS / 2)
    self.assertGreater(max(step.metrics["num_actions"] for step in won), 6)

  @parameterized.parameters(
    ("no_call", 0, Status.TASK_LIMIT_REACHED),
    ("broken_json", 0, Status.TASK_LIMIT_REACHED),
    ("unknown_direction", 0, Status.TASK_LIMIT_REACHED),
    ("ignore_holes", 0.6, None),
    ("stray", 0.2, None),
  )
  async def test_each_mistake_has_its_outcome(self, mistake, most, status):
    results = await results_of(FrozenLake(), {mistake: 1.0})
    success = sum(step.reward for step in results) / NUM_TASKS
    self.assertLessEqual(success, most)
    if status is None:
      self.assertIn(Status.COMPLETED, {step.status for step in results})
    else:
      self.assertEqual({step.status for step in results}, {status})

  def test_after_an_error_it_stands_where_it_stood(self):
    expert = FrozenLake().expert(
      Task("frozen_lake", "test", 0), seed=0, mistakes={}
    )
    text = "P _\nO G"
    first = expert.answer([Message("user", text)])
    again = expert.answer([Message("tool", "Error: no.", tool_call_id="x")])
    self.assertEqual(
      first.tool_calls[0].arguments, again.tool_calls[0].arguments
    )
