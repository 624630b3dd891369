"""What scripted policies win stays below what the READMEs say of them."""

import unittest

from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.scripted import TRIVIAL_SUCCESS
from environments.alfworld import ALFWorld
from environments.arithmetic.environment import Arithmetic
from environments.bfcl import BFCL
from environments.dbbench import DBBench
from environments.knowledgegraph import KnowledgeGraph
from environments.webshop import WebShop
from tests.environments.bfcl import packages

NUM_TASKS = 60  # of test, per policy
MAX_TURNS = 200
# Those that win more often than `TRIVIAL_SUCCESS`, as the READMEs warn.
EASY_TASKS = {("arithmetic", "copy_numbers")}


async def play(environment, task, policy):
  """The last step of an attempt; the policy sees messages and tools alone."""
  said = []
  async with environment.open(task, seed=0) as session:
    step = await session.reset()
    said += step.messages
    for _ in range(MAX_TURNS):
      if step.status is not Status.RUNNING:
        break
      said.append(policy.answer(tuple(said), session.tools))
      step = await session.step(said[-1])
      said += step.messages
  return step


async def success(environment, make, *, num_tasks=NUM_TASKS):
  """The share of tasks of the test split that a scripted policy wins."""
  won = 0.0
  for index in environment.indices("test")[:num_tasks]:
    task = Task(environment.name, "test", index)
    step = await play(environment, task, make(seed=index))
    won += step.metrics.get("success", float(step.reward == 1))
  return won / num_tasks


class ScriptedTest(unittest.IsolatedAsyncioTestCase):
  async def assert_hard(self, environment):
    policies = environment.scripted_policies()
    self.assertGreaterEqual(len(policies), 3)
    for name, make in policies.items():
      with self.subTest(environment=environment.name, policy=name):
        rate = await success(environment, make)
        easy = (environment.name, name) in EASY_TASKS
        self.assertEqual(rate > TRIVIAL_SUCCESS, easy, rate)
    await environment.close()

  async def test_nobody_wins_without_thinking(self):
    for environment in (
      Arithmetic(),
      ALFWorld(),
      DBBench(),
      KnowledgeGraph(),
      WebShop(),
    ):
      await self.assert_hard(environment)

  async def test_nobody_serves_without_reading(self):
    packages.require_packages()
    await self.assert_hard(BFCL())

  async def test_easy_shops_reward_haste(self):
    """As webshop's README warns; what is easy is played by its name alone."""
    environment = WebShop(difficulty="easy")
    policies = environment.scripted_policies()
    self.assertGreater(
      await success(environment, policies["first_affordable"]), 0.9
    )


if __name__ == "__main__":
  unittest.main()
