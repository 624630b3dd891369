"""AgentBench's own tasks: each gold example passes its own check.

The example is run beside the policy's shell, and its output is committed as the
answer: many tasks draw their files at random, so it is the same machine. Tasks
that are judged by a match have no example that could be run: there the answer
of the file is committed.
"""

import asyncio
import dataclasses
import json
import unittest

import pytest

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Task
from agentrl_jax.errors import ConfigError
from tests.environments.os_interaction.data import tasks
from tests.environments.os_interaction.engines import (
  InSandbox,
  OnDocker,
  WithMachines,
)

NAME = "os_interaction"
CONCURRENCY = 2


@dataclasses.dataclass
class Count:
  """How many passed, and which did not."""

  num_passed: int = 0
  failed: list[int] = dataclasses.field(default_factory=list)


class Conformance(WithMachines):
  async def count(self, source, indices) -> Count:
    environment = self.make_environment(source=source)
    count, free = Count(), asyncio.Semaphore(CONCURRENCY)

    async def play(index):
      async with free:
        try:
          reward = await committed(environment, index)
        except ConfigError:  # a script that the file names is not at hand
          reward = 0.0
      count.num_passed += reward == 1.0
      if reward != 1.0:
        count.failed.append(index)

    async with asyncio.TaskGroup() as group:
      for index in indices:
        group.create_task(play(index))
    return count


async def committed(environment, index, answer=None) -> float:
  """The reward of an answer, by default the gold one."""
  async with environment.open(Task(NAME, "dev", index), seed=0) as session:
    await session.reset()
    if answer is None:
      answer = gold_answer(session._problem, session._judge)
    call = ToolCall("answer_action", json.dumps({"answer": answer}), id="c")
    step = await session.step(Message("assistant", tool_calls=(call,)))
  return step.reward


def gold_answer(problem, judge) -> str:
  if problem.match is not None:
    return problem.match.answer
  return judge.gold.stdout.decode() if judge.gold else ""


class Sample(Conformance):
  stride = 50

  async def test_a_sample_of_train(self):
    indices = range(0, 1000, self.stride)
    count = await self.count(tasks("train.json"), indices)
    self.assertEqual(count.num_passed, len(indices), count.failed)

  async def test_a_wrong_answer_fails(self):
    environment = self.make_environment(source=tasks("train.json"))
    for index in range(0, 1000, 4 * self.stride):
      with self.subTest(index=index):
        reward = await committed(environment, index, "-12345")
        self.assertEqual(reward, 0.0)


class Whole(Conformance):
  async def test_train(self):
    count = await self.count(tasks("train.json"), range(1000))
    self.assertGreaterEqual(count.num_passed, 998, count.failed)

  async def test_dev(self):
    count = await self.count(tasks("dev.json"), range(26))
    self.assertGreaterEqual(count.num_passed, 20, count.failed)


@pytest.mark.docker
@pytest.mark.slow
class SampleInSandboxTest(Sample, InSandbox, unittest.IsolatedAsyncioTestCase):
  test_dev = Whole.test_dev


@pytest.mark.docker
@pytest.mark.slow
class SampleOnDockerTest(Sample, OnDocker, unittest.IsolatedAsyncioTestCase):
  stride = 250


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(1800)
class WholeInSandboxTest(Whole, InSandbox, unittest.IsolatedAsyncioTestCase):
  pass


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(3600)
class WholeOnDockerTest(Whole, OnDocker, unittest.IsolatedAsyncioTestCase):
  pass


if __name__ == "__main__":
  unittest.main()
