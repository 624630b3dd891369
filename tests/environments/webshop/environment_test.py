"""WebShop keeps the contract, as upstream sets it and with compact pages."""

import unittest

from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.env.loading import load_environment
from agentrl_jax.errors import ConfigError
from environments.webshop import WebShop, prompts
from environments.webshop.environment import COMPACT


class UpstreamContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return WebShop()


class CompactContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return WebShop(**COMPACT)


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

  async def test_more_tasks_change_none_of_those_before(self):
    few, many = WebShop(num_test=4), WebShop(num_test=4_000)
    for index in few.indices("test"):
      task = Task("webshop", "test", index)
      self.assertEqual(few.find(task)[1], many.find(task)[1])

  def test_tasks_out_of_range_are_refused(self):
    environment = WebShop(num_test=4)
    for index in (4, -1):
      with self.assertRaisesRegex(ConfigError, "4 test tasks"):
        environment.find(Task("webshop", "test", index))

  def test_settings_are_checked_at_once(self):
    for settings in (
      {"system_prompt": "long"},
      {"max_rounds": 0},
      {"results_per_page": 0},
      {"tasks_per_catalogue": 0},
      {"catalogue_size": 0},
      {"num_cached": 0},
      {"num_test": 0},
      {"separator": ""},
    ):
      (name,) = settings
      with self.subTest(name), self.assertRaisesRegex(ConfigError, name):
        WebShop(**settings)

  def test_can_be_named_in_a_config(self):
    environment = load_environment("environments.webshop:WebShop", COMPACT)
    self.assertIsInstance(environment, WebShop)


if __name__ == "__main__":
  unittest.main()
