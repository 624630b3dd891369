"""The environment: its contract, expert, splits and options."""

import asyncio
import gc
import unittest
from unittest import mock

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph import KnowledgeGraph
from environments.knowledgegraph.engines.memory import MemoryEngine
from tests.environments.knowledgegraph import data
from tests.environments.playing import play


class ContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  num_tasks = 4

  def make_environment(self):
    return KnowledgeGraph()


class OxigraphContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  num_tasks = 2

  def make_environment(self):
    return KnowledgeGraph(engine="oxigraph")


class LoadedContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  splits = ("dev",)
  num_tasks = 2

  def make_environment(self):
    return KnowledgeGraph(source=data.questions("dev"))


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
  async def test_synthesised_facts_are_labelled(self):
    environment = KnowledgeGraph(source=data.questions("dev"))
    *_, loaded = await play(environment, Task("kg", "dev", 0))
    *_, generated = await play(environment, Task("kg", "train", 0))
    self.assertEqual(loaded.metrics["synthesised"], 1.0)
    self.assertEqual(generated.metrics["synthesised"], 0.0)

  async def test_one_shot_puts_an_example_first(self):
    environment = KnowledgeGraph(source=data.questions("dev"), one_shot=True)
    async with environment.open(Task("kg", "dev", 0), seed=0) as session:
      messages = (await session.reset()).messages
    roles = [message.role for message in messages]
    self.assertEqual(
      roles, ["system", "user", *["assistant", "tool"] * 6, "assistant", "user"]
    )

  def test_splits_and_their_length(self):
    environment = KnowledgeGraph(source=data.questions("dev"), num_tasks=7)
    lengths = [len(environment.indices(s)) for s in ("train", "test", "dev")]
    self.assertEqual(lengths, [7, 7, 20])
    with self.assertRaisesRegex(ConfigError, "has 20 tasks in split dev"):
      environment.expert(Task("kg", "dev", 20), seed=0, mistakes={})


class RealFactsTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_expert_solves_questions_about_freebase(self):
    environment = KnowledgeGraph(
      graph=data.freebase(), ontology=data.ontology()
    )
    for index in range(40):
      *_, last = await play(environment, Task("kg", "train", index))
      with self.subTest(index=index):
        self.assertEqual(last.reward, 1.0)


class OptionsTest(unittest.TestCase):
  def test_an_engine_object_is_used(self):
    engine = MemoryEngine()
    with mock.patch.object(engine, "store", side_effect=ZeroDivisionError):
      environment = KnowledgeGraph(engine=engine)
      with self.assertRaises(ZeroDivisionError):
        asyncio.run(_reset(environment))


async def _reset(environment):
  task = Task("knowledgegraph", "train", 0)
  async with environment.open(task, seed=0) as session:
    await session.reset()
