"""Policy slots are drawn by their weights."""

import collections
import dataclasses
import unittest

import numpy as np

from agentrl_jax.controller.cross_policy import CrossPolicy, slot_successes
from agentrl_jax.controller.player import PolicyPlayer
from agentrl_jax.data.records import Group
from agentrl_jax.errors import ConfigError
from environments.arithmetic.environment import Arithmetic
from tests.controller.stage import (
  LIMITS,
  SAMPLED,
  ScriptedEngine,
  an_episode,
  codec,
)
from tests.data.records import make_trajectory, make_turn
from tests.settings import WAITS


class CrossPolicyTest(unittest.TestCase):
  def test_shares_follow_the_weights(self):
    choose = CrossPolicy(draw_per="turn", weights=(3.0, 0.0, 1.0))
    drawn = collections.Counter(
      choose(s, t) for s in range(500) for t in range(4)
    )
    self.assertEqual(set(drawn), {0, 2})
    self.assertAlmostEqual(drawn[2] / 2000, 0.25, delta=0.04)

  def test_per_turn_changes_within_a_trajectory(self):
    choose = CrossPolicy(draw_per="turn", weights=(0.5, 0.5))
    self.assertEqual({choose(1, t) for t in range(30)}, {0, 1})

  def test_per_trajectory_stays_within_one_and_changes_between(self):
    choose = CrossPolicy(draw_per="trajectory", weights=(0.5, 0.5))
    for seed in range(20):
      self.assertEqual(len({choose(seed, t) for t in range(10)}), 1)
    self.assertEqual({choose(seed, 0) for seed in range(30)}, {0, 1})

  def test_never_is_policy_slot_0_whatever_the_weights(self):
    choose = CrossPolicy(draw_per="never", weights=(0.0, 1.0))
    self.assertEqual({choose(s, t) for s in range(9) for t in range(9)}, {0})

  def test_weights_that_draw_nothing_are_refused(self):
    for weights in ((), (0.0,)):
      with self.subTest(weights=weights), self.assertRaises(ConfigError):
        CrossPolicy(draw_per="turn", weights=weights)


class SlotSuccessesTest(unittest.TestCase):
  def test_each_slot_has_the_mean_success_of_its_turns(self):
    rng = np.random.default_rng(0)

    def played(policy_slots, reward):
      turn = make_turn(rng, observed=2, sampled=3)
      return dataclasses.replace(
        make_trajectory(rng),
        metrics={"success": reward},
        turns=tuple(
          dataclasses.replace(turn, policy_slot=z) for z in policy_slots
        ),
      )

    won, lost = played((0, 1, 1), 1.0), played((0, 1), 0.0)
    group = Group("g", won.task, (won, lost))
    name = f"policy_slots/success/policy_slot{{}}/{won.task.name}"
    self.assertEqual(
      slot_successes([group]), {name.format(0): 1 / 2, name.format(1): 2 / 3}
    )


class PlayerTest(unittest.IsolatedAsyncioTestCase):
  async def _play(self, draw):
    player = PolicyPlayer(
      environments={"arithmetic": Arithmetic()},
      generator=ScriptedEngine(),
      codec=codec(),
      limits=LIMITS,
      draw=draw,
      sampling=SAMPLED,
      waits=WAITS,
    )
    return await player.play(an_episode(seed=3))

  async def test_weights_are_on_record(self):
    draw = CrossPolicy(draw_per="turn", weights=(0.1, 0.2, 0.7))
    played = await self._play(draw)
    self.assertEqual(played.policy_slot_weights, (0.1, 0.2, 0.7))
    self.assertEqual(
      [turn.policy_slot for turn in played.turns],
      [draw(3, n) for n in range(len(played.turns))],
    )

  async def test_no_weights_where_nothing_is_drawn(self):
    draw = CrossPolicy(draw_per="never", weights=(0.1, 0.9))
    played = await self._play(draw)
    self.assertEqual(played.policy_slot_weights, ())
