"""A run of adapters: the base stays, checkpoints are small, files leave it."""

import pathlib
import tempfile

import chex
import jax
import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import lora, sharding
from agentrl_jax.model.hugging_face import peft
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.weights.checkpoint import Checkpoints
from configs import base
from launch.config.settings import read_settings
from launch.export import export, export_adapters
from launch.run.training import train
from launch.storage.load_params import load_params
from launch.storage.run_directory import RunDirectory
from tests.launch import export_test
from tests.settings import COMPUTE

RANK = 2


@pytest.mark.slow
class AdaptersTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.model = cls.root / "model"
    export_test.write_model(cls.model)
    config = export_test.config_of(cls.root, cls.model)
    config.lora.rank = RANK
    train(config)
    cls.run_root = cls.root / config.name
    cls.settings = read_settings(config)
    cls.policy = Policy(
      cls.settings.model, COMPUTE, adaptation=cls.settings.lora
    )

  def params_in(self, folder):
    mesh = sharding.make_mesh({}, jax.devices()[:1])
    return read_params(folder, self.policy, mesh)

  def test_what_is_stored_is_the_base_and_what_it_learned(self):
    params = load_params(
      self.settings, self.policy, RunDirectory(self.run_root), "rl"
    )
    trained, frozen = lora.split(params)
    wanted = self.params_in(self.model)["layers"]
    jax.tree.map(np.testing.assert_array_equal, frozen["layers"], wanted)
    kernels = lora.get(trained["layers"], ("attention", "q"))
    self.assertTrue(np.asarray(kernels[lora.B]).any())
    found = Checkpoints(self.run_root / "rl", keep=2)
    self.addCleanup(found.close)
    layout = str(found._manager.item_metadata(export_test.STEPS)["state"])
    self.assertIn(lora.A, layout)
    self.assertNotIn("embedding", layout)

  def test_both_exports_are_the_same_policy(self):
    export(self.run_root, self.root / "merged", dtype="float32")
    export_adapters(self.run_root, self.root / "adapters")
    config, adapters = peft.read_adapters(
      self.root / "adapters", self.settings.model
    )
    self.assertEqual(config, self.settings.lora)
    whole = lora.joined(self.params_in(self.model), adapters)
    merged = lora.merged(whole, config.scale)
    chex.assert_trees_all_close(
      merged["layers"],
      self.params_in(self.root / "merged")["layers"],
      rtol=1e-7,
      atol=1e-6,
    )


class AdaptationTest(absltest.TestCase):
  def test_settings_that_nothing_reads(self):
    config = base.get_config()
    config.lora.alpha = 2.0
    with self.assertRaisesRegex(ConfigError, "lora.rank is 0"):
      read_settings(config)
