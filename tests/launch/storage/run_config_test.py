"""A run's own config is read back, also by code that knows more keys."""

import pathlib
import tempfile
import unittest

import yaml

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
      del filed["http"], filed["engine"]["cache_tokens"]
      path.write_text(yaml.safe_dump(filed))
      self.assertEqual(read_settings(run_config(root)), whole)
