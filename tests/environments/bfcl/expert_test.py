"""Tests of the expert, of each of its mistakes, and of parsed calls."""

import unittest

import pytest

from agentrl_jax.data.records import Task
from environments.bfcl import BFCL
from environments.bfcl.calls import parse_source, read_call
from environments.bfcl.expert import MISTAKES, gold_calls
from environments.bfcl.session import Failure
from tests.environments.bfcl.packages import require_packages
from tests.environments.playing import play_with


class ExpertTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    require_packages()
    self.environment = BFCL()
    self.task = Task("bfcl", "base", 0)
    self.problem = self.environment.find(self.task)

  async def _calls(self, mistakes, seed=0):
    expert = self.environment.expert(self.task, seed=seed, mistakes=mistakes)
    session, _, answers = await play_with(self.environment, self.task, expert)
    return session, [
      read_call(call) for answer in answers for call in answer.tool_calls
    ]

  async def test_expert_without_mistakes_plays_gold(self):
    session, calls = await self._calls({})
    gold = [call for turn in gold_calls(self.problem) for call in turn]
    self.assertEqual(calls, gold)
    self.assertIsNone(session.failure)

  async def test_every_mistake_changes_the_calls(self):
    _, gold = await self._calls({})
    failures = {mistake: set() for mistake in MISTAKES}
    for mistake in MISTAKES:
      for seed in range(12):
        session, calls = await self._calls({mistake: 1.0}, seed)
        with self.subTest(mistake=mistake, seed=seed):
          self.assertNotEqual(calls, gold)
        failures[mistake].add(session.failure)
      self.assertTrue(failures[mistake] - {None}, mistake)
    self.assertEqual(failures["skipped_turn"], {Failure.NO_CALL})
    self.assertEqual(failures["broken_json"], {Failure.NO_CALL})

  @pytest.mark.slow
  def test_arguments_by_position_are_named(self):
    gold = gold_calls(self.environment.find(Task("bfcl", "miss_func", 0)))
    self.assertEqual(gold[3][0].named, {"file_name": "final_report.pdf"})


class ParseSourceTest(unittest.TestCase):
  def test_literals_are_parsed(self):
    call = parse_source("f(1, [2.5, 'x'], key={'a': None, 'b': -3})")
    self.assertEqual(call.positional, (1, [2.5, "x"]))
    self.assertEqual(call.named, {"key": {"a": None, "b": -3}})

  def test_other_expressions_are_refused(self):
    for source in ("f", "a.f()", "f(g())", "f(x)", "f()()", "f(", "f(**{})"):
      with self.subTest(source=source), self.assertRaises(ValueError):
        parse_source(source)
