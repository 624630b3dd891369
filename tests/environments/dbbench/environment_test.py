"""Tests the environment: contract, expert, AgentBench's file, options."""

import unittest

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.contract import SessionContract
from environments.dbbench import DBBench
from tests.environments.dbbench.data import dev_rows
from tests.environments.playing import play


class DBBenchContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return DBBench()


class GeneratedTasksTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_expert_without_mistakes_solves_every_task(self):
    environment = DBBench()
    for split in SPLITS:
      for index in range(300):
        *_, step = await play(environment, Task("dbbench", split, index))
        with self.subTest(split=split, index=index):
          self.assertEqual(step.reward, 1.0)

  async def test_opening_has_the_text_of_agentbench(self):
    environment = DBBench(kinds=("lookup",))
    async with environment.open(Task("dbbench", "test", 3), seed=0) as session:
      system, user = (await session.reset()).messages
    self.assertTrue(system.content.startswith("I will ask you a question, "))
    self.assertEqual(system.content.count("\n"), 11)
    self.assertRegex(
      user.content,
      r"\AAdditional table information about the question: The name of this "
      r"table is \w+, and the headers of this table are \w+(,\w+)+\.\n"
      r"Question: .+\?\n\Z",
    )

  async def test_short_prompt_is_short(self):
    environment = DBBench(system_prompt="short")
    async with environment.open(Task("dbbench", "test", 3), seed=0) as session:
      system, _ = (await session.reset()).messages
    self.assertLess(len(system.content.split()), 20)

  async def test_only_given_kinds_are_played(self):
    environment = DBBench(kinds=("ranking", "insert"))
    for index in range(20):
      *_, step = await play(environment, Task("dbbench", "train", index))
      self.assertTrue({"right/ranking", "right/INSERT"} & step.metrics.keys())


class LoadedTasksTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.environment = DBBench(source=str(dev_rows()))

  async def test_dev_has_the_rows_of_the_file(self):
    self.assertEqual(list(self.environment.indices("dev")), list(range(60)))

  async def test_expert_solves_every_row(self):
    for index in self.environment.indices("dev"):
      *_, step = await play(self.environment, Task("dbbench", "dev", index))
      with self.subTest(index=index):
        self.assertEqual(step.reward, 1.0)

  async def test_committing_alone_solves_no_mutation(self):
    for index in range(20, 60):
      task = Task("dbbench", "dev", index)
      expert = self.environment.expert(task, seed=0, mistakes={})
      async with self.environment.open(task, seed=0) as session:
        step = await session.reset()
        expert.answer(step.messages)  # the statement is not run
        step = await session.step(expert.answer(step.messages))
      with self.subTest(index=index):
        self.assertIs(step.status, Status.COMPLETED)
        self.assertEqual(step.reward, 0.0)
