"""Players find environments by the task's name in the config."""

import asyncio
import unittest

from agentrl_jax.controller.player import (
  ExpertPlayer,
  ExpertTextPlayer,
  episodes_of,
  without_expert,
)
from agentrl_jax.data.records import EpisodeLimits, Task
from agentrl_jax.errors import ConfigError
from environments.arithmetic.environment import Arithmetic
from tests.controller.stage import codec
from tests.settings import WAITS

LIMITS = EpisodeLimits(max_turns=8, max_tokens=4096, max_answer_tokens=64)


def script(environments, mistakes):
  return ExpertTextPlayer(
    environments=environments, max_turns=8, mistakes=mistakes, waits=WAITS
  )


def tokens(environments, mistakes):
  return ExpertPlayer(
    environments=environments,
    codec=codec(),
    limits=LIMITS,
    mistakes=mistakes,
    waits=WAITS,
  )


def wins(player, name, number=20):
  """Counts the first tasks that the player solves."""

  async def play():
    return [
      await player.play(spec)
      for index in range(number)
      for spec in episodes_of(
        Task(name, "train", index), group_id=str(index), seeds=[index]
      )
    ]

  return sum(t.reward == 1.0 for t in asyncio.run(play()))


class Untaught(Arithmetic):
  """Has no expert."""

  mistakes = ()

  def expert(self, task, *, seed, mistakes):
    raise NotImplementedError("none here")


class ExpertsTest(unittest.TestCase):
  def test_environments_without_one_are_found(self):
    environments = {"a": Untaught(), "b": Arithmetic(), "c": Untaught()}
    self.assertEqual(without_expert(environments, "test"), ["a", "c"])

  def test_to_play_one_that_is_not_there_is_refused(self):
    for make in (script, tokens):
      with self.assertRaisesRegex(ConfigError, "^sums has no expert"):
        wins(make({"sums": Untaught()}, {}), "sums", 1)


class MistakesTest(unittest.TestCase):
  def test_belong_to_the_name_in_the_config(self):
    """Two variants of one environment, each with mistakes of its own."""
    variants = {"sums": Arithmetic(), "large_sums": Arithmetic(max_term=999)}
    mistakes = {"sums": {"wrong_sum": 1.0}, "large_sums": {}}
    for make in (script, tokens):
      with self.subTest(player=make.__name__):
        player = make(variants, mistakes)
        self.assertEqual(wins(player, "sums"), 0)
        self.assertEqual(wins(player, "large_sums"), 20)

  def test_of_no_environment_are_refused(self):
    for make in (script, tokens):
      with self.assertRaisesRegex(ConfigError, "arithmetic.*sums"):
        make({"sums": Arithmetic()}, {"arithmetic": {"wrong_sum": 1.0}})
