"""The cheats on AgentBench's own tasks win what their bare answer wins.

AgentBench's tasks ask for few values, so that an answer made of nothing may be
right. What is done to the machine before it must add no task to those, but for
the kinds that the README lists: there the task itself asks the policy for a
program that judges it.
"""

import asyncio
import unittest

import pytest

from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.errors import ConfigError
from tests.environments.os_interaction.data import tasks
from tests.environments.os_interaction.engines import (
  InSandbox,
  OnDocker,
  WithMachines,
)
from tests.environments.os_interaction.judging.cheats import CHEATS
from tests.environments.os_interaction.judging.cheats_test import (
  LIMIT_S,
  NAME,
  call,
  place_of,
)

LIARS = ("replaces_bash", "empties_all", "comes_first_in_path")
CONCURRENCY = 2


class AgentBenchCheats(WithMachines):
  """`cheats` are played on every `stride`-th task of `source`."""

  source, stride, cheats = "dev.json", 1, tuple(CHEATS)

  async def test_none_wins_more_than_its_answer(self):
    environment = self.make_environment(
      source=tasks(self.source), command_limit_s=LIMIT_S
    )
    free, played, won = asyncio.Semaphore(CONCURRENCY), [], []

    async def one(index, name):
      scripts, answer = CHEATS[name]
      async with free:
        try:
          step = await play(environment, index, scripts, answer)
          played.append((index, name))
          self.assertTrue(step.status.is_policys_doing, (index, name, step))
          if step.reward:
            bare = await play(environment, index, (), answer)
            if not bare.reward:
              won.append((index, name))
        except ConfigError:  # a script that the file names is not at hand
          return

    async with asyncio.TaskGroup() as group:
      for index in list(environment.indices("dev"))[:: self.stride]:
        for name in self.cheats:
          group.create_task(one(index, name))
    self.assertGreater(len(played), len(self.cheats))
    self.assertEqual(sorted(won), [])


async def play(environment, index, scripts, answer):
  """The last step of an attempt that runs the scripts and then answers."""
  async with environment.open(Task(NAME, "dev", index), seed=0) as session:
    await session.reset()
    root = place_of(session._problem)
    for script in scripts:
      script = script.replace("{root}", root)
      step = await session.step(call("bash_action", "script", script))
      if step.status is not Status.RUNNING:
        return step
    return await session.step(call("answer_action", "answer", answer))


@pytest.mark.docker
@pytest.mark.slow
class SampleInSandboxTest(
  AgentBenchCheats, InSandbox, unittest.IsolatedAsyncioTestCase
):
  stride, cheats = 6, LIARS


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(7200)
class DevInSandboxTest(
  AgentBenchCheats, InSandbox, unittest.IsolatedAsyncioTestCase
):
  pass


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(7200)
class TrainInSandboxTest(
  AgentBenchCheats, InSandbox, unittest.IsolatedAsyncioTestCase
):
  source, stride, cheats = "train.json", 10, LIARS


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(7200)
class DevOnDockerTest(
  AgentBenchCheats, OnDocker, unittest.IsolatedAsyncioTestCase
):
  cheats = LIARS


if __name__ == "__main__":
  unittest.main()
