"""Tests of TextArena's games of one player, by the package itself."""

import asyncio
import os
import random
import subprocess
import sys
import unittest

import numpy as np
import pytest

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError

pytest.importorskip("textarena", reason="pip install agentrl_jax[puzzles]")

from agentrl_jax.env.adapters.textarena import TextArena  # noqa: E402


class LakeTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return TextArena("FrozenLake-v0-random", max_rounds=20)


class NumberTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  """All games begin alike: their secrets are of one split each."""

  split_by = "seed"

  def make_environment(self):
    return TextArena("GuessTheNumber-v0")

  def _make_task(self, split="train"):
    return Task("GuessTheNumber-v0", split, 0)

  async def test_a_number_is_found(self):
    environment = self.make_environment()
    low, high = 1, 20
    async with environment.open(self._make_task(), seed=0) as session:
      step = await session.reset()
      self.assertEqual(session.tools, ())
      while step.status is Status.RUNNING:
        guess = (low + high) // 2
        answer = f"<think>[{low}] or [{high}]?</think> It is [{guess}]."
        step = await session.step(Message("assistant", answer))
        text = step.messages[-1].content
        low = guess + 1 if "higher" in text else low
        high = guess - 1 if "lower" in text else high
    self.assertEqual((step.reward, step.status), (1.0, Status.COMPLETED))
    self.assertIn("You guessed the correct number", text)

  def test_no_secret_is_in_both_splits(self):
    environment = self.make_environment()
    secrets = [
      {
        environment.training_information(Task("x", split, index))
        for index in range(100)
      }
      for split in SPLITS
    ]
    self.assertGreater(min(map(len, secrets)), 4)
    self.assertFalse(secrets[0] & secrets[1])


class ChanceTest(unittest.IsolatedAsyncioTestCase):
  async def _play(self, seed=0, **rules):
    environment = TextArena("Bandit-v0", **rules)
    texts = []
    task = Task("Bandit-v0", "train", 0)
    async with environment.open(task, seed=seed) as session:
      step = await session.reset()
      while step.status is Status.RUNNING:
        random.random()
        np.random.rand()
        await asyncio.sleep(0)
        step = await session.step(Message("assistant", "[red]"))
        texts += [message.content for message in step.messages]
    return texts

  async def test_others_do_not_change_a_games_chance(self):
    alone = await self._play()
    together = await asyncio.gather(*(self._play() for _ in range(3)))
    self.assertEqual(together, [alone] * 3)

  async def test_a_game_does_not_change_the_chance_of_others(self):
    for module in (random, np.random):
      module.seed(3)
    expected = random.random(), np.random.rand()
    for module in (random, np.random):
      module.seed(3)
    environment = TextArena("Bandit-v0")
    task = Task("Bandit-v0", "train", 0)
    async with environment.open(task, seed=0) as session:
      await session.step(Message("assistant", "[red]"))
    drawn = random.random(), np.random.rand()
    self.assertEqual(drawn, expected)

  async def test_by_episode_attempts_differ(self):
    plays = [await self._play(n, chance_by="episode") for n in range(3)]
    self.assertGreater(len({str(play) for play in plays}), 1)
    self.assertEqual(plays[0], await self._play(0, chance_by="episode"))


@pytest.mark.slow
class ProcessesTest(unittest.TestCase):
  def test_problems_are_alike_in_every_process(self):
    program = (
      "from agentrl_jax.env.adapters.textarena import TextArena;"
      "print([TextArena(id).problem(7) for id in"
      " ('Crosswords-v0', 'LogicPuzzle-v0', 'Mastermind-v0')])"
    )
    shown = {
      subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": seed},
        check=True,
        capture_output=True,
      ).stdout
      for seed in "12"
    }
    self.assertEqual(len(shown), 1)


class RefusedTest(unittest.TestCase):
  def test_games_that_cannot_be_played_are_refused(self):
    for id, sentence in (
      ("FrozenLake-v9", "did you mean FrozenLake-v0"),
      ("TicTacToe-v0", "has to be 2, received 1"),
      ("Countdown-v0", "begins alike with any seed"),
    ):
      with self.subTest(id=id), self.assertRaisesRegex(ConfigError, sentence):
        TextArena(id)
    with self.assertRaisesRegex(ConfigError, "holes"):
      TextArena("FrozenLake-v0", options={"holes": 3})
