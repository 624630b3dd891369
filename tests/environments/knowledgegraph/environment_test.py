"""KnowledgeGraph as a whole: the contract, the expert, the options."""

import unittest

from agentrl_jax.data.split import SPLITS
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.contract import SessionContract
from environments.knowledgegraph import KnowledgeGraph
from tests.environments.knowledgegraph.data import questions
from tests.environments.knowledgegraph.playing import play


class ContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return KnowledgeGraph()


class LoadedContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  splits = ("dev",)
  num_tasks = 4

  def make_environment(self):
    return KnowledgeGraph(source=questions("dev"))


class GeneratedTasksTest(unittest.IsolatedAsyncioTestCase):
  async def test_faultless_expert_solves_every_task(self):
    environment = KnowledgeGraph()
    for split in SPLITS:
      for index in range(200):
        *_, last = await play(environment, Task("kg", split, index))
        with self.subTest(split=split, index=index):
          self.assertIs(last.status, Status.COMPLETED)
          self.assertEqual((last.reward, last.metrics["f1"]), (1.0, 1.0))


if __name__ == "__main__":
  unittest.main()
