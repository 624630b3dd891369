"""Tests of action matching, against nltk's own sentence-BLEU."""

import importlib
import itertools
import random
import unittest
from unittest import mock

from environments.alfworld import action_matching
from environments.alfworld.action_matching import match_action
from environments.alfworld.generation.generator import GameGenerator
from environments.alfworld.household import Household

WORDS = ("go", "to", "take", "put", "mug", "desk", "1", "2", "from")
COMMANDS = ("go to desk 1", "look", "put mug 1 in/on desk 1", "take mug 1")


def nltk_score(command, words):
  # Every process of a test run reads this file; one needs the package.
  bleu = importlib.import_module("nltk.translate.bleu_score")
  method = bleu.SmoothingFunction().method4
  return bleu.sentence_bleu([command.split()], words, smoothing_function=method)


def upstream_match(text, commands):
  """Matches as AgentBench does."""
  action = text.strip().lower().split("\n")[0]
  if action in commands:
    return action
  scores = [nltk_score(command, action.split()) for command in commands]
  best = max(range(len(scores)), key=scores.__getitem__)
  return commands[best] if scores[best] > 0.01 else action


def spoil(rng, command):
  words = command.split()
  for _ in range(rng.randint(1, 3)):
    words.insert(rng.randrange(len(words) + 1), rng.choice(("the", "to", "1")))
  if rng.random() < 0.5:
    words.pop(rng.randrange(len(words)))
  return " ".join(words)


class MatchActionTest(unittest.TestCase):
  def test_agrees_with_nltk_on_spoilt_commands(self):
    rng = random.Random(0)
    for index in range(6):
      household = Household(GameGenerator().generate("train", index).game)
      for _ in range(15):
        household.act(rng.choice(household.commands))
        text = spoil(rng, rng.choice(household.commands))
        with self.subTest(text=text):
          self.assertEqual(
            match_action(text, household.commands),
            upstream_match(text, household.commands),
          )

  def test_a_long_text_is_played_as_it_is_without_counting(self):
    counted = []

    def count(words, order):
      counted.append(len(words))
      return {}

    for num_words in (504, 604, 605, 30_000):
      text = " ".join(
        itertools.islice(itertools.cycle(COMMANDS[3].split()), num_words)
      )
      if num_words < 1000:
        self.assertEqual(
          match_action(text, COMMANDS), upstream_match(text, COMMANDS)
        )
      with mock.patch.object(action_matching, "_count", count):
        match_action(text, COMMANDS)
    self.assertEqual(max(counted), 604)

  def test_scores_are_nltks_to_the_last_bit(self):
    rng = random.Random(1)
    for _ in range(300):
      choices = rng.choices(WORDS, k=9)
      words = choices[: rng.randint(0, 9)]
      command = " ".join(rng.choices(choices, k=rng.randint(1, 6)))
      ngrams = [action_matching._count(words, n) for n in (1, 2, 3, 4)]
      self.assertEqual(
        action_matching._score(command, len(words), ngrams),
        nltk_score(command, words),
      )

  def test_nearest_command_is_played(self):
    for text, command in {
      "LOOK": "look",
      "  look ": "look",
      "look\nthen go to desk 1": "look",
      "put mug 1 on desk 1": "put mug 1 in/on desk 1",
      "walk to desk 1": "go to desk 1",
      "please look": "look",
    }.items():
      with self.subTest(text):
        self.assertEqual(match_action(text, COMMANDS), command)

  def test_text_without_a_match_is_played_as_written(self):
    for text in ("", "dance", "\x00", "x" * 10_000):
      self.assertEqual(match_action(text, COMMANDS), text)
