"""Tests of the environment: contract, splits, options."""

import unittest

import pytest

from agentrl_jax.data.records import Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError
from environments.bfcl import BFCL
from environments.bfcl.suite import CATEGORIES
from tests.environments.bfcl.packages import require_packages


class BFCLContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  splits = ("train", "test")
  num_tasks = 3
  max_steps = 400  # nonsense takes 21 answers in every turn of the user
  max_reply_chars = 300_000  # BFCL repeats an argument at most twice

  def make_environment(self):
    require_packages()
    return BFCL()


@pytest.mark.slow
class LongContextContractTest(
  SessionContract, unittest.IsolatedAsyncioTestCase
):
  splits = ("long_context",)
  num_tasks = 2
  max_steps = 400
  max_reply_chars = 300_000

  def make_environment(self):
    require_packages()
    return BFCL(categories=("long_context",))


class SplitsTest(unittest.TestCase):
  def setUp(self):
    require_packages()
    self.environment = BFCL()

  def problems_of(self, split):
    return [
      self.environment.find(Task("bfcl", split, index))
      for index in self.environment.indices(split)
    ]

  def _halves(self):
    return [self.problems_of(split) for split in ("train", "test")]

  def test_each_category_is_a_split(self):
    for category in CATEGORIES:
      problems = self.problems_of(category)
      with self.subTest(category=category):
        self.assertEqual({p.category for p in problems}, {category})

  def test_all_tasks_are_once_in_train_or_test(self):
    ids = [problem.id for half in self._halves() for problem in half]
    self.assertEqual(len(ids), 800)
    self.assertEqual(len(set(ids)), 800)

  def test_halves_share_no_scenario(self):
    train, test = ({p.scenario for p in half} for half in self._halves())
    self.assertEqual(train & test, set())
    self.assertEqual(len(train | test), 200)
    self.assertGreater(len(train), 50)
    self.assertGreater(len(test), 50)

  def test_halves_share_no_first_message(self):
    train, test = ({p.questions[0] for p in half} for half in self._halves())
    self.assertEqual((train & test) - {()}, set())

  def test_only_chosen_categories_are_loaded(self):
    environment = BFCL(categories=("miss_param",))
    self.assertEqual(len(environment.indices("miss_param")), 200)
    self.assertEqual(
      sum(len(environment.indices(split)) for split in ("train", "test")), 200
    )
    with self.assertRaisesRegex(ConfigError, "no split 'base'"):
      environment.indices("base")
