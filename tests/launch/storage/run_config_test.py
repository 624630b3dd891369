"""A run's own config is read back, and that of another version refused."""

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
  def test_a_config_is_read_as_it_was_given(self):
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      with self.assertRaisesRegex(ConfigError, "has no config.yaml"):
        run_config(root)
      config = tiny.get_config()
      RunDirectory(root).keep_config(config)
      whole = read_settings(run_config(root))
      self.assertEqual(whole, read_settings(config))

  def test_a_config_of_another_version_is_refused_by_its_first_other_key(self):
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      RunDirectory(root).keep_config(tiny.get_config())
      path = root / "config.yaml"
      filed = yaml.safe_load(path.read_text())
      del filed["queue"]["patience"]
      path.write_text(yaml.safe_dump(filed))
      with self.assertRaisesRegex(ConfigError, "lacks the key queue.patience"):
        run_config(root)
      filed["curriculum"] = {"cut": 1}
      path.write_text(yaml.safe_dump(filed))
      with self.assertRaisesRegex(ConfigError, "has the key curriculum.cut"):
        run_config(root)
