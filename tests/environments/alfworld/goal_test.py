"""Tests of compiled goals: connectives, quantifiers, facts that change."""

import unittest

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.pddl import parse
from environments.alfworld.goal import compile_goal
from tests.environments.alfworld.small_games import make_game


class FixedFacts:
  """mug 1 and pen 1 lie on desk 1, where the agent is; its hand is empty."""

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


def is_reached(goal, facts=None) -> bool:
  game = make_game(
    {"desk 1": {}, "shelf 1": {}},
    {"mug 1": "desk 1", "pen 1": "desk 1"},
    goal=parse(goal),
  )
  return compile_goal(game)(facts or FixedFacts())


class CompiledGoalTest(unittest.TestCase):
  def test_connectives(self):
    yes = "(exists (?o - object) (objectType ?o MugType))"
    no = "(exists (?o - object) (objectType ?o LampType))"
    for goal, expected in {
      f"(and {yes} {yes})": True,
      f"(and {yes} {no})": False,
      f"(or {no} {yes})": True,
      f"(not {no})": True,
      "(and)": True,
      "(forall (?o - object ?r - receptacle) (or (inReceptacle ?o ?r) "
      "(receptacleType ?r ShelfType)))": True,
      "(forall (?o - object) (objectType ?o MugType))": False,
    }.items():
      with self.subTest(goal):
        self.assertEqual(is_reached(goal), expected)

  def test_nested_quantifiers_share_variables(self):
    two = """(exists (?r - receptacle) (exists (?o1 - object) (and
      (inReceptacle ?o1 ?r) (receptacleType ?r %s)
      (exists (?o2 - object)
        (and (not (= ?o1 ?o2)) (inReceptacle ?o2 ?r))))))"""
    self.assertTrue(is_reached(two % "DeskType"))
    self.assertFalse(is_reached(two % "ShelfType"))

  def test_facts_that_change(self):
    facts = FixedFacts()
    facts.held, facts.states = 1, {(1, "ishot")}
    for goal, expected in {
      "(exists (?o - object ?a - agent) (holds ?a ?o))": True,
      "(exists (?o - object) (and (objectType ?o MugType) (isHot ?o)))": False,
      "(exists (?o - object) (and (objectType ?o PenType) (isHot ?o)))": True,
      "(exists (?a - agent ?l - location ?r - receptacle) (and "
      "(atLocation ?a ?l) (receptacleAtLocation ?r ?l) "
      "(receptacleType ?r ShelfType)))": False,
    }.items():
      with self.subTest(goal):
        self.assertEqual(is_reached(goal, facts), expected)

  def test_unknown_predicates_types_and_words_are_refused(self):
    for goal in (
      "(exists (?o - object) (edible ?o))",
      "(exists (?o - planet) (objectType ?o MugType))",
      "won",
    ):
      with self.subTest(goal), self.assertRaises(ConfigError):
        is_reached(goal)
