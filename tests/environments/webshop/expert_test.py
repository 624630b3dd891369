"""The expert solves every task, and makes mistakes as often as asked."""

import json
import unittest

import pytest

from agentrl_jax.data.records import Status, Task
from environments.webshop.environment import COMPACT, WebShop
from environments.webshop.expert import MISTAKES
from environments.webshop.shop.reward import score_purchase
from tests.environments.playing import play_with

NUM_TASKS = 250  # per split


async def play(environment, task, **mistakes):
  """Plays an episode; returns the last step, and the queries and clicks."""
  expert = environment.expert(task, seed=0, mistakes=mistakes)
  _, steps, answers = await play_with(environment, task, expert)
  actions = []
  for answer in answers:
    (call,) = answer.tool_calls
    actions += json.loads(call.arguments).values()
  return steps[-1], actions


def tasks_of(environment, split, number):
  return [
    Task("webshop", split, i) for i in environment.indices(split)[:number]
  ]


async def success(environment, number=200, **mistakes):
  steps = [
    (await play(environment, task, **mistakes))[0]
    for task in tasks_of(environment, "train", number)
  ]
  return sum(step.metrics["success"] for step in steps) / number


class NoMistakesTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_solves_every_task_on_all_pages(self):
    for settings in ({}, COMPACT, {"difficulty": "easy"}):
      environment = WebShop(num_test=NUM_TASKS, **settings)
      for split in ("train", "test"):
        for task in tasks_of(environment, split, NUM_TASKS):
          step, actions = await play(environment, task)
          self.assertIs(step.status, Status.COMPLETED, (task, settings))
          self.assertEqual(step.reward, 1.0, (task, settings))
          self.assertLess(len(actions), 20)

  async def test_solves_tasks_over_several_pages_of_results(self):
    environment = WebShop(
      difficulty="easy", results_per_page=1, catalogue_size=20, max_rounds=60
    )
    num_next = 0
    for task in tasks_of(environment, "train", 40):
      step, actions = await play(environment, task)
      self.assertEqual(step.reward, 1.0)
      num_next += "next >" in actions
    self.assertGreater(num_next, 0)

  async def test_clicks_of_the_expert_follow_from_the_pages(self):
    """The expert knows the product, but buys the first that looks right."""
    environment = WebShop(difficulty="easy")
    num_others = 0
    for task in tasks_of(environment, "train", 100):
      _, goal = environment.find(task)
      _, actions = await play(environment, task)
      num_others += goal.product.id not in actions
    self.assertGreater(num_others, 0)


class QueriesTest(unittest.IsolatedAsyncioTestCase):
  async def first_hits(self, names_options):
    """Plays easy shops; returns how often the first result was a right one."""
    environment = WebShop(
      difficulty="easy",
      max_siblings=1,
      catalogue_size=45,
      expert_names_options=names_options,
    )
    num_hits, tasks = 0, tasks_of(environment, "test", 100)
    for task in tasks:
      catalogue, goal = environment.generate(task.split, task.index)
      step, actions = await play(environment, task)
      self.assertEqual(step.reward, 1.0, task)
      for option in goal.options:
        self.assertEqual(option in actions[0].split(" "), names_options)
      first = catalogue.search(actions[0])[0]
      offered = {value for values in first.options.values() for value in values}
      chosen = [option for option in goal.options if option in offered]
      num_hits += score_purchase(first, chosen, goal).reward == 1
    return num_hits / len(tasks)

  async def test_options_in_the_query_bring_the_product_to_the_top(self):
    self.assertGreater(
      await self.first_hits(True), await self.first_hits(False) + 0.03
    )


class MistakesTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_each_mistake_costs_success(self):
    for difficulty, max_rate in (("easy", 0.96), ("hard", 0.5)):
      environment = WebShop(difficulty=difficulty, **COMPACT)
      for mistake in MISTAKES:
        with self.subTest(mistake=mistake, difficulty=difficulty):
          rate = await success(environment, **{mistake: 1.0})
          self.assertLess(rate, max_rate)

  async def test_lazy_search_is_for_the_kind_only(self):
    environment = WebShop()
    for task in tasks_of(environment, "train", 20):
      _, goal = environment.find(task)
      _, actions = await play(environment, task, lazy_search=1.0)
      self.assertEqual(actions[0], goal.product.query)
      self.assertNotIn("next >", actions)

  async def test_first_result_clicks_the_first_result(self):
    environment = WebShop()
    for task in tasks_of(environment, "train", 20):
      catalogue, _ = environment.find(task)
      _, actions = await play(environment, task, first_result=1.0)
      self.assertEqual(actions[1], catalogue.search(actions[0])[0].id)

  async def test_mistakes_with_options(self):
    environment = WebShop()
    for task in tasks_of(environment, "train", 20):
      _, goal = environment.find(task)
      _, right = await play(environment, task)
      _, short = await play(environment, task, skip_last_option=1.0)
      self.assertEqual(short[-2:], [right[-3], "buy now"])
      _, wrong = await play(environment, task, wrong_option=1.0)
      self.assertEqual(len(wrong), len(right))
      self.assertNotEqual(wrong[-2], goal.options[-1])
