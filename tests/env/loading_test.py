"""Tests of loading environments by name."""

import unittest

from agentrl_jax.env.interface import Environment
from agentrl_jax.env.loading import load_environment, parse_options
from agentrl_jax.errors import ConfigError

ARITHMETIC = "environments.arithmetic.environment:Arithmetic"


class Unfinished(Environment):
  name = "unfinished"


class LoadEnvironmentTest(unittest.TestCase):
  def test_makes_the_named_class_with_options(self):
    environment = load_environment(ARITHMETIC, {"num_tasks": 3})
    self.assertEqual(environment.name, "arithmetic")
    self.assertEqual(list(environment.indices("train")), [0, 1, 2])

  def test_errors_name_the_cause(self):
    module = __name__
    for target, options, words in (
      ("environments.arithmetic", {}, "module:Class"),
      ("environments.nowhere:Nowhere", {}, "no module 'environments.nowhere'"),
      ("environments.arithmetic.environment:Sum", {}, "it has Arithmetic"),
      ("environments.arithmetic.environment:Foo", {}, "it has Arithmetic"),
      (f"{module}:Unfinished", {}, "does not define indices, open"),
      (ARITHMETIC, {"num_taks": 3}, "num_taks.*it takes.*num_tasks"),
      (ARITHMETIC, {"num_tasks": 0}, "must be above 0"),
    ):
      with (
        self.subTest(target=target),
        self.assertRaisesRegex(ConfigError, words),
      ):
        load_environment(target, options)


class ParseOptionsTest(unittest.TestCase):
  def test_values_are_literals_or_text(self):
    self.assertEqual(
      parse_options(["n=3", "path=/tmp/a=b", "on=True", "xs=[1, 2]", "e="]),
      {"n": 3, "path": "/tmp/a=b", "on": True, "xs": [1, 2], "e": ""},
    )

  def test_malformed_pairs_are_refused(self):
    for pairs in (["n"], ["=3"], ["a b=3"], ["n=1", "n=2"]):
      with self.subTest(pairs=pairs), self.assertRaises(ConfigError):
        parse_options(pairs)
