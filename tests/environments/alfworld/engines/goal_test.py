"""Goals: whoever wrote them, and however they are nested."""

import unittest

from agentrl_jax.errors import ConfigError
from environments.alfworld.engines.goal import compile_goal
from environments.alfworld.engines.household import Household
from environments.alfworld.games.pddl import parse
from environments.alfworld.games.tasks import (
  TASK_TYPES,
  Wanted,
  goal_of,
  read_goal,
)
from tests.environments.alfworld.small_games import make_game


class State:
  """Facts by hand: mug 1 and pen 1 on desk 1, the agent there, empty-handed."""

  held = None
  states = ()

  def is_inside(self, thing, receptacle):
    return receptacle == 0

  def is_held(self, thing):
    return thing == self.held

  def is_at(self, location):
    return location == 0

  def is_open(self, receptacle):
    return False

  def is_thing_at(self, thing, location):
    return location == 0

  def is_in_state(self, thing, state):
    return (thing, state) in self.states


def holds(text, state=None) -> bool:
  game = make_game(
    {"desk 1": {}, "shelf 1": {}},
    {"mug 1": "desk 1", "pen 1": "desk 1"},
    goal=parse(text),
  )
  return compile_goal(game)(state or State())


class CompiledGoalTest(unittest.TestCase):
  def test_connectives(self):
    yes = "(exists (?o - object) (objectType ?o MugType))"
    no = "(exists (?o - object) (objectType ?o LampType))"
    for text, found in {
      f"(and {yes} {yes})": True,
      f"(and {yes} {no})": False,
      f"(or {no} {yes})": True,
      f"(not {no})": True,
      "(and)": True,
      "(forall (?o - object ?r - receptacle) (or (inReceptacle ?o ?r) "
      "(receptacleType ?r ShelfType)))": True,
      "(forall (?o - object) (objectType ?o MugType))": False,
    }.items():
      with self.subTest(text):
        self.assertEqual(holds(text), found)

  def test_variables_of_nested_searches_meet(self):
    two = """(exists (?r - receptacle) (exists (?o1 - object) (and
      (inReceptacle ?o1 ?r) (receptacleType ?r %s)
      (exists (?o2 - object)
        (and (not (= ?o1 ?o2)) (inReceptacle ?o2 ?r))))))"""
    self.assertTrue(holds(two % "DeskType"))
    self.assertFalse(holds(two % "ShelfType"))

  def test_facts_that_change(self):
    state = State()
    state.held, state.states = 1, {(1, "ishot")}
    for text, found in {
      "(exists (?o - object ?a - agent) (holds ?a ?o))": True,
      "(exists (?o - object) (and (objectType ?o MugType) (isHot ?o)))": False,
      "(exists (?o - object) (and (objectType ?o PenType) (isHot ?o)))": True,
      "(exists (?a - agent ?l - location ?r - receptacle) (and "
      "(atLocation ?a ?l) (receptacleAtLocation ?r ?l) "
      "(receptacleType ?r ShelfType)))": False,
    }.items():
      with self.subTest(text):
        self.assertEqual(holds(text, state), found)

  def test_what_is_unknown_is_refused(self):
    for text in (
      "(exists (?o - object) (edible ?o))",
      "(exists (?o - planet) (objectType ?o MugType))",
      "won",
    ):
      with self.subTest(text), self.assertRaises(ConfigError):
        holds(text)


class TasksTest(unittest.TestCase):
  def test_every_type_is_read_as_it_was_written(self):
    for kind in TASK_TYPES:
      wanted = Wanted(kind, "mug", "shelf")
      with self.subTest(kind):
        self.assertEqual(read_goal(goal_of(wanted)), wanted)

  def test_alfreds_own_nesting_is_read(self):
    goal = """(and (exists (?r - receptacle) (exists (?o - object) (and
      (heatable ?o) (objectType ?o EggType) (receptacleType ?r SinkBasinType)
      (isHot ?o) (inReceptacle ?o ?r)))))"""
    self.assertEqual(
      read_goal(parse(goal)),
      Wanted("pick_heat_then_place_in_recep", "egg", "sinkbasin"),
    )

  def test_goals_of_other_types_are_not_guessed_at(self):
    for goal in (
      "(exists (?o - object ?r - receptacle) (and (isSliced ?o) (inReceptacle "
      "?o ?r) (objectType ?o EggType) (receptacleType ?r DeskType)))",
      "(exists (?o - object) (objectType ?o EggType))",
    ):
      self.assertIsNone(read_goal(parse(goal)))

  def test_no_goal_is_reached_by_nothing(self):
    for kind in TASK_TYPES:
      wanted = Wanted(kind, "mug", "shelf")
      game = make_game(
        {"desk 1": {}, "shelf 1": {}}, {"mug 1": "desk 1"}, wanted
      )
      self.assertFalse(Household(game).is_won)


if __name__ == "__main__":
  unittest.main()
