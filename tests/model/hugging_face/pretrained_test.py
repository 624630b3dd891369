"""Hugging Face folders: bit for bit, in little memory, and whole or refused."""

import dataclasses
import json
import pathlib
import tempfile

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face import config as hugging_face
from agentrl_jax.model.hugging_face import export, tensor_files
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.hugging_face.tensor_files import TensorFile
from agentrl_jax.model.policy import Policy
from tests import eight_devices
from tests.settings import COMPUTE

CONFIG = ModelConfig(
  vocab_size=16,
  width=8,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  mlp_width=8,
  qkv_bias=True,
)


class ReadingTest(absltest.TestCase):
  @pytest.mark.slow
  def test_eight_devices_take_no_more_than_a_file(self):
    found = eight_devices.run("tests.model.hugging_face.reading_program")
    self.assertTrue(found["equal"])
    self.assertGreater(found["files"], 1)
    self.assertLess(found["peak"], 1.1 * found["file"])


class RefusalTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls._root = tempfile.TemporaryDirectory()
    cls.policy = Policy(CONFIG, COMPUTE)
    cls.params = cls.policy.init(jax.random.key(0))
    cls.mesh = sharding.make_mesh({}, jax.devices()[:1])

  @classmethod
  def tearDownClass(cls):
    cls._root.cleanup()
    super().tearDownClass()

  def written(self, max_file_bytes=600) -> pathlib.Path:
    folder = pathlib.Path(tempfile.mkdtemp(dir=self._root.name)) / "model"
    export.write_params(
      folder,
      self.params,
      CONFIG,
      context=64,
      max_file_bytes=max_file_bytes,
    )
    return folder

  def refused(self, folder, message, error=CheckpointError):
    with self.assertRaisesRegex(error, message):
      read_params(folder, self.policy, self.mesh)

  @pytest.mark.slow
  def test_the_critic_starts_at_zero_and_is_left_out(self):
    policy = Policy(dataclasses.replace(CONFIG, value_head=True), COMPUTE)
    params = read_params(self.written(), policy, self.mesh)
    self.assertEqual(
      jax.tree.structure(params), jax.tree.structure(policy.abstract_params())
    )
    for leaf in jax.tree.leaves(params["critic"]):
      np.testing.assert_array_equal(leaf, 0)
    export.write_params(
      folder := self.written().with_name("critic"),
      params,
      policy.config,
      context=64,
    )
    read_params(folder, self.policy, self.mesh)

  def test_files_that_are_cut_short(self):
    for keep in (4, 100, -1):
      folder = self.written()
      path = sorted(folder.glob("*.safetensors"))[1]
      path.write_bytes(path.read_bytes()[:keep])
      self.refused(folder, f"{path.name}.*cut short")

  def test_headers_that_are_none(self):
    folder = self.written(max_file_bytes=10**9)
    path = folder / tensor_files.SINGLE_FILE
    for text in (b"{", b"[]", b'{"a": {}}', b'{"a": {"data_offsets": 1}}'):
      path.write_bytes(len(text).to_bytes(8, "little") + text)
      self.refused(folder, "the header of .* is not that of a safetensors")

  @pytest.mark.slow
  def test_a_file_that_is_not_there(self):
    folder = self.written()
    sorted(folder.glob("*.safetensors"))[0].unlink()
    self.refused(folder, "names model-00001-of.* which .* lacks")
    for path in folder.glob("*.safetensors*"):
      path.unlink()
    self.refused(folder, "has neither .*index.json nor model.safetensors")

  def test_tensors_of_another_model(self):
    folder = self.written(max_file_bytes=10**9)
    path = folder / tensor_files.SINGLE_FILE
    name = "model.layers.1.mlp.down_proj.weight"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(name.encode(), b"x" * len(name)))
    self.refused(folder, "holds x+, which config.json .* account for")
    path.write_bytes(whole.replace(b'"BF16"', b'"I16" ', 1))
    self.refused(folder, "has dtype I16; what can be read is F32, BF16, F16")
    path.write_bytes(whole)
    with TensorFile(path) as file:
      entries = {
        n: (e.dtype, e.shape) for n, e in file.entries.items() if n != name
      }
    arrays = [np.zeros(shape, dtype) for dtype, shape in entries.values()]
    tensor_files.write_file(path, entries, arrays)
    self.refused(folder, f"lacks 1 tensors, {name} first")

  def test_another_architecture(self):
    folder = self.written()
    path = folder / hugging_face.CONFIG_FILE
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | {"num_hidden_layers": 1}))
    self.refused(folder, "num_layers is 1 there and 2 here", ConfigError)
    wider = Policy(dataclasses.replace(CONFIG, mlp_width=9), COMPUTE)
    path.write_text(json.dumps(described | {"intermediate_size": 9}))
    with self.assertRaisesRegex(CheckpointError, r"is \[8, 8\] and config"):
      read_params(folder, wider, self.mesh)

  @pytest.mark.slow
  def test_a_folder_appears_when_it_is_complete(self):
    folder = self.written()
    with self.assertRaisesRegex(ConfigError, "is there already"):
      export.write_params(folder, self.params, CONFIG, context=64)
    torn = self.written().with_name("torn")
    half = {k: v for k, v in self.params.items() if k != "final_norm"}
    with self.assertRaises(KeyError):
      export.write_params(torn, half, CONFIG, context=64)
    self.assertFalse(torn.exists())
    export.write_params(torn, self.params, CONFIG, context=64)
    read_params(torn, self.policy, self.mesh)

  @pytest.mark.slow
  def test_a_scaled_embedding_becomes_two(self):
    for tied in (True, False):
      config = dataclasses.replace(
        CONFIG, embedding_scale=3.0, tied_embedding=tied
      )
      policy = Policy(config, COMPUTE)
      params = policy.init(jax.random.key(1))
      plain, plain_config = export.without_scale(params, config)
      hugging_face.family_of(plain_config)
      rows = np.arange(6)[None], np.arange(6)[None], np.ones((1, 6), int)
      np.testing.assert_allclose(
        Policy(plain_config, COMPUTE).logits(plain, *rows),
        policy.logits(params, *rows),
        atol=1e-6,
      )

  def test_what_stands_beside_a_model_comes_along(self):
    source = self.written()
    (source / "tokenizer.json").write_text("{}")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "pytorch_model.bin").write_bytes(b"x")
    path = source / hugging_face.CONFIG_FILE
    described = json.loads(path.read_text()) | {"eos_token_id": 5}
    path.write_text(json.dumps(described))
    target = source.with_name("target")
    export.write_params(
      target,
      self.params,
      CONFIG,
      context=1,
      dtype="float32",
      beside=source,
      about={"bos_token_id": 7},
    )
    self.assertEqual(
      sorted(p.name for p in target.iterdir()),
      [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
      ],
    )
    found = json.loads((target / hugging_face.CONFIG_FILE).read_text())
    self.assertEqual(
      found, described | {"torch_dtype": "float32", "bos_token_id": 7}
    )
