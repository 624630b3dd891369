"""Tests of the environment: contract, generated tasks, loaded games."""

import os
import pathlib
import tempfile
import unittest
from unittest import mock

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError
from environments.alfworld import ALFWorld
from environments.alfworld.games.tasks import TASK_TYPES
from tests.environments.alfworld.data import game_list, games
from tests.environments.alfworld.small_games import known_logic, write_game
from tests.environments.playing import play


async def opening(environment, split, index):
  """Returns the texts of the system prompt and of the first user message."""
  task = Task("alfworld", split, index)
  async with environment.open(task, seed=0) as session:
    return [message.content for message in (await session.reset()).messages]


class ALFWorldContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  num_tasks = 4

  def make_environment(self):
    return ALFWorld()


class GeneratedTasksTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_expert_solves_every_task_in_14_steps(self):
    environment = ALFWorld()
    types = set()
    for split in SPLITS:
      for index in range(200):
        steps = await play(environment, Task("alfworld", split, index))
        step = steps[-1]
        with self.subTest(split=split, index=index):
          self.assertEqual((step.reward, step.status), (1.0, Status.COMPLETED))
          self.assertLessEqual(len(steps) - 1, 14)
        types |= {key for key in step.metrics if key.startswith("won/")}
    self.assertEqual(types, {f"won/{kind}" for kind in TASK_TYPES})

  async def test_opening_is_worded_as_in_agentbench(self):
    environment = ALFWorld(task_types=("pick_heat_then_place_in_recep",))
    system, user = await opening(environment, "test", 3)
    self.assertTrue(system.startswith("Interact with a household to "))
    self.assertEqual(system.count("\n"), 3)
    self.assertRegex(
      user,
      r"\AHere is your task\. You are in the middle of a room\. Looking "
      r"quickly around you, you see (a [a-z]+ \d+, )+and a [a-z]+ \d+\.\n"
      r"Your task is to: (put a hot|heat some) [a-z]+ .*\. AVAILABLE ACTIONS: "
      r"(go to [a-z]+ \d+\n)+inventory\nlook\n\Z",
    )

  async def test_options_are_respected(self):
    environment = ALFWorld(
      system_prompt="short",
      task_types=("pick_and_place_simple",),
      num_receptacles=(6, 6),
      num_things=(5, 5),
      max_rounds=2,
    )
    for index in range(8):
      system, user = await opening(environment, "train", index)
      self.assertLess(len(system.split()), 20)
      self.assertEqual(user.count("go to "), 6)
      steps = await play(environment, Task("alfworld", "train", index))
      self.assertIn("won/pick_and_place_simple", steps[-1].metrics)
      self.assertIs(steps[-1].status, Status.TASK_LIMIT_REACHED)
      self.assertEqual(len(steps) - 1, 2)


class LoadedGamesTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.enterContext(known_logic())
    self.folder = self.enterContext(tempfile.TemporaryDirectory())
    write_game(f"{self.folder}/a/game.tw-pddl", task="put a mug in desk")
    write_game(f"{self.folder}/b/c/game.tw-pddl", task="put some mug on desk")

  async def test_folder_of_games_is_the_dev_split(self):
    environment = ALFWorld(games=self.folder)
    self.assertEqual(list(environment.indices("dev")), [0, 1])
    for index in (0, 1):
      *_, step = await play(environment, Task("alfworld", "dev", index))
      self.assertEqual(step.reward, 1.0)

  async def test_list_selects_games_in_its_order(self):
    source = f"{self.folder}/list.json"
    pathlib.Path(source).write_text(  # noqa: ASYNC240 - a few bytes
      '{"put": ["b/c/game.tw-pddl"], "more": ["a/game.tw-pddl"]}'
    )
    with mock.patch.dict(os.environ, {"ALFWORLD_DATA": self.folder}):
      environment = ALFWorld(source=source)
    texts = [(await opening(environment, "dev", i))[1] for i in (0, 1)]
    self.assertIn("put some mug on desk.", texts[0])
    self.assertIn("put a mug in desk.", texts[1])


class AlfworldsGamesTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.full
  async def test_expert_solves_agentbenchs_dev_games(self):
    environment = ALFWorld(source=str(game_list("dev")), games=str(games()))
    won = 0.0
    for index in environment.indices("dev"):
      *_, step = await play(environment, Task("alfworld", "dev", index))
      won += step.reward
    self.assertEqual(won, 20.0)


class OptionsTest(unittest.TestCase):
  def test_list_without_a_folder_is_refused(self):
    with (
      mock.patch.dict(os.environ),
      self.assertRaisesRegex(ConfigError, "ALFWORLD_DATA"),
    ):
      os.environ.pop("ALFWORLD_DATA", None)
      ALFWorld(source="dev.json")
