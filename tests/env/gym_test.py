"""Gymnasium's own environments keep the contract once they are wrapped."""

import json
import unittest

import gymnasium

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.env.gym import GymEnvironment
from agentrl_jax.env.loading import load_environment
from agentrl_jax.errors import ConfigError

TAXI = max(id for id in gymnasium.registry if id.startswith("Taxi-v"))
MOVES = ("left", "down", "right", "up")


def a_call(**arguments):
  call = ToolCall("act", json.dumps(arguments), "c1")
  return Message("assistant", tool_calls=(call,))


class TaxiTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return GymEnvironment(TAXI, max_rounds=20, reward_range=(-200, 20))


class BlackjackTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return GymEnvironment(
      "Blackjack-v1", actions=("stick", "hit"), reward_range=(-1, 1)
    )


class CartPoleTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return GymEnvironment(
      "CartPole-v1",
      options={"max_episode_steps": 30},
      reward_range=(0, 31),
      truncated_is_completed=True,
    )


class MountainCarTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  """Actions are arrays, and it runs in a thread of its own."""

  def make_environment(self):
    return GymEnvironment(
      "MountainCarContinuous-v0",
      max_rounds=30,
      reward_range=(-100, 100),
      blocking=True,
    )


class FrozenLakeTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  split_by = "seed"  # it always begins at the same place

  def make_environment(self):
    return GymEnvironment(
      "FrozenLake-v1", actions=MOVES, split_by="seed", max_rounds=30
    )


class PlayTest(unittest.IsolatedAsyncioTestCase):
  async def test_a_lake_is_crossed(self):
    environment = GymEnvironment(
      "FrozenLake-v1",
      options={"is_slippery": False},
      actions=MOVES,
      instructions="Reach 15 on a lake four wide.",
      split_by="seed",
    )
    task = Task("FrozenLake-v1", "train", 0)
    async with environment.open(task, seed=0) as session:
      first = await session.reset()
      self.assertEqual(
        first.messages,
        (Message("user", "Reach 15 on a lake four wide.\n\n0"),),
      )
      path = ["down", "down", "right", "right", "down", "right"]
      steps = [await session.step(a_call(action=move)) for move in path]
    self.assertEqual(
      [step.messages[0].content for step in steps],
      ["4", "8", "9", "10", "14", "15"],
    )
    self.assertEqual([step.reward for step in steps], [0, 0, 0, 0, 0, 1])
    self.assertIs(steps[-2].status, Status.RUNNING)
    self.assertIs(steps[-1].status, Status.COMPLETED)
    self.assertEqual(steps[-1].metrics, {"num_actions": 6.0, "return": 1.0})

  async def test_truncation_is_the_limit_or_the_end(self):
    for truncated_is_completed, status in (
      (False, Status.TASK_LIMIT_REACHED),
      (True, Status.COMPLETED),
    ):
      environment = GymEnvironment(
        "CartPole-v1",
        options={"max_episode_steps": 2},
        truncated_is_completed=truncated_is_completed,
      )
      task = Task("CartPole-v1", "train", 0)
      async with environment.open(task, seed=0) as session:
        await session.reset()
        await session.step(a_call(action=0))
        step = await session.step(a_call(action=1))
      self.assertEqual((step.status, step.reward), (status, 2.0))

  async def test_one_first_observation_makes_no_two_splits(self):
    environment = GymEnvironment("FrozenLake-v1")
    with self.assertRaisesRegex(ConfigError, "split_by='seed'"):
      for split in ("train", "test"):
        async with environment.open(Task("x", split, 0), seed=0):
          pass

  async def test_the_configs_way(self):
    environment = load_environment(
      "agentrl_jax.env.gym:GymEnvironment",
      {"id": TAXI, "max_rounds": 1},
    )
    async with environment.open(Task("x", "train", 0), seed=0) as session:
      await session.reset()
      step = await session.step(a_call(action=0))
    self.assertIs(step.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(step.reward, -1.0)


class RefusedTest(unittest.TestCase):
  def test_what_cannot_be_made(self):
    for id, options in {
      "NoSuchGame-v0": {},
      "FrozenLake-v1": {"actions": ("left", "right")},
      "CartPole-v1": {"options": {"no_such_option": 1}},
      TAXI: {"no_such_rule": 1},
      "Blackjack-v1": {"reward_range": (1, -1)},
    }.items():
      with self.subTest(id=id), self.assertRaises(ConfigError):
        GymEnvironment(id, **options)


if __name__ == "__main__":
  unittest.main()
