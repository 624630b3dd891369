"""Tests of the bandit: contract, pays, luck, and what no player may see."""

import collections
import json
import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.contract import SessionContract
from studies.environments.bandit import Bandit
from studies.environments.bandit.environment import NO_CALL
from tests.environments.answers import call
from tests.environments.playing import play_answers

TASK = Task("bandit", "train", 0)
MACHINES = Bandit().find(TASK)
RISKY = MACHINES.names[MACHINES.risky]
SURE = MACHINES.names[1 - MACHINES.risky]


def pull(machine):
  return call("pull", {"machine": machine})


async def step_of(answer, *, environment=None, task=TASK, seed=0):
  _, step = await play_answers(environment or Bandit(), task, answer, seed=seed)
  return step


async def pays_of(environment, *, task=TASK, machine=RISKY, seeds=range(1200)):
  return [
    (
      await step_of(pull(machine), environment=environment, task=task, seed=n)
    ).reward
    for n in seeds
  ]


class AlwaysPaidContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Bandit(chance=1.0)


class BanditContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Bandit(max_turns=3)

  async def test_expert_without_mistakes_reaches_the_top(self):
    rewards = []
    environment = self.make_environment()
    for task in self._tasks(environment, num_tasks=32):
      steps, _ = await self._play_expert(environment, task)
      rewards.append(steps[-1].reward)
      self.assertEqual(steps[-1].metrics, {"success": 1.0})
    self.assertEqual(set(rewards), {0.0, 1.0})  # luck decides


class BanditTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  async def test_text(self):
    (step,) = await play_answers(Bandit(), TASK)
    lines = step.messages[0].content.split("\n")
    self.assertEqual(
      lines[MACHINES.risky], f"{RISKY} pays 1 with a chance of 0.25."
    )
    self.assertEqual(lines[1 - MACHINES.risky], f"{SURE} pays 0.1.")
    self.assertEqual(lines[2:], ["Pull one of these machines."])

  async def test_the_sure_machine_pays_always(self):
    self.assertEqual(
      set(await pays_of(Bandit(), machine=SURE, seeds=range(50))), {0.1}
    )

  async def test_the_risky_machine_pays_a_quarter_of_the_times(self):
    pays = await pays_of(Bandit())
    self.assertEqual(set(pays), {0.0, 1.0})
    # Five standard deviations around 300.
    self.assertTrue(225 < sum(pays) < 375, sum(pays))

  @parameterized.parameters((0.25, RISKY), (0.04, SURE))
  async def test_success_is_the_higher_expected_pay(self, chance, better):
    environment = Bandit(chance=chance)
    machines = environment.find(TASK)
    for name in machines.names:
      step = await step_of(pull(name), environment=environment)
      is_risky = name == machines.names[machines.risky]
      expected = float(is_risky == (better == RISKY))
      self.assertEqual(step.metrics, {"success": expected})
      self.assertIs(step.status, Status.COMPLETED)

  async def test_one_answer_is_all(self):
    step = await step_of(Message("assistant", RISKY))
    self.assertIs(step.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(step.messages[0].content, NO_CALL)
    self.assertEqual((step.reward, step.metrics), (0.0, {"success": 0.0}))


class LuckTest(unittest.IsolatedAsyncioTestCase):
  async def test_by_task_all_attempts_have_the_same_luck(self):
    environment = Bandit(chance_by="task")
    found = collections.Counter()
    for index in range(200):
      task = Task("bandit", "train", index)
      machines = environment.find(task)
      pays = await pays_of(
        environment,
        task=task,
        machine=machines.names[machines.risky],
        seeds=range(3),
      )
      self.assertEqual(len(set(pays)), 1)
      found[pays[0]] += 1
    self.assertTrue(20 < found[1.0] < 80, found)

  async def test_all_attempts_have_the_same_machines(self):
    """In RAGEN names and order differ within a group, and not luck alone."""
    openings = {
      (await play_answers(Bandit(), TASK, seed=seed))[0].messages
      for seed in range(20)
    }
    self.assertEqual(len(openings), 1)


class CheatsTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  async def test_luck_is_in_no_message_and_no_tool(self):
    lucky = (await pays_of(Bandit(), seeds=range(40))).index(1.0)
    unlucky = (await pays_of(Bandit(), seeds=range(40))).index(0.0)
    seen = []
    for seed in (lucky, unlucky):
      async with Bandit(max_turns=3).open(TASK, seed=seed) as session:
        steps = [await session.reset()]
        for answer in (Message("assistant", "?"), pull("gold")):
          steps.append(await session.step(answer))
        seen.append((session.tools, steps))
    self.assertEqual(*seen)

  def test_neither_place_nor_name_tells_the_risk(self):
    places, names = collections.Counter(), collections.Counter()
    for index in range(2400):
      machines = Bandit().find(Task("bandit", "train", index))
      places[machines.risky] += 1
      names[machines.names[machines.risky]] += 1
    self.assertTrue(1050 < places[0] < 1350, places)
    self.assertEqual(len(names), 24)
    self.assertLess(max(names.values()), 200)

  async def test_both_machines_cannot_be_pulled(self):
    calls = tuple(
      ToolCall("pull", json.dumps({"machine": name}), f"c{name}")
      for name in (SURE, RISKY)
    )
    step = await step_of(Message("assistant", tool_calls=calls))
    self.assertEqual((step.reward, step.messages), (0.1, ()))

  @parameterized.parameters(
    ("gold",), (RISKY.upper(),), (f"{RISKY} ",), ([RISKY],), (0,), (None,)
  )
  async def test_an_illegal_machine_pays_nothing(self, machine):
    environment = Bandit(chance=1.0, max_turns=2)
    step = await step_of(pull(machine), environment=environment)
    self.assertTrue(step.messages[0].content.startswith("Error"))
    self.assertEqual(step.reward, 0.0)
    self.assertIs(step.status, Status.RUNNING)
