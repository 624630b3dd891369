"""The environment: its contract, expert, splits and options."""

import gc
import unittest

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph import KnowledgeGraph
from tests.environments.knowledgegraph import data
from tests.environments.knowledgegraph.synthesis import SynthesisedGraphs
from tests.environments.playing import play, play_answers


class ContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  num_tasks = 4

  def make_environment(self):
    return KnowledgeGraph()


class LoadedContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  splits = ("dev",)
  num_tasks = 2

  def make_environment(self):
    return SynthesisedGraphs(source=data.questions("dev"))


class GeneratedTasksTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_expert_without_mistakes_solves_every_task(self):
    environment = KnowledgeGraph()
    for split in SPLITS:
      for index in range(200):
        *_, last = await play(environment, Task("kg", split, index))
        with self.subTest(split=split, index=index):
          self.assertIs(last.status, Status.COMPLETED)
          self.assertEqual((last.reward, last.metrics["f1"]), (1.0, 1.0))

  @pytest.mark.slow
  async def test_sessions_leak_no_objects(self):
    environment = KnowledgeGraph()
    counts = []
    for _ in range(3):
      for index in range(50):
        await play(environment, Task("kg", "train", index))
      gc.collect()
      counts.append(len(gc.get_objects()))
    self.assertEqual(counts[1], counts[2])


class LoadedTasksTest(unittest.IsolatedAsyncioTestCase):
  async def test_one_shot_puts_an_example_first(self):
    environment = SynthesisedGraphs(source=data.questions("dev"), one_shot=True)
    (step,) = await play_answers(environment, Task("kg", "dev", 0))
    roles = [message.role for message in step.messages]
    self.assertEqual(
      roles, ["system", "user", *["assistant", "tool"] * 6, "assistant", "user"]
    )

  def test_splits_and_their_length(self):
    environment = KnowledgeGraph(num_tasks=7)
    lengths = [len(environment.indices(s)) for s in ("train", "test")]
    self.assertEqual(lengths, [7, 7])
    environment = SynthesisedGraphs(source=data.questions("dev"))
    self.assertEqual(len(environment.indices("dev")), 20)
    with self.assertRaisesRegex(ConfigError, "has 20 tasks in split dev"):
      environment.expert(Task("kg", "dev", 20), seed=0, mistakes={})
