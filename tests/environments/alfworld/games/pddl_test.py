"""Tests of reading PDDL, and of the names behind ids."""

import unittest

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.game import AGENTBENCH
from environments.alfworld.games.pddl import display_names, parse, read_problem
from environments.alfworld.household import Household

# Like ALFWorld's files: ids with coordinates, declared types without objects,
# distances, facts in any order and repeated.
PROBLEM = """
(define (problem plan_trial) (:domain alfred)
 (:objects agent1 - agent  Lamp - object  MugType - otype)
 (:init (= (total-cost) 0)
  (atLocation agent1 loc_bar_3_bar_1)
  (receptacleType Sink_bar__minus_01_dot_99_bar_SinkBasin SinkBasinType)
  (receptacleType Cabinet_bar__plus_00_dot_13 CabinetType)
  (receptacleType Cabinet_bar__minus_00_dot_36 CabinetType)
  (openable Cabinet_bar__plus_00_dot_13)
  (opened Cabinet_bar__plus_00_dot_13) ; ajar
  (receptacleAtLocation Cabinet_bar__plus_00_dot_13 loc_bar_1_bar_1)
  (receptacleAtLocation Cabinet_bar__minus_00_dot_36 loc_bar_1_bar_1)
  (receptacleAtLocation Sink_bar__minus_01_dot_99_bar_SinkBasin loc_bar_2_bar_1)
  (= (distance loc_bar_1_bar_1 loc_bar_9_bar_9) 7)
  (objectType Mug_bar__plus_01_dot_20 MugType)
  (objectType Mug_bar__plus_01_dot_20 MugType)
  (pickupable Mug_bar__plus_01_dot_20) (isHot Mug_bar__plus_01_dot_20)
  (inReceptacle Mug_bar__plus_01_dot_20 Cabinet_bar__plus_00_dot_13)
  (objectAtLocation Mug_bar__plus_01_dot_20 loc_bar_3_bar_1)
  (canContain SinkBasinType MugType))
 (:goal (and (exists (?o - object) (isClean ?o)))))
"""


def read(text=PROBLEM):
  return read_problem(text, task="put a mug in desk", dialect=AGENTBENCH)


class ParseTest(unittest.TestCase):
  def test_lists_words_comments_and_case_are_parsed(self):
    self.assertEqual(
      parse("; hello\n(And (x ?A)\n () b)"), ("and", ("x", "?a"), (), "b")
    )

  def test_unbalanced_brackets(self):
    self.assertEqual(parse("(a))"), ("a",))  # as in some game files
    for text in ("((a)", "", "  ; nothing"):
      with self.subTest(text), self.assertRaises(ConfigError):
        parse(text)


class NamesTest(unittest.TestCase):
  def test_numbers_decrease_along_sorted_ids(self):
    sink = "sink_bar_1_bar_sinkbasin"
    self.assertEqual(
      display_names(["mug_bar_b", "mug_bar_a", sink, "x"]),
      {"mug_bar_a": "mug 2", "mug_bar_b": "mug 1", sink: "sinkbasin 1"},
    )


class ReadProblemTest(unittest.TestCase):
  def test_receptacles_and_things_are_sorted_by_id(self):
    game = read()
    self.assertEqual(
      [(r.name, r.type, r.location) for r in game.receptacles],
      [
        ("cabinet 2", "cabinet", 0),
        ("cabinet 1", "cabinet", 0),
        ("sinkbasin 1", "sinkbasin", 1),
      ],
    )
    # "minus" sorts before "plus".
    self.assertEqual(
      [r.is_open for r in game.receptacles], [False, True, False]
    )
    (mug,) = game.things
    self.assertEqual((mug.traits, mug.states), ({"pickupable"}, {"ishot"}))
    self.assertEqual(
      (game.inside, game.at, game.fits),
      ({(0, 1)}, {(0, 2)}, {("sinkbasin", "mug")}),
    )

  def test_only_mentioned_locations_are_numbered(self):
    game = read()
    self.assertEqual((game.num_locations, game.start), (3, 2))
    reply = Household(game).act("go to sinkbasin 1")
    self.assertTrue(reply.startswith("You arrive at loc 2. "))

  def test_games_beyond_the_python_engine_are_marked(self):
    for fact, reason in (
      ("(holds agent1 Mug_bar__plus_01_dot_20)", "in hand"),
      (
        "(receptacleAtLocation Cabinet_bar__plus_00_dot_13 loc_bar_2_bar_1)",
        "two",
      ),
    ):
      game = read(PROBLEM.replace("(canContain", f"{fact} (canContain"))
      self.assertIn(reason, game.unsupported)

  def test_other_domains_are_refused(self):
    for text in (
      "(define (problem p) (:init (on a b)) (:goal (on b a)))",
      PROBLEM.replace("(atLocation agent1 loc_bar_3_bar_1)", ""),
    ):
      with self.subTest(text[:40]), self.assertRaises(ConfigError):
        read(text)
