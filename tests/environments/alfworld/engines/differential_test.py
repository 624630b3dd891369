"""Compares the household with the real engine on random walks.

Traces that `make_traces` recorded of the real engine are compared everywhere;
the engine itself where it is installed.
"""

import gzip
import json
import pathlib
import random
import unittest

import pytest

from environments.alfworld.engines.engine import PythonEngine
from environments.alfworld.engines.household import Household
from environments.alfworld.engines.textworld_engine import TextWorldEngine
from environments.alfworld.games.game import GameDialect
from environments.alfworld.games.game_files import GAME_FILE, load_game
from environments.alfworld.games.pddl import read_problem
from environments.alfworld.generation.generator import GameGenerator
from tests.environments.alfworld import data
from tests.environments.alfworld.engines.walks import choose, draw_game

TRACES = pathlib.Path(__file__).with_name("traces.jsonl.gz")
NUM_GAMES = 40
NUM_STEPS = 60


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


@pytest.mark.full
@pytest.mark.timeout(3600)
class DifferentialTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    data.needs_textworld()
    self.real = TextWorldEngine(num_processes=1, reply_limit_s=120.0)
    self.addAsyncCleanup(self.real.close)

  async def test_drawn_games(self):
    for seed in range(NUM_GAMES):
      with self.subTest(seed=seed):
        await self.compare(draw_game(seed), seed)

  async def test_generated_games(self):
    for index in range(NUM_GAMES // 5):
      with self.subTest(index=index):
        await self.compare(GameGenerator().generate("test", index).game, index)

  async def test_alfworlds_own_games(self):
    paths = sorted(data.games().rglob(GAME_FILE))
    for path in random.Random(0).sample(paths, min(20, len(paths))):
      game = load_game(path)
      with self.subTest(path=path.parent.parent.name):
        await self.compare(game, 0)

  async def compare(self, game, seed):
    rng = random.Random(seed)
    async with self.real.open(game) as real, PythonEngine().open(game) as ours:
      expected, state = await real.begin(), await ours.begin()
      self.assertEqual(state, expected)
      for _ in range(NUM_STEPS):
        command = choose(rng, state.commands)
        expected, state = await real.act(command), await ours.act(command)
        self.assertEqual(state, expected, command)
