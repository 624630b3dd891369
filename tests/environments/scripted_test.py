"""Tests that scripted policies win no more than the READMEs say."""

import unittest

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.env.scripted import TRIVIAL_SUCCESS
from environments.alfworld import ALFWorld
from environments.arithmetic.environment import Arithmetic
from environments.bfcl import BFCL
from environments.dbbench import DBBench
from environments.knowledgegraph import KnowledgeGraph
from environments.webshop import WebShop
from environments.word_problems.environment import WordProblems
from tests.environments.bfcl import packages

ENVIRONMENTS = (
  Arithmetic,
  ALFWorld,
  DBBench,
  KnowledgeGraph,
  WebShop,
  WordProblems,
)
NUM_TASKS = 60  # of test, per policy
MAX_TURNS = 200
# Policies that win more often than `TRIVIAL_SUCCESS`; the READMEs warn of them.
EASY_TASKS = {
  ("arithmetic", "copy_numbers"),
  ("word_problems", "product"),
  ("word_problems", "sum"),
}


async def play(environment, task, policy):
  """Returns the last step; the policy sees nothing but messages and tools."""
  messages = []
  async with environment.open(task, seed=0) as session:
    step = await session.reset()
    messages += step.messages
    for _ in range(MAX_TURNS):
      if step.status is not Status.RUNNING:
        break
      messages.append(policy.answer(tuple(messages), session.tools))
      step = await session.step(messages[-1])
      messages += step.messages
  return step


async def success(environment, make, *, num_tasks=NUM_TASKS):
  """Returns the share of the test split's tasks that a policy wins."""
  num_won = 0.0
  for index in environment.indices("test")[:num_tasks]:
    task = Task(environment.name, "test", index)
    step = await play(environment, task, make(seed=index))
    num_won += step.metrics.get("success", float(step.reward == 1))
  return num_won / num_tasks


class ScriptedTestCase(unittest.IsolatedAsyncioTestCase):
  """Plays the scripted policies of an environment."""

  async def assert_hard(self, environment, easy_tasks=EASY_TASKS):
    policies = environment.scripted_policies()
    self.assertGreaterEqual(len(policies), 3)
    for name, make in policies.items():
      with self.subTest(environment=environment.name, policy=name):
        rate = await success(environment, make)
        easy = (environment.name, name) in easy_tasks
        self.assertEqual(rate > TRIVIAL_SUCCESS, easy, rate)
    await environment.close()


class ScriptedTest(ScriptedTestCase):
  @pytest.mark.slow
  async def test_baselines_rarely_win(self):
    for make in ENVIRONMENTS:
      await self.assert_hard(make())

  async def test_baselines_rarely_win_bfcl(self):
    packages.require_packages()
    await self.assert_hard(BFCL())

  async def test_easy_shops_are_won_by_a_baseline(self):
    """Easy shops are for small policies; webshop's README warns of them."""
    environment = WebShop(difficulty="easy")
    policies = environment.scripted_policies()
    self.assertGreater(
      await success(environment, policies["first_result"]), 0.3
    )
