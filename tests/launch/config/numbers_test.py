"""Tests of `launch.config.numbers`: what no key of any section can be."""

import math

import ml_collections
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from configs import base, environments
from launch.config.numbers import check_numbers
from launch.config.settings import read_environments, read_settings

# Of any number of a config; of whole ones too, since files are not typed.
WRONG = (math.nan, math.inf, -math.inf, -2e6, 1e30, True, False, "1", None)
WRONG_WHOLE = (-2, 1.5, 2**63, 10**3000)


def replaced(section, replace, above=""):
  """Copies a section, with the numbers replaced by `replace(key, number)`."""
  copy = {}
  for name, value in section.items():
    key = f"{above}{name}"
    if isinstance(value, dict):
      copy[name] = replaced(value, replace, f"{key}.")
    elif isinstance(value, tuple) and value:
      copy[name] = (
        *value[:-1],
        replaced({name: value[-1]}, replace, above)[name],
      )
    elif isinstance(value, int | float) and not isinstance(value, bool):
      copy[name] = replace(key, value)
    else:
      copy[name] = value
  return copy


def changed(key, value):
  """The base config with one key changed, as a file that was edited has it."""
  config = base.get_config().to_dict()
  *above, name = key.split(".")
  held = config
  for word in above:
    held = held[word]
  held[name] = value
  return ml_collections.ConfigDict(config)


class NumbersTest(parameterized.TestCase):
  def test_defaults_are_allowed(self):
    check_numbers(base.get_config())

  @parameterized.parameters(
    *((int | float, value) for value in WRONG),
    *((int, value) for value in WRONG_WHOLE),
  )
  def test_every_number_of_the_config_refuses(self, kind, wrong):
    keys = set()

    def replace(key, number):
      if isinstance(number, kind):
        keys.add(key)
        return wrong
      return number

    config = replaced(base.get_config().to_dict(), replace)
    with self.assertRaises(ConfigError) as caught:
      check_numbers(ml_collections.ConfigDict(config))
    refused = str(caught.exception).split("; ")
    self.assertEqual({line.partition("=")[0] for line in refused}, keys)
    self.assertGreater(len(keys), 100)
    for line in refused:
      self.assertRegex(line, r"must be (at least|above) .* a (whole )?number")

  @parameterized.parameters(
    ("optimizer.b1", 1.0, "must be at least 0 and below 1, a number"),
    ("optimizer.learning_rate", 0.0, "must be above 0 and"),
    ("evaluation.timeout_s", 0.0, "must be above 0 and at most 1000000000"),
    ("evaluation.num_tasks", 0, "must be at least 1"),
    ("evaluation.num_sampled", -1, "must be at least 0"),
    ("sampling.top_p", 1.1, "at least 1e-09 and at most 1"),
    ("mesh.data", 0, "at least 1 and at most 2147483647, a whole"),
    ("checkpoint.resume_step", -2, "must be at least -1"),
    ("tasks.weights.alfworld", -1.0, "at least 0"),
    ("engine.slots", (64, -1), r"engine.slots=\(64, -1\) must be at"),
    ("engine.cache_tokens", (True,), "must be at least 0 .*, a whole"),
    ("engine.slots", 64, "engine.slots=64 must be a tuple"),
  )
  def test_says_what_is_allowed(self, key, value, message):
    for read in (read_settings, read_environments):
      with self.assertRaisesRegex(ConfigError, message):
        read(changed(key, value))

  @parameterized.parameters(
    ("containers.cpus", 0.5),
    ("retry.backoff_s", 0.0),
    ("evaluation.temperature", 0.0),
    ("advantage.incomplete_reward", -1.0),
    ("cross_policy.weights", (1, 0)),
    ("optimizer.weight_decay", 0),
    ("agents.port", 0),
  )
  def test_allows(self, key, value):
    check_numbers(changed(key, value))

  def test_names_all_wrong_keys(self):
    config = changed("optimizer.b1", math.nan)
    config.retry.backoff_s = math.inf
    with self.assertRaises(ConfigError) as caught:
      check_numbers(config)
    for key in ("optimizer.b1=nan", "retry.backoff_s=inf"):
      self.assertIn(key, str(caught.exception))

  def test_leaves_options_of_others_to_their_classes(self):
    config = base.get_config()
    with config.unlocked():
      config.environments.mine = environments.entry(
        "my_lab:Mine", options={"temperature": -1.0, "limit": math.inf}
      )
    check_numbers(config)
