"""Tests of the expert and each of its mistakes."""

import json
import unittest

from agentrl_jax.data.records import Message, Status, Task
from environments.alfworld import ALFWorld
from environments.alfworld.expert import HouseholdExpert
from environments.alfworld.games.tasks import TASK_TYPES
from tests.environments.alfworld.small_games import kitchen, study
from tests.environments.playing import play


def walk(game, *, num_turns=12, seed=0, **mistakes) -> list[str]:
  """Lists the actions that the expert writes until it wins, prose included."""
  expert = HouseholdExpert(game, seed=seed, mistakes=mistakes)
  return continue_walk(expert, num_turns)


def continue_walk(expert, num_turns=12) -> list[str]:
  written = []
  while len(written) < num_turns and not expert._household.is_won:
    answer = expert.answer([Message("user", "?")])
    text = answer.content
    for call in answer.tool_calls:
      text = json.loads(call.arguments)["action"]
    written.append(text)
  return written


SOLUTION = [
  "go to cabinet 1",
  "open cabinet 1",
  "take mug 1 from cabinet 1",
  "go to desk 2",
  "put mug 1 in/on desk 2",
]


class FaultlessTest(unittest.TestCase):
  def test_expert_takes_the_shortest_solution(self):
    self.assertEqual(walk(study()), SOLUTION)

  def test_expert_recovers_from_earlier_actions(self):
    expert = HouseholdExpert(study(), seed=0, mistakes={})
    for command in ("go to desk 1", "take pen 1 from desk 1"):
      expert._household.act(command)
    self.assertEqual(
      continue_walk(expert), ["put pen 1 in/on desk 1", *SOLUTION]
    )


class MistakesTest(unittest.IsolatedAsyncioTestCase):
  def test_each_mistake_shows(self):
    for mistake, shows in {
      "wander": lambda w: w[0].startswith("go to") and w != SOLUTION,
      "repeat": lambda w: len(set(w)) < len(w),
      "prose": lambda w: w[0] == "I will go to cabinet 1.",
      "inexact": lambda w: w[0] == "please go to cabinet 1",
      "search": lambda w: len(w) >= len(SOLUTION),
      "wrong_place": lambda w: "put mug 1 in/on cabinet 1" in w,
    }.items():
      with self.subTest(mistake):
        actions = walk(study(), **{mistake: 1.0})
        self.assertTrue(shows(actions), actions)

  def test_wrong_thing_is_taken_first(self):
    actions = walk(kitchen(), wrong_thing=1.0)
    self.assertRegex(actions[1], "^take (bread|knife) 1 from countertop 1$")
    self.assertTrue(actions[-1].startswith("put mug "))

  async def test_forgetting_loses_tasks_that_need_a_change(self):
    for kind in TASK_TYPES:
      environment = ALFWorld(task_types=(kind,))
      num_won = 0.0
      for index in range(4):
        task = Task("alfworld", "train", index)
        *_, step = await play(environment, task, mistakes={"forget": 1.0})
        num_won += step.reward
      is_simple = kind in ("pick_and_place_simple", "pick_two_obj_and_place")
      with self.subTest(kind):
        self.assertEqual(num_won, 4.0 if is_simple else 0.0)

  async def test_detours_do_not_lose(self):
    for mistake in ("wrong_thing", "wrong_place", "inexact"):
      for index in range(8):
        task = Task("alfworld", "test", index)
        *_, step = await play(ALFWorld(), task, mistakes={mistake: 1.0})
        with self.subTest(mistake, index=index):
          self.assertEqual((step.reward, step.status), (1.0, Status.COMPLETED))
