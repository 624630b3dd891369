"""Instructions and price limits are as upstream's."""

import math
import random
import re
import unittest

from environments.webshop.generation.goals import (
  canonical_goal,
  draw_price_upper,
  make_goal,
  price_text,
)
from tests.environments.webshop.shelf import LAMP, SHIRT


class PriceTest(unittest.TestCase):
  def draws(self, price):
    return {draw_price_upper(random.Random(i), price) for i in range(200)}

  def test_the_larger_of_two_of_the_next_four_tens(self):
    self.assertEqual(self.draws(23.5), {40.0, 50.0, 60.0})
    self.assertEqual(self.draws(20.0), {40.0, 50.0, 60.0})  # 30 is the smaller

  def test_near_the_end_there_are_fewer_tens(self):
    self.assertEqual(self.draws(970.0), {990.0})
    self.assertEqual(self.draws(985.0), {math.inf})

  def test_an_infinite_limit_is_left_out(self):
    self.assertEqual(price_text(math.inf), "")
    self.assertEqual(price_text(40.0), ", and price lower than 40.00 dollars")


class MakeGoalTest(unittest.TestCase):
  def test_names_options_and_price_in_upstreams_words(self):
    end = re.compile(
      r" with color: (red|blue), and size: (small|large), and price lower than "
      r"(40|50|60)\.00 dollars$"
    )
    for seed in range(50):
      goal = make_goal(random.Random(seed), SHIRT, SHIRT.attributes)
      match = end.search(goal.instruction)
      self.assertEqual(match.groups()[:2], goal.options)
      self.assertEqual(float(match[3]), goal.price_upper)
      self.assertIn("shirt", goal.instruction)
      for attribute in goal.attributes:
        self.assertIn(attribute, goal.instruction)
        self.assertIn(attribute, SHIRT.attributes)

  def test_a_goal_without_options_names_none(self):
    goal = make_goal(random.Random(0), LAMP, LAMP.attributes)
    self.assertEqual(goal.options, ())
    self.assertNotIn(" with ", goal.instruction)

  def test_canonical_goals_are_independent_of_wording(self):
    goals = [
      make_goal(random.Random(seed), LAMP, LAMP.attributes)
      for seed in range(50)
    ]
    self.assertGreater(len({goal.instruction for goal in goals}), 10)
    self.assertEqual(len({canonical_goal(goal) for goal in goals}), 1)

  def test_canonical_goals_are_independent_of_the_attributes_order(self):
    goals = [
      make_goal(random.Random(seed), SHIRT, SHIRT.attributes)
      for seed in range(200)
    ]
    both = [goal for goal in goals if len(goal.attributes) == 2]
    self.assertEqual(len({goal.attributes for goal in both}), 2)
    self.assertEqual(len({(canonical_goal(g), g.options) for g in both}), 4)
