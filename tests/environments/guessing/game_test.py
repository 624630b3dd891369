"""Tests of the game's rules."""

import random
import unittest

from environments.guessing.game import (
  ATTRIBUTES,
  GuessingGame,
  best_question,
  describe,
  draw_game,
)

THINGS = (("red", "star"), ("red", "circle"), ("blue", "star"))
GAME = GuessingGame(("colour", "shape"), THINGS, secret=2)


class GameTest(unittest.TestCase):
  def test_values_belong_to_one_attribute(self):
    """Else a question by its value alone would be two questions."""
    values = [value for values in ATTRIBUTES.values() for value in values]
    self.assertEqual(len(set(values)), len(values))

  def test_answers(self):
    self.assertEqual(GAME.fitting(("colour", "red"), True), {0, 1})
    self.assertEqual(GAME.fitting(("shape", "star"), False), {1})
    self.assertFalse(GAME.has(GAME.secret, ("colour", "red")))

  def test_both_answers_share_the_things(self):
    for question in GAME.questions:
      yes, no = (GAME.fitting(question, x) for x in (True, False))
      self.assertEqual(yes | no, {0, 1, 2})
      self.assertFalse(yes & no)

  def test_the_best_question_halves(self):
    game = draw_game(16, 2, random.Random(0))
    kept = {n for n, thing in enumerate(game.things) if thing[0] == "red"}
    name, _ = best_question(game, kept)
    self.assertEqual(name, "shape")  # nothing is left to ask of the colour

  def test_things_differ_and_have_the_attributes_last_named(self):
    game = draw_game(64, 3, random.Random(1))
    self.assertEqual(len(set(game.things)), 64)
    self.assertEqual(game.names, ("pattern", "colour", "shape"))
    self.assertEqual(len(game.questions), 12)

  def test_lines_count_from_one(self):
    self.assertEqual(describe(THINGS[:2]), "1: red star\n2: red circle")
