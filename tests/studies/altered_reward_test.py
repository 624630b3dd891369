"""Rewards that are rarer, coarser or meaningless; success stays what it is."""

import unittest

from agentrl_jax.controller.episode import EpisodeWaits
from agentrl_jax.controller.evaluation import evaluate
from agentrl_jax.controller.groups.group import RetryLimits
from agentrl_jax.controller.player import ExpertTextPlayer
from agentrl_jax.data.records import EpisodeSpec, Status, Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.env.interface import Step
from studies.altered_reward import AlteredReward

TARGET = "environments.arithmetic.environment:Arithmetic"


def altered(**options):
  return AlteredReward(target=TARGET, options={"num_tasks": 400}, **options)


async def play(environment, *, num=200, wrong=0.0):
  """Plays the expert; returns the trajectories."""
  player = ExpertTextPlayer(
    environments={"arithmetic": environment},
    max_turns=4,
    mistakes={"arithmetic": {"wrong_sum": wrong}},
    waits=EpisodeWaits(),
  )
  return [
    await player.play(
      EpisodeSpec(
        task=Task("arithmetic", "train", i // 2),
        group_id="g",
        attempt=i % 2,
        seed=i,
      )
    )
    for i in range(num)
  ]


class AlteredRewardTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return AlteredReward(target=TARGET)

  async def test_unaltered_it_is_the_same(self):
    played = await play(altered(), wrong=0.5)
    self.assertEqual(
      [t.reward for t in played], [float(t.is_success) for t in played]
    )
    self.assertLess(sum(t.reward for t in played), 180)

  async def test_paid_tasks_pay_every_attempt_and_others_none(self):
    played = await play(altered(paid_tasks=0.25))
    self.assertTrue(all(t.is_success for t in played))
    by_task = [
      {t.reward for t in played if t.task.index == i} for i in range(100)
    ]
    self.assertTrue(all(len(rewards) == 1 for rewards in by_task))
    paid = sum(rewards == {1.0} for rewards in by_task)
    self.assertTrue(15 <= paid <= 35, paid)

  async def test_paid_episodes_are_drawn_one_by_one(self):
    played = await play(altered(paid_episodes=0.5))
    self.assertTrue(all(t.is_success for t in played))
    self.assertTrue(80 <= sum(t.reward for t in played) <= 120)
    again = await play(altered(paid_episodes=0.5))
    self.assertEqual([t.reward for t in played], [t.reward for t in again])

  async def test_a_meaningless_reward_knows_nothing_of_success(self):
    played = await play(altered(meaningless=0.3), wrong=0.5)
    wins = [t.reward for t in played if t.is_success]
    losses = [t.reward for t in played if not t.is_success]
    self.assertAlmostEqual(sum(wins) / len(wins), 0.3, delta=0.12)
    self.assertAlmostEqual(sum(losses) / len(losses), 0.3, delta=0.12)

  def test_levels_round_down(self):
    def reward(value, levels):
      step = Step((), value, Status.COMPLETED)
      task = Task("arithmetic", "train", 0)
      return altered(levels=levels).reward_of(step, task, 0)

    self.assertEqual([reward(x, 1) for x in (0.0, 0.99, 1.0)], [0.0, 0.0, 1.0])
    self.assertEqual([reward(x, 4) for x in (0.3, 0.75)], [0.25, 0.75])
    self.assertAlmostEqual(reward(0.1 + 0.2, 10), 0.3)
    self.assertEqual(reward(0.37, 0), 0.37)

  async def test_an_evaluation_counts_true_success(self):
    environment = altered(paid_tasks=0.0)
    scores = await evaluate(
      ExpertTextPlayer(
        environments={"arithmetic": environment},
        max_turns=4,
        mistakes={},
        waits=EpisodeWaits(),
      ),
      [Task("arithmetic", "test", i) for i in range(8)],
      concurrency=4,
      seed=0,
      retries=RetryLimits(),
      timeout_s=60.0,
    )
    self.assertEqual(scores["arithmetic"].success_rate, 1.0)
    self.assertEqual(scores["arithmetic"].mean_reward, 0.0)
