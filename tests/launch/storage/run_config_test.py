"""A run's own config is read back, also by code that knows more keys."""

import pathlib
import tempfile
import unittest

import yaml

from agentrl_jax.controller.groups.group_queue import ANY_AGE
from agentrl_jax.errors import ConfigError
from launch.config.settings import read_settings
from launch.storage.run_config import run_config
from launch.storage.run_directory import RunDirectory
from tests.launch import tiny


class FiledConfigTest(unittest.TestCase):
  def test_keys_that_a_run_does_not_know_have_their_defaults(self):
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      with self.assertRaisesRegex(ConfigError, "has no config.yaml"):
        run_config(root)
      config = tiny.get_config()
      RunDirectory(root).keep_config(config)
      whole = read_settings(run_config(root))
      self.assertEqual(whole, read_settings(config))
      path = root / "config.yaml"
      filed = yaml.safe_load(path.read_text())
      del filed["http"], filed["engine"]["prefix_cache_tokens"]
      filed["advantage"]["k"] = 1  # a key that nothing read, and is no more
      path.write_text(yaml.safe_dump(filed))
      self.assertEqual(read_settings(run_config(root)), whole)
      filed["advantage"]["k"] = 4
      path.write_text(yaml.safe_dump(filed))
      with self.assertRaisesRegex(ConfigError, r"estimator_settings={'k': ..."):
        run_config(root)

  def test_any_age_of_a_run_from_before_it_had_a_default(self):
    with tempfile.TemporaryDirectory() as folder:
      root, config = pathlib.Path(folder), tiny.get_config()
      config.queue.max_age = ANY_AGE
      RunDirectory(root).keep_config(config)
      path = root / "config.yaml"
      filed = yaml.safe_load(path.read_text())
      filed["queue"]["max_age"] = None
      path.write_text(yaml.safe_dump(filed))
      self.assertEqual(read_settings(run_config(root)), read_settings(config))
      RunDirectory(root).keep_config(config)
      config.queue.max_age = 3
      with self.assertRaisesRegex(ConfigError, "max_age was -1 and is 3"):
        RunDirectory(root).keep_config(config)
