"""Games out of nothing: solvable, apart, and shaped as asked for."""

import collections
import dataclasses
import unittest

from agentrl_jax.data.split import SPLITS, split_of
from environments.alfworld.engines.household import Household
from environments.alfworld.games.tasks import (
  TASK_TYPES,
  TOOL_FOR,
  TWO,
  read_goal,
)
from environments.alfworld.generation.catalogue import (
  FITS,
  FOUND,
  ROOM_KINDS,
  TRAITS_OF,
)
from environments.alfworld.generation.generator import Generator


class GeneratorTest(unittest.TestCase):
  def test_content_is_a_function_of_split_and_index(self):
    for split in SPLITS:
      first, second = (Generator().generate(split, 5) for _ in range(2))
      self.assertEqual(first, second)

  def test_every_room_is_on_its_splits_side_of_the_line(self):
    for split in SPLITS:
      made = [Generator().generate(split, index) for index in range(100)]
      self.assertEqual({split_of(m.room.canonical) for m in made}, {split})
      self.assertEqual(len({m.room for m in made}), 100)

  def test_equal_rooms_are_told_to_be_equal(self):
    game = Generator().generate("train", 0)
    room = game.room
    self.assertEqual(room.game(goal=(), task="").inside, game.game.inside)
    moved = dataclasses.replace(room, things=room.things[1:])
    self.assertNotEqual(moved.canonical, room.canonical)

  def test_nothing_is_won_from_the_start(self):
    for index in range(200):
      self.assertFalse(
        Household(Generator().generate("train", index).game).is_won
      )

  def test_everything_lies_where_it_fits(self):
    for index in range(100):
      game = Generator().generate("test", index).game
      for o, r in game.inside:
        thing, receptacle = game.things[o].type, game.receptacles[r].type
        self.assertIn(receptacle, FOUND.get(thing) or FITS[thing])
      self.assertEqual(len(game.inside), len(game.things))

  def test_bounds_and_types_are_kept_to(self):
    generator = Generator(
      task_types=(TWO,), num_receptacles=(7, 9), num_things=(6, 12)
    )
    for index in range(50):
      made = generator.generate("train", index)
      self.assertEqual(made.wanted.type, TWO)
      self.assertIn(len(made.game.receptacles), range(7, 10))
      # Two of a kind may take one more than were drawn.
      self.assertIn(len(made.game.things), range(6, 14))

  def test_all_types_and_rooms_occur_and_the_goal_says_what_is_wanted(self):
    made = [Generator().generate("train", i) for i in range(200)]
    types = collections.Counter(m.wanted.type for m in made)
    rooms = collections.Counter(m.room_kind for m in made)
    self.assertEqual(types.keys(), set(TASK_TYPES))
    self.assertEqual(rooms.keys(), ROOM_KINDS.keys())
    for m in made:
      self.assertEqual(read_goal(m.game.goal), m.wanted)

  def test_nothing_is_to_stay_where_it_was_changed(self):
    for index in range(200):
      wanted = Generator().generate("train", index).wanted
      if wanted.state:
        self.assertNotEqual(wanted.target, TOOL_FOR[wanted.state])

  def test_receptacles_are_listed_as_alfworld_numbers_them(self):
    game = Generator().generate("train", 3).game
    names = [r.name for r in game.receptacles]
    keys = [(n.split()[0], -int(n.split()[1])) for n in names]
    self.assertEqual(keys, sorted(keys))
    self.assertEqual(len(set(names)), len(names))


class CatalogueTest(unittest.TestCase):
  def test_every_thing_of_every_room_has_a_place_there(self):
    for kind, room in ROOM_KINDS.items():
      for thing in room.things:
        places = FOUND.get(thing) or FITS[thing]
        self.assertTrue(set(places) & room.furniture.keys(), (kind, thing))
        self.assertIn(thing, TRAITS_OF)


if __name__ == "__main__":
  unittest.main()
