"""Tests of the expert's mistakes in pages."""

import unittest

from agentrl_jax.data.records import Message, Status, Task
from studies.environments.pages.environment import Pages
from studies.environments.pages.expert import Follower
from studies.environments.pages.trail import LINK
from tests.environments.playing import play

TASK = Task("pages", "train", 3)


class ExpertTest(unittest.IsolatedAsyncioTestCase):
  async def test_each_mistake_has_its_outcome(self):
    environment = Pages(num_steps=3, max_turns=6)
    for mistake, status, num_steps in (
      ("early_answer", Status.COMPLETED, 4),
      ("no_call", Status.TASK_LIMIT_REACHED, 7),
      ("broken_json", Status.TASK_LIMIT_REACHED, 7),
    ):
      with self.subTest(mistake=mistake):
        steps = await play(environment, TASK, mistakes={mistake: 1.0})
        self.assertEqual(
          (steps[-1].status, steps[-1].reward, len(steps)),
          (status, 0.0, num_steps),
        )

  async def test_a_wrong_entry_is_one_of_the_page(self):
    content = Pages(num_notes=8).find(TASK)
    text, start = content.text(content.start), content.start
    numbers = text.replace("link ", "").split(",")
    found = set()
    for seed in range(60):
      expert = Follower(start, 1, seed=seed, mistakes={"wrong_entry": 1.0})
      expert.answer([Message("user", content.question)])
      said = expert.answer([Message("tool", text, tool_call_id="c1")])
      (call,) = said.tool_calls
      self.assertEqual(call.name, "answer")
      found.add(call.arguments.removeprefix('{"page": ').removesuffix("}"))
    self.assertEqual(found, set(numbers))
    self.assertIn(LINK.search(text).group(1), found)

  async def test_a_planner_takes_no_wrong_entry(self):
    """It reads a number alone."""
    environment = Pages(num_steps=3, forms=("planner",))
    steps = await play(environment, TASK, mistakes={"wrong_entry": 1.0})
    self.assertEqual(steps[-1].reward, 1.0)

  async def test_one_link_is_never_too_early(self):
    environment = Pages(forms=("worker",))
    steps = await play(environment, TASK, mistakes={"early_answer": 1.0})
    self.assertEqual((len(steps), steps[-1].reward), (3, 1.0))

  async def test_it_repeats_a_call_that_failed(self):
    expert = Follower(42, 2, seed=0, mistakes={})
    first = expert.answer([Message("user", "Follow 2 from 42.")])
    second = expert.answer([Message("tool", "Error.", tool_call_id="c1")])
    self.assertEqual(
      first.tool_calls[0].arguments, second.tool_calls[0].arguments
    )
