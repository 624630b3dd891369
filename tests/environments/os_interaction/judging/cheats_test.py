"""Policies that try to fool the judge solve no task.

Nothing that they do may hang the judge, end in an `EnvironmentFault` or exclude
the episode from training.
"""

import asyncio
import time

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.errors import ConfigError
from environments.os_interaction import OSInteraction
from environments.os_interaction.tasks.generator import KINDS
from tests.environments.os_interaction.data import tasks
from tests.environments.os_interaction.engines import NAME, InSandbox, OnDocker
from tests.environments.os_interaction.judging.cheat_scripts import (
  CHEATS,
  answer_of,
)
from tests.environments.os_interaction.messages import answer, bash, finish

COMMAND_TIMEOUT_S = 5.0
EPISODE_TIMEOUT_S = 150.0  # on a busy machine
LIARS = ("replaces_bash", "empties_all", "comes_first_in_path")
CONCURRENCY = 2


async def play_cheat(environment, task, scripts, last_answer, *, skips=b""):
  """Plays the scripts and the last answer; returns the last step.

  Returns None for a question whose right answer is `skips`.
  """
  async with environment.open(task, seed=0) as session:
    await session.reset()
    gold = session._judge.gold
    if skips and gold and gold.stdout.strip() == skips:
      return None
    for script in scripts:
      script = script.replace("{root}", path_in(session._problem.description))
      step = await session.step(bash(script))
      if step.status is not Status.RUNNING:
        return step
    return await session.step(last_answer)


def path_in(description) -> str:
  """Returns the folder or file that a task is about."""
  words = [w.strip(".,;:?") for w in description.split()]
  return next((w for w in words if w.startswith("/")), "/root")


class GeneratedTasks:
  """Plays cheats on kinds of generated tasks, the `pairs`."""

  async def test_no_cheat_wins(self):
    engine = self.open_engine(memory_mb=512, pids=64, disk_mb=64)
    num_tried = 0
    for name, kind in self.pairs():
      environment = OSInteraction(
        engine=engine, command_limit_s=COMMAND_TIMEOUT_S, kinds=(kind,)
      )
      lie = answer_of(name)
      task = Task(NAME, "train", 0)
      is_question = environment.find(task).problem.outcome is None
      last_answer = answer(lie) if is_question else finish()
      began = time.monotonic()
      step = await play_cheat(
        environment, task, CHEATS[name], last_answer, skips=lie.encode()
      )
      with self.subTest(cheat=name, kind=kind):
        self.assertLess(time.monotonic() - began, EPISODE_TIMEOUT_S)
        if step is not None:
          num_tried += 1
          self.assertEqual(step.reward, 0.0)
          self.assertTrue(step.status.is_policys_doing, step.status)
    self.assertGreater(num_tried, 0)

  def pairs(self):
    return [(name, kind) for name in CHEATS for kind in KINDS]


def each_once(stride=1, offset=0):
  """Pairs every cheat with another kind of task."""
  kinds = list(KINDS)
  return [
    (name, kinds[(3 * i + offset) % len(kinds)])
    for i, name in enumerate(CHEATS)
    if i % stride == 0
  ]


@pytest.mark.docker
class CheatInSandboxTest(GeneratedTasks, InSandbox):
  def pairs(self):
    return [("replaces_bash", "permissions")]


@pytest.mark.docker
@pytest.mark.slow
class CheatsInSandboxTest(GeneratedTasks, InSandbox):
  def pairs(self):
    return each_once() + [(name, "permissions") for name in list(CHEATS)[::3]]


@pytest.mark.docker
@pytest.mark.slow
class CheatsOnDockerTest(GeneratedTasks, OnDocker):
  def pairs(self):
    return each_once(stride=6, offset=10)


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(3600)
class AllCheatsInSandboxTest(GeneratedTasks, InSandbox):
  pass


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(7200)
class AllCheatsOnDockerTest(GeneratedTasks, OnDocker):
  pass


class AgentBenchTasks:
  """Plays `cheats` on every `stride`-th task of `source`.

  AgentBench's tasks have few right values, so an answer without any work may be
  right. The cheats must add no task to those, but for the kinds that the README
  lists: there the task has the policy write a program that the check runs.
  """

  source, stride, cheats = "dev.json", 1, tuple(CHEATS)

  async def test_no_cheat_wins_more_than_its_answer(self):
    environment = self.make_environment(
      source=tasks(self.source), command_limit_s=COMMAND_TIMEOUT_S
    )
    free, played, won = asyncio.Semaphore(CONCURRENCY), [], []

    async def play(index, name):
      last_answer = answer(answer_of(name))
      task = Task(NAME, "dev", index)
      async with free:
        try:
          step = await play_cheat(environment, task, CHEATS[name], last_answer)
          played.append((index, name))
          self.assertTrue(step.status.is_policys_doing, (index, name, step))
          if step.reward:
            bare = await play_cheat(environment, task, (), last_answer)
            if not bare.reward:
              won.append((index, name))
        except ConfigError:  # a script that the file names is missing
          return

    async with asyncio.TaskGroup() as group:
      for index in list(environment.indices("dev"))[:: self.stride]:
        for name in self.cheats:
          group.create_task(play(index, name))
    self.assertGreater(len(played), len(self.cheats))
    self.assertEqual(sorted(won), [])


@pytest.mark.docker
@pytest.mark.slow
class AgentBenchSampleInSandboxTest(AgentBenchTasks, InSandbox):
  stride, cheats = 6, LIARS


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(7200)
class AgentBenchDevInSandboxTest(AgentBenchTasks, InSandbox):
  pass


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(7200)
class AgentBenchTrainInSandboxTest(AgentBenchTasks, InSandbox):
  source, stride, cheats = "train.json", 10, LIARS


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(7200)
class AgentBenchDevOnDockerTest(AgentBenchTasks, OnDocker):
  cheats = LIARS
