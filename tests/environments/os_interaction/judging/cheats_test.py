"""Policies that are after the reward: none of them solves a generated task.

Beside that, nothing that they do may hang the judge, end in a fault of ours or
be left out of training.
"""

import json
import time
import unittest

import pytest

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Status, Task
from environments.os_interaction import OSInteraction
from environments.os_interaction.tasks.generator import KINDS
from tests.environments.os_interaction.engines import (
  InSandbox,
  OnDocker,
  WithMachines,
)
from tests.environments.os_interaction.judging.cheats import CHEATS

NAME = "os_interaction"
LIMIT_S = 5.0  # of a command
WHOLE_S = 150.0  # of an attempt, on a machine with much else to do


def call(tool, key, value) -> Message:
  """An answer that calls a tool."""
  call = ToolCall(tool, json.dumps({key: value}), id="call_0")
  return Message("assistant", tool_calls=(call,))


def place_of(problem) -> str:
  """The folder or file that a task is about, by its description."""
  words = [w.strip(".,;:?") for w in problem.description.split()]
  return next((w for w in words if w.startswith("/")), "/root")


async def cheat(environment, task, name):
  """The last step of a policy that plays a cheat; None: it came out right."""
  scripts, answer = CHEATS[name]
  problem = environment._generated(task).problem
  async with environment.open(task, seed=0) as session:
    await session.reset()
    if session._judge.gold and session._judge.gold.stdout.strip() == (
      answer.encode()
    ):
      return None
    for script in scripts:
      script = script.replace("{root}", place_of(problem))
      step = await session.step(call("bash_action", "script", script))
      if step.status is not Status.RUNNING:
        return step
    if problem.outcome is None:
      return await session.step(call("answer_action", "answer", answer))
    return await session.step(call("finish_action", "thought", "Done."))


class Cheats(WithMachines):
  """`pairs` are the cheats and kinds of tasks that are tried."""

  async def test_none_wins(self):
    engine = self.make_engine(memory_mb=512, pids=64, disk_mb=64)
    self.addAsyncCleanup(engine.close)
    tried = 0
    for name, kind in self.pairs():
      environment = OSInteraction(
        engine=engine, command_limit_s=LIMIT_S, kinds=(kind,)
      )
      began = time.monotonic()
      step = await cheat(environment, Task(NAME, "train", 0), name)
      with self.subTest(cheat=name, kind=kind):
        self.assertLess(time.monotonic() - began, WHOLE_S)
        if step is not None:
          tried += 1
          self.assertEqual(step.reward, 0.0)
          self.assertTrue(step.status.is_policys_doing, step.status)
    self.assertGreater(tried, 0)


def each_once(stride=1, offset=0):
  """Every cheat, each with another kind of task."""
  kinds = list(KINDS)
  return [
    (name, kinds[(3 * i + offset) % len(kinds)])
    for i, name in enumerate(CHEATS)
    if i % stride == 0
  ]


@pytest.mark.docker
@pytest.mark.slow
class CheatsInSandboxTest(Cheats, InSandbox, unittest.IsolatedAsyncioTestCase):
  def pairs(self):
    return each_once() + [(name, "permissions") for name in list(CHEATS)[::3]]


@pytest.mark.docker
@pytest.mark.slow
class CheatsOnDockerTest(Cheats, OnDocker, unittest.IsolatedAsyncioTestCase):
  def pairs(self):
    return each_once(stride=6, offset=10)


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(3600)
class AllCheatsInSandboxTest(
  Cheats, InSandbox, unittest.IsolatedAsyncioTestCase
):
  def pairs(self):
    return [(name, kind) for name in CHEATS for kind in KINDS]


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(7200)
class AllCheatsOnDockerTest(Cheats, OnDocker, unittest.IsolatedAsyncioTestCase):
  def pairs(self):
    return [(name, kind) for name in CHEATS for kind in KINDS]


if __name__ == "__main__":
  unittest.main()
