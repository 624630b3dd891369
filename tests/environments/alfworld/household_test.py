"""Tests of the household: states that replace others, and winning.

`traces_test` compares commands and replies with a recorded engine's.
"""

import unittest

from environments.alfworld.games.tasks import TaskSpec
from environments.alfworld.household import Household
from tests.environments.alfworld.small_games import kitchen, make_game


def play(game, *commands) -> Household:
  household = Household(game)
  for command in commands:
    assert household.act(command) != "Nothing happens.", command
  return household


class StatesTest(unittest.TestCase):
  def test_cooling_removes_heat(self):
    household = play(
      kitchen(),
      "go to countertop 1",
      "take mug 1 from countertop 1",
      "go to microwave 1",
      "heat mug 1 with microwave 1",
    )
    self.assertTrue(household.is_in_state(4, "ishot"))
    household.act("go to fridge 1")
    self.assertEqual(
      household.act("cool mug 1 with fridge 1"),
      "You cool the mug 1 using the fridge 1.",
    )
    self.assertFalse(household.is_in_state(4, "ishot"))
    self.assertTrue(household.is_in_state(4, "iscool"))

  def test_examining_describes_the_states(self):
    household = play(
      kitchen(), "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1"
    )
    self.assertIn("nothing special", household.act("examine apple 1"))
    for receptacle, verb, description in (
      ("sinkbasin 1", "clean", "a clean apple 1."),
      ("microwave 1", "heat", "a hot and clean apple 1."),
      ("fridge 1", "cool", "a cool and clean apple 1."),
    ):
      household.act(f"go to {receptacle}")
      household.act(f"{verb} apple 1 with {receptacle}")
      reply = household.act("examine apple 1")
      self.assertEqual(reply, f"This is {description}")


class WinningTest(unittest.TestCase):
  def assert_last_command_wins(self, game, *commands):
    household = play(game, *commands[:-1])
    self.assertFalse(household.is_won)
    household.act(commands[-1])
    self.assertTrue(household.is_won)

  def test_thing_must_be_held_where_the_lamp_is(self):
    game = make_game(
      {"desk 2": {}, "desk 1": {}},
      {"desklamp 1": "desk 1", "pen 1": "desk 2"},
      TaskSpec("look_at_obj_in_light", "pen", "desklamp"),
    )
    self.assert_last_command_wins(
      game,
      "go to desk 1",
      "use desklamp 1",
      "go to desk 2",
      "take pen 1 from desk 2",
      "go to desk 1",
    )

  def test_two_things_must_share_one_receptacle(self):
    game = make_game(
      {"desk 1": {}, "drawer 2": {}, "drawer 1": {}},
      {"pen 2": "desk 1", "pen 1": "drawer 1"},
      TaskSpec("pick_two_obj_and_place", "pen", "drawer"),
    )
    commands = (
      "go to desk 1",
      "take pen 2 from desk 1",
      "go to drawer 2",
      "put pen 2 in/on drawer 2",
    )
    self.assertFalse(play(game, *commands).is_won)
    self.assert_last_command_wins(
      game,
      *commands,
      "take pen 2 from drawer 2",
      "go to drawer 1",
      "put pen 2 in/on drawer 1",
    )
