"""Tests of reasoning-gym's puzzles, by the package itself."""

import pathlib
import tempfile
import unittest

import pytest

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError

pytest.importorskip("reasoning_gym", reason="pip install agentrl_jax[puzzles]")

from agentrl_jax.env.adapters.reasoning_gym import ReasoningGym, is_harmless  # noqa: E402


class LegsTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return ReasoningGym(
      dataset="leg_counting", config={"max_animals": 4}, size=500
    )


class AnswersTestCase(unittest.IsolatedAsyncioTestCase):
  async def _step(self, dataset, answer, **options):
    environment = ReasoningGym(dataset=dataset, size=50, **options)
    task = Task(dataset, "train", 0)
    right = environment.item(environment.seed_of(task) % 50)["answer"]
    async with environment.open(task, seed=0) as session:
      await session.reset()
      text = answer.replace("RIGHT", right)
      return await session.step(Message("assistant", text))


class AnswersTest(AnswersTestCase):
  async def test_thoughts_and_marks_are_not_the_answer(self):
    for answer in (
      "RIGHT",
      "<think>12 and 3</think>\nRIGHT",
      "It is <answer>1</answer>, no: <answer> RIGHT </answer>!",
    ):
      step = await self._step("leg_counting", answer)
      self.assertEqual((step.reward, step.status), (1.0, Status.COMPLETED))
      self.assertEqual(step.messages, ())
    self.assertEqual((await self._step("leg_counting", "-7")).reward, 0.0)

  async def test_an_answer_is_not_run(self):
    mark = (
      pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "won"
    )
    attack = f"[[open({str(mark)!r}, 'w')]]"
    for dataset in ("spiral_matrix", "n_queens", "polynomial_multiplication"):
      with self.subTest(dataset=dataset):
        step = await self._step(dataset, attack)
        self.assertLess(step.reward, 1.0)
        self.assertEqual((await self._step(dataset, "RIGHT")).reward, 1.0)
    self.assertFalse(mark.exists())

  def test_what_is_harmless(self):
    for text in (
      "[1, 2, 3]",
      "5*x**3 - sin(x)/2",
      "Q _ _\n_ Q _",
      "(7 + 1)*3",
      '["a", "b"]',
    ):
      self.assertTrue(is_harmless(text), text)
    for text in (
      "__import__('os').system('true')",
      "__import__('os').system('true')!",
      "exit()",
      "x.y",
      "9**9**9",
      "(9**64)**64",
      "9**9**9!",
      "[0]*10**10",
      "'a'*10",
      "1<<10**9",
      "(lambda: 0)()",
      "sin(x, evaluate=y)",
      "-" * 20_000 + "1",
    ):
      self.assertFalse(is_harmless(text), text[:80])


class SettingsTest(unittest.TestCase):
  def test_settings_that_cannot_be_are_refused(self):
    for options, sentence in (
      ({"dataset": "leg_countin"}, "did you mean leg_counting"),
      ({"dataset": "leg_counting", "config": {"legs": 3}}, "legs"),
      ({"dataset": "leg_counting", "config": {"seed": 3}}, "sets seed"),
      ({"dataset": "leg_counting", "size": 0}, "size=0 must be above 0"),
      ({"dataset": "composite"}, "at least one dataset"),
      ({"dataset": "leg_counting", "rounds": 3}, "has no options rounds"),
    ):
      with (
        self.subTest(options=options),
        self.assertRaisesRegex(ConfigError, sentence),
      ):
        ReasoningGym(**options)
