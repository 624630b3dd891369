"""The reward, case by case, as upstream's code would pay."""

import dataclasses
import unittest

from environments.webshop.shop.colours import reduce_to_colour
from environments.webshop.shop.nouns import nouns
from environments.webshop.shop.reward import judge, matches
from tests.environments.webshop.shelf import (
  DEARER,
  GOAL,
  LAMP,
  SHIRT,
  a_product,
)

RIGHT = ("red", "large")


class JudgeTest(unittest.TestCase):
  def reward(self, product, chosen, goal=GOAL):
    return judge(product, chosen, goal).reward

  def test_all_right_is_one(self):
    verdict = judge(SHIRT, RIGHT, GOAL)
    self.assertEqual(verdict.reward, 1.0)
    self.assertEqual(
      verdict.metrics,
      {"success": 1, "r_type": 1, "r_att": 1, "r_option": 1, "r_price": 1},
    )

  def test_every_wish_is_one_share(self):
    self.assertAlmostEqual(self.reward(SHIRT, ("red",)), 3 / 4)
    self.assertAlmostEqual(self.reward(SHIRT, ()), 2 / 4)
    self.assertAlmostEqual(self.reward(DEARER, RIGHT), 3 / 4)
    self.assertAlmostEqual(self.reward(DEARER, ()), 1 / 4)

  def test_a_price_at_the_limit_is_met(self):
    goal = dataclasses.replace(GOAL, price_upper=20.0)
    self.assertEqual(self.reward(SHIRT, RIGHT, goal), 1.0)
    goal = dataclasses.replace(GOAL, price_upper=19.99)
    self.assertAlmostEqual(self.reward(SHIRT, RIGHT, goal), 3 / 4)

  def test_no_wanted_option_is_no_share(self):
    goal = dataclasses.replace(GOAL, options=())
    verdict = judge(SHIRT, (), goal)
    self.assertEqual(verdict.reward, 1.0)
    self.assertNotIn("r_option", verdict.metrics)

  def test_attributes_may_stand_in_any_text(self):
    goal = dataclasses.replace(GOAL, attributes=("hand made",))
    for where in (
      {"attributes": ("hand made shirt",)},
      {"title": "Hand Made shirt"},
      {"description": "all hand made"},
      {"features": ("soft", "Hand made")},
    ):
      with self.subTest(where=where):
        fields = {"id": "b9", "title": "shirt", "attributes": (), **where}
        product = a_product(**fields)
        self.assertEqual(judge(product, RIGHT, goal).r_att, 1.0)
    self.assertEqual(judge(SHIRT, RIGHT, goal).r_att, 0.0)

  def test_another_kind_is_worth_nothing(self):
    self.assertEqual(self.reward(LAMP, RIGHT), 0.0)


class TypeTest(unittest.TestCase):
  """r_type, which scales all the rest."""

  WANTED = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo"

  def r_type(self, title, *, query="lamp", category="Other"):
    wanted = a_product("b1", self.WANTED)
    goal = dataclasses.replace(GOAL, product=wanted)
    bought = a_product("b2", title, query=query, category=category)
    return judge(bought, RIGHT, goal).r_type

  def test_by_shared_words_alone(self):
    self.assertEqual(self.r_type("zulu"), 0.0)
    self.assertEqual(self.r_type("alpha"), 0.1)  # 1 of 11, below a tenth
    self.assertEqual(self.r_type("alpha bravo"), 0.5)  # 2 of 11, to a fifth
    self.assertEqual(self.r_type("alpha bravo charlie"), 1.0)

  def test_the_kind_or_two_category_parts_make_up_for_words(self):
    self.assertEqual(self.r_type("alpha bravo", query="shirt"), 1.0)
    category = "Shirts › Women › Clothing"  # order does not matter
    self.assertEqual(self.r_type("alpha bravo", category=category), 1.0)
    category = "Clothing › Women › Dresses"
    self.assertEqual(self.r_type("alpha bravo", category=category), 0.5)

  def test_nothing_makes_up_for_no_word_at_all(self):
    self.assertEqual(self.r_type("zulu", query="shirt"), 0.0)
    self.assertEqual(self.r_type("alpha", query="shirt"), 0.1)

  def test_a_wanted_title_without_nouns_is_no_obstacle(self):
    goal = dataclasses.replace(GOAL, product=a_product("b1", "100"))
    self.assertEqual(judge(SHIRT, RIGHT, goal).r_type, 1.0)

  def test_repeats_in_the_wanted_title_weigh(self):
    goal = dataclasses.replace(
      GOAL, product=a_product("b1", "lamp " + "shade " * 10)
    )
    bought = a_product("b2", "lamp")
    self.assertEqual(judge(bought, RIGHT, goal).r_type, 0.1)


class MatchTest(unittest.TestCase):
  def test_fuzziness(self):
    for value, wanted, expected in (
      ("Slim-Fit", "slim fit", True),
      ("x-large", "large", True),  # upstream's quirk: all its words are there
      ("large", "small", False),
      ("easy clean", "easy use", False),
      ("pack of 2", "pack of 4", True),  # and another
      ("16gb", "32gb", False),
    ):
      with self.subTest(value=value, wanted=wanted):
        self.assertEqual(matches(value, wanted), expected)

  def test_scores_are_rounded_before_they_are_compared(self):
    # Of twice 27 letters 2 * 23 agree: 85.19, which upstream rounds to 85.
    self.assertFalse(matches("a" * 23 + "bbbb", "a" * 23 + "cccc"))
    self.assertTrue(matches("a" * 24 + "bbb", "a" * 24 + "ccc"))

  def test_colours_are_compared_by_their_base(self):
    self.assertEqual(judge(SHIRT, ("dark red", "large"), GOAL).r_option, 0.5)
    self.assertEqual(judge(SHIRT, ("cherry red", "large"), GOAL).r_option, 1.0)

  def test_reduction_to_a_colour(self):
    for option, colour in (
      ("light blue", "blue"),  # "blue" stands before "light" in the list
      ("dark red", "dark"),
      ("standard", "tan"),
      ("queen", "queen"),
    ):
      with self.subTest(option=option):
        self.assertEqual(reduce_to_colour(option), colour)


class NounsTest(unittest.TestCase):
  def test_names_stay_and_the_rest_goes(self):
    self.assertEqual(
      nouns("Vhomes Lights 2-Pack of the New Soft Women's Sofa-Tables, 100%"),
      ["vhomes", "lights", "pack", "women", "sofa", "tables"],
    )


if __name__ == "__main__":
  unittest.main()
