"""Tests of generated games: splits, bounds, placement of things."""

import dataclasses
import unittest

from agentrl_jax.data.split import SPLITS, split_of
from environments.alfworld.games.tasks import (
  TASK_TYPES,
  TOOL_FOR,
  TWO,
  read_goal,
)
from environments.alfworld.generation.catalogue import ROOM_KINDS, places_of
from environments.alfworld.generation.generator import GameGenerator
from environments.alfworld.household import Household
from environments.options import ALFWorldOptions


class GeneratorTest(unittest.TestCase):
  def test_every_room_belongs_to_its_split(self):
    for split in SPLITS:
      games = [GameGenerator().generate(split, index) for index in range(100)]
      self.assertEqual({split_of(g.room.canonical) for g in games}, {split})
      self.assertEqual(len({g.room for g in games}), 100)

  def test_canonical_text_tells_rooms_apart(self):
    generated = GameGenerator().generate("train", 0)
    room = generated.room
    self.assertEqual(room.game(goal=(), task="").inside, generated.game.inside)
    emptier = dataclasses.replace(room, things=room.things[1:])
    self.assertNotEqual(emptier.canonical, room.canonical)

  def test_every_thing_lies_in_an_accepting_receptacle(self):
    for index in range(100):
      game = GameGenerator().generate("test", index).game
      for o, r in game.inside:
        thing, receptacle = game.things[o].type, game.receptacles[r].type
        self.assertIn(receptacle, places_of(thing))
      self.assertEqual(len(game.inside), len(game.things))

  def test_options_are_respected(self):
    generator = GameGenerator(
      ALFWorldOptions(
        task_types=(TWO,), num_receptacles=(7, 9), num_things=(6, 12)
      )
    )
    for index in range(50):
      generated = generator.generate("train", index)
      self.assertEqual(generated.spec.type, TWO)
      self.assertIn(len(generated.game.receptacles), range(7, 10))
      # A task with two things may add one.
      self.assertIn(len(generated.game.things), range(6, 14))

  def test_tasks_are_of_all_types_and_begin_unsolved(self):
    games = [GameGenerator().generate("train", index) for index in range(200)]
    self.assertEqual({g.spec.type for g in games}, set(TASK_TYPES))
    self.assertEqual({g.room_kind for g in games}, ROOM_KINDS.keys())
    for generated in games:
      spec = generated.spec
      self.assertEqual(read_goal(generated.game.goal), spec)
      self.assertFalse(Household(generated.game).is_won)
      if spec.state:  # the thing does not stay where it was changed
        self.assertNotEqual(spec.target, TOOL_FOR[spec.state])
