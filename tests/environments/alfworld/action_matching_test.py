"""The action that is meant, against nltk's own sentence-BLEU."""

import random
import unittest

from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

from environments.alfworld import action_matching
from environments.alfworld.action_matching import snap
from environments.alfworld.engines.household import Household
from tests.environments.alfworld.engines.walks import draw_game

WORDS = ("go", "to", "take", "put", "mug", "desk", "1", "2", "from")
COMMANDS = ("go to desk 1", "look", "put mug 1 in/on desk 1", "take mug 1")


def reference(written, commands):
  """As AgentBench has it."""
  action = written.strip().lower().split("\n")[0]
  if action in commands:
    return action
  smooth = SmoothingFunction().method4
  scores = [
    sentence_bleu([command.split()], action.split(), smoothing_function=smooth)
    for command in commands
  ]
  best = max(range(len(scores)), key=scores.__getitem__)
  return commands[best] if scores[best] > 0.01 else action


class SnapTest(unittest.TestCase):
  def test_agrees_with_nltk_on_spoilt_commands(self):
    rng = random.Random(0)
    for seed in range(6):
      household = Household(draw_game(seed))
      for _ in range(15):
        household.act(rng.choice(household.commands))
        written = self.spoil(rng, rng.choice(household.commands))
        with self.subTest(written=written):
          self.assertEqual(
            snap(written, household.commands),
            reference(written, household.commands),
          )

  def test_scores_are_nltks_to_the_last_bit(self):
    smooth = SmoothingFunction().method4
    rng = random.Random(1)
    for _ in range(300):
      words = rng.choices(WORDS, k=9)
      written = words[: rng.randint(0, 9)]
      command = " ".join(rng.choices(words, k=rng.randint(1, 6)))
      ngrams = [action_matching._count(written, n) for n in (1, 2, 3, 4)]
      self.assertEqual(
        action_matching._score(command, len(written), ngrams),
        sentence_bleu([command.split()], written, smoothing_function=smooth),
      )

  def test_case_space_and_further_lines_do_not_matter(self):
    for written in ("LOOK", "  look ", "look\nthen go to desk 1"):
      self.assertEqual(snap(written, COMMANDS), "look")

  def test_the_nearest_command_is_taken(self):
    for written, meant in {
      "put mug 1 on desk 1": "put mug 1 in/on desk 1",
      "walk to desk 1": "go to desk 1",
      "please look": "look",
    }.items():
      self.assertEqual(snap(written, COMMANDS), meant)

  def test_what_resembles_nothing_is_played_as_written(self):
    for written in ("", "dance", "\x00", "x" * 10_000):
      self.assertEqual(snap(written, COMMANDS), written)

  def spoil(self, rng, command):
    words = command.split()
    for _ in range(rng.randint(1, 3)):
      words.insert(
        rng.randrange(len(words) + 1), rng.choice(("the", "to", "1"))
      )
    if rng.random() < 0.5:
      words.pop(rng.randrange(len(words)))
    return " ".join(words)


if __name__ == "__main__":
  unittest.main()
