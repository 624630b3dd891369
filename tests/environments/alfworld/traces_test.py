"""Compares the household with traces of TextWorld's engine on random walks.

A trace has the PDDL problem, and for each step the command, the feedback, the
removed commands, the added commands, and `won`.
"""

import gzip
import json
import pathlib
import unittest

from environments.alfworld.games.game import GameDialect
from environments.alfworld.games.pddl import read_problem
from environments.alfworld.household import Household

TRACES = pathlib.Path(__file__).with_name("traces.jsonl.gz")


class TracesTest(unittest.TestCase):
  def test_household_replies_as_recorded(self):
    num_steps = 0
    with gzip.open(TRACES, "rt", encoding="utf-8") as lines:
      for line in lines:
        trace = json.loads(line)
        with self.subTest(trace["name"]):
          num_steps += self.replay(trace)
    self.assertGreater(num_steps, 1000)

  def replay(self, trace) -> int:
    dialect = trace["dialect"] | {
      "cleans_in": tuple(trace["dialect"]["cleans_in"])
    }
    game = read_problem(
      trace["problem"], task=trace["task"], dialect=GameDialect(**dialect)
    )
    household = Household(game)
    reply = household.intro
    commands: list[str] = []
    for command, feedback, removed, added, won in trace["steps"]:
      if command is not None:
        reply = household.act(command)
      commands = sorted({*commands, *added} - {*removed})
      self.assertEqual(reply, feedback)
      self.assertEqual(household.commands, commands)
      self.assertEqual(household.is_won, won)
    return len(trace["steps"])
