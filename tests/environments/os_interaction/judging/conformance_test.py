"""The gold example of each of AgentBench's tasks passes its own check.

The example's output on the same machine is the answer, as many tasks draw their
files at random. Tasks with a match have no example; their answer is the match.
"""

import asyncio

import pytest

from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError
from tests.environments.os_interaction.data import tasks
from tests.environments.os_interaction.engines import NAME, InSandbox, OnDocker
from tests.environments.os_interaction.messages import answer

CONCURRENCY = 2


class Conformance:
  async def failures(self, source, indices) -> list[int]:
    """Returns the tasks that their gold answers do not solve."""
    environment = self.make_environment(source=source)
    failed, free = [], asyncio.Semaphore(CONCURRENCY)

    async def play(index):
      async with free:
        try:
          reward = await reward_of(environment, index)
        except ConfigError:  # a script that the file names is missing
          reward = 0.0
      if reward != 1.0:
        failed.append(index)

    async with asyncio.TaskGroup() as group:
      for index in indices:
        group.create_task(play(index))
    return failed


async def reward_of(environment, index, text=None) -> float:
  """Returns the reward of an answer, by default the gold answer."""
  async with environment.open(Task(NAME, "dev", index), seed=0) as session:
    await session.reset()
    if text is None:
      text = gold_answer(session._problem, session._judge)
    return (await session.step(answer(text))).reward


def gold_answer(problem, judge) -> str:
  if problem.match is not None:
    return problem.match.answer
  return judge.gold.stdout.decode() if judge.gold else ""


class Sample(Conformance):
  stride = 50

  async def test_a_sample_of_train(self):
    indices = range(0, 1000, self.stride)
    self.assertEqual(await self.failures(tasks("train.json"), indices), [])

  async def test_a_wrong_answer_fails(self):
    environment = self.make_environment(source=tasks("train.json"))
    for index in range(0, 1000, 4 * self.stride):
      with self.subTest(index=index):
        reward = await reward_of(environment, index, "-12345")
        self.assertEqual(reward, 0.0)


class Whole(Conformance):
  async def test_train(self):
    failed = await self.failures(tasks("train.json"), range(1000))
    self.assertLessEqual(len(failed), 2, failed)

  async def test_dev(self):
    failed = await self.failures(tasks("dev.json"), range(26))
    self.assertLessEqual(len(failed), 6, failed)


@pytest.mark.docker
class WrongAnswersInSandboxTest(Sample, InSandbox):
  stride = 125
  test_a_sample_of_train = None


@pytest.mark.docker
@pytest.mark.slow
class SampleInSandboxTest(Sample, InSandbox):
  test_dev = Whole.test_dev


@pytest.mark.docker
@pytest.mark.slow
class SampleOnDockerTest(Sample, OnDocker):
  stride = 250


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(1800)
class WholeInSandboxTest(Whole, InSandbox):
  pass


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(3600)
class WholeOnDockerTest(Whole, OnDocker):
  pass
