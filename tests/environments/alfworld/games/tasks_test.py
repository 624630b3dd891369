"""Tests of goals: written for a task, and recognised from any source."""

import unittest

from environments.alfworld.games.pddl import parse
from environments.alfworld.games.tasks import (
  TASK_TYPES,
  TaskSpec,
  goal_of,
  read_goal,
)
from environments.alfworld.household import Household
from tests.environments.alfworld.small_games import make_game


class TasksTest(unittest.TestCase):
  def test_every_written_goal_is_recognised_and_not_reached_at_the_start(self):
    for kind in TASK_TYPES:
      spec = TaskSpec(kind, "mug", "shelf")
      game = make_game({"desk 1": {}, "shelf 1": {}}, {"mug 1": "desk 1"}, spec)
      with self.subTest(kind):
        self.assertEqual(read_goal(goal_of(spec)), spec)
        self.assertFalse(Household(game).is_won)

  def test_alfreds_nested_goal_is_recognised(self):
    goal = """(and (exists (?r - receptacle) (exists (?o - object) (and
      (heatable ?o) (objectType ?o EggType) (receptacleType ?r SinkBasinType)
      (isHot ?o) (inReceptacle ?o ?r)))))"""
    self.assertEqual(
      read_goal(parse(goal)),
      TaskSpec("pick_heat_then_place_in_recep", "egg", "sinkbasin"),
    )

  def test_goals_of_other_types_are_not_recognised(self):
    for goal in (
      "(exists (?o - object ?r - receptacle) (and (isSliced ?o) (inReceptacle "
      "?o ?r) (objectType ?o EggType) (receptacleType ?r DeskType)))",
      "(exists (?o - object) (objectType ?o EggType))",
    ):
      self.assertIsNone(read_goal(parse(goal)))
