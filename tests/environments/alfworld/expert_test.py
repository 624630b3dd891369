"""The scripted player, and each of its mistakes."""

import json
import unittest

from agentrl_jax.data.messages import Message
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.errors import ConfigError
from environments.alfworld import ALFWorld
from environments.alfworld.expert import MISTAKES, expert_for
from environments.alfworld.games.tasks import TASK_TYPES, read_goal
from tests.environments.alfworld.environment_test import play
from tests.environments.alfworld.small_games import kitchen, study


def walk(game, *, num_turns=12, seed=0, **mistakes) -> list[str]:
  """What the expert writes until it wins; its prose as it stands."""
  expert = expert_for(game, read_goal(game.goal), seed=seed, mistakes=mistakes)
  return walk_on(expert, num_turns)


def walk_on(expert, num_turns=12) -> list[str]:
  written = []
  while len(written) < num_turns and not expert._household.is_won:
    answer = expert.answer([Message("user", "?")])
    text = answer.content
    for call in answer.tool_calls:
      text = json.loads(call.arguments)["action"]
    written.append(text)
  return written


WAY = [
  "go to cabinet 1",
  "open cabinet 1",
  "take mug 1 from cabinet 1",
  "go to desk 2",
  "put mug 1 in/on desk 2",
]


class FaultlessTest(unittest.TestCase):
  def test_it_goes_the_straight_way(self):
    self.assertEqual(walk(study()), WAY)

  def test_it_makes_good_what_went_before(self):
    expert = expert_for(study(), read_goal(study().goal), seed=0, mistakes={})
    for command in ("go to desk 1", "take pen 1 from desk 1"):
      expert._household.act(command)
    self.assertEqual(walk_on(expert), ["put pen 1 in/on desk 1", *WAY])


class MistakesTest(unittest.IsolatedAsyncioTestCase):
  def test_each_shows(self):
    for mistake, seen in {
      "wander": lambda w: w[0].startswith("go to") and w != WAY,
      "repeat": lambda w: len(set(w)) < len(w),
      "prose": lambda w: w[0] == "I will go to cabinet 1.",
      "inexact": lambda w: w[0] == "please go to cabinet 1",
      "search": lambda w: len(w) >= len(WAY),
      "wrong_place": lambda w: "put mug 1 in/on cabinet 1" in w,
    }.items():
      with self.subTest(mistake):
        turns = walk(study(), **{mistake: 1.0})
        self.assertTrue(seen(turns), turns)

  def test_the_wrong_thing_is_taken_where_there_is_one(self):
    turns = walk(kitchen(), wrong_thing=1.0)
    self.assertRegex(turns[1], "^take (bread|knife) 1 from countertop 1$")
    self.assertTrue(turns[-1].startswith("put mug "))

  async def test_forgetting_loses_where_there_is_something_to_forget(self):
    for kind in TASK_TYPES:
      environment = ALFWorld(task_types=(kind,))
      rewards = [
        (
          await play(
            environment, Task("alfworld", "train", i), mistakes={"forget": 1.0}
          )
        )[0].reward
        for i in range(10)
      ]
      forgettable = kind not in (
        "pick_and_place_simple",
        "pick_two_obj_and_place",
      )
      with self.subTest(kind):
        self.assertEqual(sum(rewards), 0.0 if forgettable else 10.0)

  async def test_detours_delay_and_do_not_lose(self):
    for mistake in ("wrong_thing", "wrong_place", "inexact"):
      for index in range(25):
        task = Task("alfworld", "test", index)
        step, _ = await play(ALFWorld(), task, mistakes={mistake: 1.0})
        with self.subTest(mistake, index=index):
          self.assertEqual((step.reward, step.status), (1.0, Status.COMPLETED))

  async def test_a_stranger_finds_what_it_looks_for_given_time(self):
    environment = ALFWorld(max_rounds=200)
    for index in range(40):
      task = Task("alfworld", "train", index)
      step, _ = await play(environment, task, mistakes={"search": 1.0})
      with self.subTest(index=index):
        self.assertEqual(step.reward, 1.0)

  async def test_mixtures_play_on_in_step_with_the_session(self):
    mistakes = dict.fromkeys(MISTAKES, 0.2)
    rewards = []
    for index in range(60):
      step, _ = await play(
        ALFWorld(), Task("alfworld", "train", index), seed=1, mistakes=mistakes
      )
      rewards.append(step.reward)
    self.assertTrue(0.05 < sum(rewards) / 60 < 0.8, sum(rewards))

  def test_what_it_does_not_know_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "wander"):
      walk(study(), sleep=1.0)
    with self.assertRaisesRegex(ConfigError, "six types"):
      expert_for(study(), None, seed=0, mistakes={})


if __name__ == "__main__":
  unittest.main()
