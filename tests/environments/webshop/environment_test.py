"""The environment: its contract, default tasks and options."""

import hashlib
import unittest

import pytest

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.contract import SessionContract
from environments.webshop import WebShop, prompts
from environments.webshop.environment import COMPACT

# Of 24 tasks per split. A change invalidates trained policies, so users must be
# informed of it.
DIGESTS = {
  "easy": "3b9dc5976f90625fda3f5cbc15f5c4049bc4f77ada1abbfeca38419a663e87e1",
  "hard": "e007fd9808a694a5042e4bd056405874ba38e50316690d1e523504872c78f8f7",
}


class UpstreamContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  num_tasks = 4

  def make_environment(self):
    return WebShop()


@pytest.mark.slow
class CompactContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return WebShop(**COMPACT)


class DefaultTasksTest(unittest.IsolatedAsyncioTestCase):
  async def test_tasks_do_not_change(self):
    for difficulty, digest in DIGESTS.items():
      with self.subTest(difficulty):
        environment = WebShop(difficulty=difficulty)
        self.assertEqual(await self.digest(environment), digest)

  def test_hard_is_the_default(self):
    task = Task("webshop", "test", 0)
    self.assertEqual(
      WebShop().find(task)[1], WebShop(difficulty="hard").find(task)[1]
    )

  async def digest(self, environment):
    digest = hashlib.sha256()
    for split in SPLITS:
      for index in range(24):
        task = Task("webshop", split, index)
        async with environment.open(task, seed=0) as session:
          for message in (await session.reset()).messages:
            digest.update(message.content.encode())
        catalogue, goal = environment.find(task)
        shelf = [p.canonical_text + p.id for p in catalogue.products]
        digest.update(repr((goal, shelf)).encode())
    return digest.hexdigest()


class WebShopTest(unittest.IsolatedAsyncioTestCase):
  async def opening(self, environment):
    async with environment.open(Task("webshop", "test", 0), seed=0) as session:
      return session.tools, (await session.reset()).messages

  async def test_defaults_are_upstreams(self):
    environment = WebShop()
    self.assertEqual(environment.indices("test"), range(200))
    self.assertEqual(environment.indices("train"), range(11_000))
    tools, (system, user) = await self.opening(environment)
    self.assertEqual(system.content, prompts.UPSTREAM)
    self.assertTrue(
      user.content.startswith("The initial observation:\nWebShop")
    )
    self.assertEqual([t.name for t in tools], ["search_action", "click_action"])
    self.assertTrue(all(tool.description for tool in tools))

  async def test_compact_openings_are_short(self):
    tools, (system, user) = await self.opening(WebShop(**COMPACT))
    self.assertEqual([t.name for t in tools], ["search_action", "click_action"])
    self.assertLess(len(system.content + user.content), 260)

  async def test_a_larger_split_begins_with_the_same_tasks(self):
    few, many = WebShop(num_test=4), WebShop(num_test=4_000)
    for index in few.indices("test"):
      task = Task("webshop", "test", index)
      self.assertEqual(few.find(task)[1], many.find(task)[1])
