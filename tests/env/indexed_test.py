"""Tests of the base of indexed environments, and of checks of options."""

import unittest

from agentrl_jax.data.records import Task
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.options import engine_of, require_one_of, require_positive
from agentrl_jax.errors import ConfigError


class Squares(IndexedEnvironment[str]):
  name = "squares"
  split_hint = "`source` adds files"

  def __init__(self, **options):
    super().__init__(**options)
    self.num_generated = 0

  def generate(self, split, index):
    self.num_generated += 1
    return f"{split} {index**2}"

  def open(self, task, *, seed):
    raise NotImplementedError


class Engine:
  is_closed = False

  async def close(self):
    self.is_closed = True


class IndexedEnvironmentTest(unittest.IsolatedAsyncioTestCase):
  def test_splits_have_their_lengths(self):
    squares = Squares(num_tasks=3, loaded={"dev": ("a", "b")})
    self.assertEqual(squares.indices("train"), range(3))
    self.assertEqual(squares.indices("dev"), range(2))
    uneven = Squares(num_tasks={"train": 5, "test": 1})
    self.assertEqual([*uneven.splits().items()], [("train", 5), ("test", 1)])

  def test_find_generates_once_or_loads(self):
    squares = Squares(loaded={"dev": ("a", "b")})
    for _ in range(2):
      self.assertEqual(squares.find(Task("squares", "test", 4)), "test 16")
      self.assertEqual(squares.find(Task("squares", "dev", 1)), "b")
    self.assertEqual(squares.num_generated, 1)

  def test_missing_tasks_and_splits_are_refused(self):
    squares = Squares(num_tasks=3)
    for split, index, message in (
      ("train", 3, "3 tasks in split train, and no task 3"),
      ("test", -1, "no task -1"),
      ("dev", 0, "no split 'dev', only train, test; `source` adds files"),
      ("tset", 0, "no split 'tset', only train, test"),
    ):
      with (
        self.subTest(split=split, index=index),
        self.assertRaisesRegex(ConfigError, message),
      ):
        squares.find(Task("squares", split, index))
    with self.assertRaisesRegex(ConfigError, "num_tasks=0 must be above 0"):
      Squares(num_tasks=0)

  async def test_close_closes_the_engine(self):
    squares = Squares()
    await squares.close()
    squares._engine = Engine()
    await squares.close()
    self.assertTrue(squares._engine.is_closed)


class OptionsTest(unittest.TestCase):
  def test_positive(self):
    require_positive(max_rounds=1, limit_s=0.1)
    for value in (0, -1, float("nan")):
      with self.assertRaisesRegex(ConfigError, f"limit_s={value} must be abov"):
        require_positive(max_rounds=1, limit_s=value)

  def test_one_of(self):
    require_one_of({"short": "", "upstream": ""}, prompt="short")
    with self.assertRaisesRegex(ConfigError, "prompt='x' is not one of a, b"):
      require_one_of(("a", "b"), prompt="x")

  def test_engine_is_given_or_made(self):
    engine = Engine()
    self.assertIs(engine_of(engine, {}), engine)
    self.assertIsInstance(engine_of("own", {"own": Engine}), Engine)
    with self.assertRaisesRegex(ConfigError, "engine='x' is not one of own"):
      engine_of("x", {"own": Engine})
