"""Training-time information is about the task, and in no prompt."""

import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Task
from agentrl_jax.env.loading import load_environment
from agentrl_jax.errors import ConfigError
from environments.arithmetic.environment import Arithmetic
from launch.run.environments import require_information

TARGETS = {
  "arithmetic": "environments.arithmetic.environment:Arithmetic",
  "dbbench": "environments.dbbench:DBBench",
  "knowledgegraph": "environments.knowledgegraph:KnowledgeGraph",
  "webshop": "environments.webshop:WebShop",
  "word_problems": "environments.word_problems.environment:WordProblems",
}


class TrainingInformationTest(
  parameterized.TestCase, unittest.IsolatedAsyncioTestCase
):
  @parameterized.named_parameters((name, name) for name in TARGETS)
  async def test_information_is_of_the_task_and_in_no_prompt(self, name):
    environment = load_environment(TARGETS[name], {})
    told = set()
    for index in range(8):
      task = Task(name, "train", index)
      information = environment.training_information(task)
      self.assertEqual(information, environment.training_information(task))
      self.assertTrue(information.strip())
      told.add(information)
      async with environment.open(task, seed=0) as session:
        step = await session.reset()
      read = "\n".join(message.content for message in step.messages)
      self.assertNotIn(information, read)
    await environment.close()
    self.assertGreater(len(told), 4)

  def test_information_is_the_solution(self):
    environment = load_environment(TARGETS["arithmetic"], {})
    task = Task("arithmetic", "train", 3)
    problem = environment.find(task)
    self.assertEqual(
      environment.training_information(task),
      f"The sum is {problem.a + problem.b}.",
    )


class RequireInformationTest(unittest.TestCase):
  def test_tasks_that_have_some(self):
    require_information({"sums": Arithmetic()})

  def test_refuses_an_environment_without(self):
    environment = load_environment("environments.bfcl:BFCL", {})
    with self.assertRaisesRegex(ConfigError, "training_information"):
      require_information({"calls": environment})

  def test_refuses_an_empty_text(self):
    class Silent(Arithmetic):
      def training_information(self, task):
        return ""

    with self.assertRaisesRegex(ConfigError, "sums's first task is empty"):
      require_information({"sums": Silent()})


if __name__ == "__main__":
  unittest.main()
