"""Tests of the household: admissible commands, their effects, winning."""

import dataclasses
import unittest

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.game import GameDialect
from environments.alfworld.games.tasks import TaskSpec
from environments.alfworld.household import Household
from tests.environments.alfworld.small_games import kitchen, make_game, study

TAKE_MUG = ("go to countertop 1", "take mug 1 from countertop 1")


def play(game, *commands) -> Household:
  household = Household(game)
  for command in commands:
    assert household.act(command) != "Nothing happens.", command
  return household


class CommandsTest(unittest.TestCase):
  def test_a_closed_receptacle_hides_what_is_in_it(self):
    household = play(study(), "go to cabinet 1")
    self.assertIn("open cabinet 1", household.commands)
    self.assertNotIn("take mug 1 from cabinet 1", household.commands)
    self.assertEqual(
      household.act("examine cabinet 1"), "The cabinet 1 is closed."
    )

  def test_opening_shows_and_closing_hides(self):
    household = play(study(), "go to cabinet 1")
    self.assertEqual(
      household.act("open cabinet 1"),
      "You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 1.",
    )
    self.assertIn("take mug 1 from cabinet 1", household.commands)
    self.assertEqual(
      household.act("close cabinet 1"), "You close the cabinet 1."
    )
    self.assertNotIn("take mug 1 from cabinet 1", household.commands)

  def test_hand_holds_one_thing(self):
    household = play(study(), "go to desk 1", "take pen 1 from desk 1")
    self.assertEqual(household.act("inventory"), "You are carrying: a pen 1.")
    self.assertFalse([c for c in household.commands if c.startswith("take")])
    self.assertIn("put pen 1 in/on desk 1", household.commands)

  def test_only_the_held_thing_can_be_examined(self):
    household = play(study(), "go to desk 1")
    self.assertNotIn("examine pen 1", household.commands)
    household.act("take pen 1 from desk 1")
    self.assertEqual(
      household.act("examine pen 1"), "There's nothing special about pen 1."
    )

  def test_a_thing_goes_only_where_it_fits(self):
    household = play(
      kitchen(), "go to countertop 1", "take knife 1 from countertop 1"
    )
    household.act("go to fridge 1")
    household.act("open fridge 1")
    self.assertFalse([c for c in household.commands if c.startswith("put")])

  def test_receptacles_at_one_location_are_reached_together(self):
    household = play(kitchen(), "go to shelf 1")
    self.assertIn("take mug 1 from countertop 1", household.commands)
    self.assertNotIn("go to countertop 1", household.commands)
    self.assertEqual(
      household.act("look"),
      "You are facing the countertop 1, and shelf 1. Next to it, you see "
      "nothing.",
    )

  def test_look_lists_a_thing_that_was_moved_within_a_location(self):
    household = play(
      kitchen(),
      "go to shelf 1",
      "take mug 2 from shelf 1",
      "put mug 2 in/on countertop 1",
    )
    self.assertTrue(household.act("look").endswith("you see a mug 2."))
    household.act("take mug 2 from countertop 1")
    household.act("put mug 2 in/on shelf 1")
    self.assertTrue(household.act("look").endswith("you see a mug 2."))

  def test_inadmissible_commands_change_nothing(self):
    household = play(study(), "go to desk 1")
    before = household.commands
    for command in ("take mug 1 from cabinet 1", "go to desk 1", "", "dance"):
      self.assertEqual(household.act(command), "Nothing happens.")
    self.assertEqual(household.commands, before)

  def test_a_thing_in_two_receptacles_leaves_one_when_taken(self):
    game = dataclasses.replace(study(), inside=frozenset({(2, 1), (2, 2)}))
    household = play(game, "go to desk 1", "take pen 1 from desk 1")
    self.assertEqual(
      household.act("go to desk 2").split(". ")[1],
      "On the desk 2, you see a pen 1.",
    )

  def test_help_exists_where_the_dialect_has_it(self):
    game = dataclasses.replace(study(), dialect=GameDialect(has_help=True))
    self.assertNotIn("help", Household(study()).commands)
    self.assertTrue(
      Household(game).act("help").startswith("Available commands:")
    )

  def test_unsupported_game_is_refused(self):
    game = dataclasses.replace(study(), unsupported="is a riddle")
    with self.assertRaisesRegex(ConfigError, "is a riddle; leave it out"):
      Household(game)


class StatesTest(unittest.TestCase):
  def test_cooling_removes_heat(self):
    household = play(
      kitchen(), *TAKE_MUG, "go to microwave 1", "heat mug 1 with microwave 1"
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

  def test_knife_slices_things_at_its_location(self):
    household = play(
      kitchen(), "go to countertop 1", "take knife 1 from countertop 1"
    )
    self.assertEqual(
      household.act("slice bread 1 with knife 1"),
      "You sliced the bread 1 with the knife 1.",
    )
    self.assertNotIn("slice apple 1 with knife 1", household.commands)

  def test_lamp_stays_on(self):
    household = play(study(), "go to desk 1")
    for _ in range(2):
      self.assertEqual(
        household.act("use desklamp 1"), "You turn on the desklamp 1."
      )

  def test_examining_a_container_lists_contents_but_not_itself(self):
    *others, mug = kitchen().things
    for contents, text in (
      ((), "nothing"),
      ((0, 1, 4), "a apple 1, and a bread 1"),  # 4 is the mug itself
    ):
      mug = dataclasses.replace(mug, contents=contents)
      game = dataclasses.replace(kitchen(), things=(*others, mug))
      self.assertEqual(
        play(game, *TAKE_MUG).act("examine mug 1"),
        f"This is a normal mug 1. In it, you see {text}.",
      )


class WinningTest(unittest.TestCase):
  def assert_last_command_wins(self, game, *commands):
    household = play(game, *commands[:-1])
    self.assertFalse(household.is_won)
    household.act(commands[-1])
    self.assertTrue(household.is_won)

  def test_goal_is_reached_by_the_last_action(self):
    self.assert_last_command_wins(
      study(),
      "go to cabinet 1",
      "open cabinet 1",
      "take mug 1 from cabinet 1",
      "go to desk 2",
      "put mug 1 in/on desk 2",
    )

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
