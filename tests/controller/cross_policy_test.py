"""Policy slots are drawn by their weights, which learn from batches."""

import collections
import json
import unittest

import numpy as np

from agentrl_jax.controller.cross_policy import CrossPolicy, PolicySlotChooser
from agentrl_jax.controller.player import PolicyPlayer
from agentrl_jax.controller.policy_slot_weights import PolicySlotWeightsConfig
from agentrl_jax.data.records import Group, Status, Task, Trajectory
from agentrl_jax.errors import ConfigError
from configs.base import defaults
from environments.arithmetic.environment import Arithmetic
from tests.controller.policy_slot_weights_test import a_turn, metrics
from tests.controller.stage import (
  LIMITS,
  SAMPLED,
  ScriptedEngine,
  an_episode,
  codec,
)
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

  def test_shares_are_what_is_drawn_by(self):
    weights = (3.0, 0.0, 1.0)
    for draw_per, shares in (("turn", (0.75, 0, 0.25)), ("never", (1, 0, 0))):
      choose = CrossPolicy(draw_per=draw_per, weights=weights)
      self.assertEqual(choose.shares, shares)

  def test_wrong_settings_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "turn, trajectory, never"):
      CrossPolicy(draw_per="step", weights=(1.0,))
    for weights in ((), (0.0,), (-1.0, 2.0), (float("nan"), 1.0)):
      with self.subTest(weights=weights), self.assertRaises(ConfigError):
        CrossPolicy(draw_per="turn", weights=weights)


TASKS = {"a": 0, "b": 1}
# Success of an attempt whose every turn falls on policy slot 0, and on policy
# slot 1: old weights still solve what the policy has unlearnt in one task.
SKILL = {"a": (0.2, 0.8), "b": (0.9, 0.3)}


def a_chooser(**changes):
  config = {"rule": "adaptive", "min_sample_size": 0.0, **changes}
  return PolicySlotChooser(
    CrossPolicy(draw_per="turn", weights=(3.0, 1.0)),
    defaults(PolicySlotWeightsConfig, "policy_slot_weights", **config),
    TASKS,
  )


def play(chooser, batch, *, num_groups=20, size=4):
  """Makes groups whose success depends on the policy slots of the chooser."""
  groups = []
  for n in range(num_groups):
    name = "ab"[n % 2]
    task = Task(name, "train", n)
    draw = chooser.draw_for(task)
    members = []
    for attempt in range(size):
      seed = (batch * num_groups + n) * size + attempt
      policy_slots = [draw(seed, turn) for turn in range(3)]
      chance = np.mean([SKILL[name][slot] for slot in policy_slots])
      won = np.random.default_rng(seed).random() < chance
      members.append(
        Trajectory(
          task,
          str(n),
          attempt,
          seed,
          tuple(map(a_turn, policy_slots)),
          Status.COMPLETED,
          float(won),
        )
      )
    groups.append(Group(str(n), task, tuple(members)))
  return groups


def drawn(groups):
  """Lists the policy slots of every episode."""
  return [
    [turn.policy_slot for turn in t.turns]
    for g in groups
    for t in g.trajectories
  ]


def weight(chooser, task):
  weight_Z = chooser.draw_for(Task(task, "train", 0)).weights
  return weight_Z[1] / sum(weight_Z)


class PolicySlotChooserTest(unittest.TestCase):
  def test_finds_where_the_older_version_helps(self):
    chooser = a_chooser(exploration=0.0)
    self.assertEqual(weight(chooser, "a"), 0.25)
    for batch in range(15):
      chooser.learn(play(chooser, batch), {})
    self.assertGreater(weight(chooser, "a"), 0.5)
    self.assertLess(weight(chooser, "b"), 0.15)

  def test_leaves_a_version_that_has_drifted(self):
    near, far = a_chooser(), a_chooser()
    for batch in range(6):
      groups = play(near, batch)
      near.learn(groups, metrics(kl=0.001) | metrics(task="b", kl=0.001))
      far.learn(groups, metrics(kl=0.4) | metrics(task="b", kl=0.4))
    for task in TASKS:
      self.assertLess(weight(far, task), 0.5 * weight(near, task))

  def test_fixed_weights_stay_and_are_reported_on(self):
    fixed = CrossPolicy(draw_per="turn", weights=(3.0, 1.0))
    chooser = PolicySlotChooser(
      fixed, defaults(PolicySlotWeightsConfig, "policy_slot_weights"), TASKS
    )
    groups = play(chooser, 0)
    report = chooser.learn(groups, metrics(kl=0.4))
    self.assertIs(chooser.draw_for(groups[0].task), fixed)
    self.assertEqual(report["policy_slots/weight/policy_slot1/a"], 0.25)
    turns = [
      (turn.policy_slot, t.reward)
      for g in groups
      if g.task.name == "a"
      for t in g.trajectories
      for turn in t.turns
    ]
    rewards = [reward for policy_slot, reward in turns if policy_slot == 1]
    for name, expected in (
      ("share", len(rewards) / len(turns)),
      ("success", np.mean(rewards)),
    ):
      actual = report[f"policy_slots/{name}/policy_slot1/a"]
      self.assertAlmostEqual(actual, expected, msg=name)
    self.assertLess(report["policy_slots/predicted_sample_size/a"], 1.0)

  def test_restored_it_draws_as_it_would_have(self):
    through = a_chooser()
    again = None
    for batch in range(8):
      groups = play(through, batch)
      if again is not None:
        self.assertEqual(drawn(play(again, batch)), drawn(groups))
        again.learn(groups, metrics())
      through.learn(groups, metrics())
      if batch == 3:
        kept = json.dumps(through.snapshot())
        again = a_chooser()
        again.restore(json.loads(kept))
    self.assertEqual(again.snapshot(), through.snapshot())

  def test_an_episode_keeps_the_weights_that_it_began_with(self):
    chooser = a_chooser()
    draw = chooser.draw_for(Task("a", "train", 0))
    before = [draw(9, turn) for turn in range(50)]
    for batch in range(5):
      chooser.learn(play(chooser, batch), {})
    self.assertEqual([draw(9, turn) for turn in range(50)], before)
    later = chooser.draw_for(Task("a", "train", 0))
    self.assertNotEqual([later(9, turn) for turn in range(50)], before)


class PlayerTest(unittest.IsolatedAsyncioTestCase):
  async def _play(self, draw):
    player = PolicyPlayer(
      environments={"arithmetic": Arithmetic()},
      generator=ScriptedEngine(),
      codec=codec(),
      limits=LIMITS,
      draw_for=lambda task: draw,
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
