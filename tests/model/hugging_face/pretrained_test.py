"""Hugging Face folders: bit for bit, in little memory, and whole or refused."""

import dataclasses
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face import config as hugging_face
from agentrl_jax.model.hugging_face import export, tensor_files
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.hugging_face.tensor_files import TensorFile
from agentrl_jax.model.policy import Policy
from tests import eight_devices
from tests.model import drawn
from tests.model.policy_test import GEMMA_4_E2B, QWEN3_NEXT
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


def filled(policy):
  return jax.tree.map(jnp.asarray, drawn.fill(policy.abstract_params()))


class ReadingTest(parameterized.TestCase):
  @parameterized.parameters("", "experts")
  @pytest.mark.slow
  def test_eight_devices_take_no_more_than_a_file(self, name):
    found = eight_devices.run("tests.model.hugging_face.reading_program", name)
    self.assertTrue(found["equal"])
    self.assertGreater(found["files"], 1)
    self.assertLess(found["peak"], 1.1 * found["file"])


class RefusalTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls._root = tempfile.TemporaryDirectory()
    cls.policy = Policy(CONFIG, COMPUTE)
    cls.params = filled(cls.policy)
    cls.mesh = sharding.make_mesh({}, jax.devices()[:1])

  @classmethod
  def tearDownClass(cls):
    cls._root.cleanup()
    super().tearDownClass()

  def written(self, max_file_bytes=600) -> pathlib.Path:
    folder = pathlib.Path(tempfile.mkdtemp(dir=self._root.name)) / "model"
    export.write_params(
      folder, self.params, CONFIG, context=64, max_file_bytes=max_file_bytes
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

  def test_a_router_by_sigmoids_stays_float32_in_a_server_and_in_files(self):
    config = dataclasses.replace(
      CONFIG, num_experts=2, experts_per_token=1, sigmoid_router=True
    )
    policy = Policy(config, COMPUTE)
    params = filled(policy)
    folder = pathlib.Path(tempfile.mkdtemp(dir=self._root.name)) / "model"
    export.write_params(folder, params, config, context=64, dtype="bfloat16")
    read = read_params(folder, policy, self.mesh, dtype=jnp.bfloat16)
    for name, leaf in read["layers"]["experts"].items():
      dtype = "float32" if name in sharding.FLOAT32 else "bfloat16"
      self.assertEqual(leaf.dtype.name, dtype, name)
      wanted = np.asarray(params["layers"]["experts"][name]).astype(leaf.dtype)
      np.testing.assert_array_equal(leaf, wanted)

  def test_layers_that_predict_further_tokens_are_passed_over(self):
    folder = self.written(max_file_bytes=10**9)
    expected = read_params(folder, self.policy, self.mesh)
    described = json.loads((folder / hugging_face.CONFIG_FILE).read_text())
    more = {
      f"model.layers.2.{name}.weight": np.ones((2, 2), "f4")
      for name in ("eh_proj", "mlp.experts.0.up_proj")
    }
    self.changed(folder / tensor_files.SINGLE_FILE, lambda x: x.update(more))
    for number, outcome in ((1, None), (0, "holds model.layers.2.")):
      described["num_nextn_predict_layers"] = number
      (folder / hugging_face.CONFIG_FILE).write_text(json.dumps(described))
      if outcome:
        self.refused(folder, outcome)
        continue
      with self.assertLogs(level="INFO") as logs:
        found = read_params(folder, self.policy, self.mesh)
      self.assertIn("holds 2 tensors of layers that predict", logs.output[0])
      jax.tree.map(np.testing.assert_array_equal, found, expected)
      again = folder.with_name("again")
      export.write_params(again, found, CONFIG, context=64, beside=folder)
      wrote = json.loads((again / hugging_face.CONFIG_FILE).read_text())
      self.assertEqual(wrote["num_nextn_predict_layers"], 0)
      read_params(again, self.policy, self.mesh)

  def test_a_folder_as_qwen3_5_is_published(self):
    """It sees, predicts further tokens, and has experts in one tensor."""
    config = dataclasses.replace(
      CONFIG,
      qkv_bias=False,
      qk_norm=True,
      **QWEN3_NEXT | {"delta_by_head": False},
    )
    policy = Policy(config, COMPUTE)
    params = filled(policy)
    folder = pathlib.Path(tempfile.mkdtemp(dir=self._root.name)) / "model"
    export.write_params(folder, params, config, context=64, dtype="bfloat16")
    found = read_params(folder, policy, self.mesh, dtype=jnp.bfloat16)
    rate = found["delta_layers"]["delta"]["decay_log"]
    self.assertEqual(rate.dtype, jnp.float32)

    def publish(tensors):
      for module in [f"model.layers.{layer}.mlp.experts" for layer in (0, 1)]:
        gate, up, down = (
          np.stack(
            [tensors.pop(f"{module}.{n}.{x}_proj.weight") for n in range(5)]
          )
          for x in ("gate", "up", "down")
        )
        tensors[f"{module}.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        tensors[f"{module}.down_proj"] = down
      for name in [name for name in tensors if name.startswith("model.")]:
        renamed = name.replace("model.", "model.language_model.", 1)
        tensors[renamed] = tensors.pop(name)
      for name in ("model.visual.patch_embed.proj.weight", "mtp.fc.weight"):
        tensors[name] = np.ones((2, 2), "f4")

    self.changed(folder / tensor_files.SINGLE_FILE, publish)
    path = folder / hugging_face.CONFIG_FILE
    text = json.loads(path.read_text())
    self.assertEqual(text.pop("architectures"), ["Qwen3_5MoeForCausalLM"])
    path.write_text(
      json.dumps({"model_type": "qwen3_5_moe", "text_config": text})
    )
    again = read_params(folder, policy, self.mesh, dtype=jnp.bfloat16)
    jax.tree.map(np.testing.assert_array_equal, again, found)

  def test_keys_that_are_another_layer_s_are_passed_over(self):
    """Gemma 4 E2B is published with those of all layers."""
    of_gemma = {"embedding_scale": CONFIG.width**0.5, "activation": "gelu_tanh"}
    of_gemma |= GEMMA_4_E2B | {
      "qkv_bias": False,
      "qk_norm": True,
      "query_pre_attn_scalar": 1,
    }
    policy = Policy(dataclasses.replace(CONFIG, **of_gemma), COMPUTE)
    folder, params = pathlib.Path(self._root.name) / "e2b", filled(policy)
    export.write_params(
      folder, params, policy.config, context=64, dtype="float32"
    )
    more = {"model.layers.5.self_attn.k_proj.weight": np.ones((2, 2), "f4")}
    self.changed(folder / tensor_files.SINGLE_FILE, lambda x: x.update(more))
    found = read_params(folder, policy, self.mesh)
    jax.tree.map(np.testing.assert_array_equal, found, params)

  def changed(self, path, change):
    """Writes a file of tensors again, after `change` of their dict."""
    with TensorFile(path) as file:
      arrays = {
        name: file.read(name, entry.shape, (slice(None),) * len(entry.shape))
        for name, entry in file.entries.items()
      }
    change(arrays)
    entries = {name: (x.dtype, x.shape) for name, x in arrays.items()}
    tensor_files.write_file(path, entries, arrays.values())

  @parameterized.parameters(
    "",
    '{"weight_map": {"a": "b"',
    "[]",
    "[" * 9999,
    "version https://git-lfs.github.com/spec/v1\noid sha256:01\nsize 7\n",
    "{}",
    '{"weight_map": null}',
    '{"weight_map": {}}',
    '{"weight_map": ["a"]}',
    '{"weight_map": {"a": 1}}',
    '{"weight_map": {"a": null}}',
    '{"weight_map": {"a": ["model.safetensors"]}}',
    '{"weight_map": {"a": ""}}',
    '{"weight_map": {"a": "."}}',
    '{"weight_map": {"a": ".."}}',
    '{"weight_map": {"a": "../model.safetensors"}}',
    '{"weight_map": {"a": "/etc/passwd"}}',
    '{"weight_map": {"a": "b\\u0000"}}',
    '{"weight_map": {"a": "\\ud800"}}',
    json.dumps({"weight_map": {"a": "x" * 300}}),
  )
  def test_an_index_that_is_none(self, text):
    folder = self.written(max_file_bytes=10**9)
    index = folder / tensor_files.INDEX_FILE
    index.write_text(text)
    self.refused(folder, str(index), ConfigError)

  def test_the_index_says_which_file_counts(self):
    folder = self.written()
    expected = read_params(folder, self.policy, self.mesh)
    first, *_, last = sorted(folder.glob("*.safetensors"))
    with TensorFile(first) as file:
      stale = next(iter(file.entries))
    for name in (stale, "of.another.model"):
      self.changed(last, lambda x, n=name: x.update({n: np.ones(3, "f4")}))
    found = read_params(folder, self.policy, self.mesh)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    self.changed(first, lambda arrays: arrays.pop(stale))
    self.refused(folder, f"{first.name} lacks {stale}, which .*index.json")

  def test_a_pointer_in_place_of_tensors(self):
    folder = self.written()
    path = sorted(folder.glob("*.safetensors"))[1]
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:")
    self.refused(folder, f"{path} is a pointer of Git LFS", ConfigError)

  @parameterized.parameters(
    '{"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}',
    '{"dtype": "F32", "shape": [2], "data_offsets": [0.0, 8.0]}',
    '{"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]}',
    '{"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}',
    '{"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}',
    '{"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}',
    "[" * 9999,
  )
  def test_an_entry_that_is_none(self, entry):
    folder = self.written(max_file_bytes=10**9)
    path = folder / tensor_files.SINGLE_FILE
    text = f'{{"a": {entry}}}'.encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    self.refused(folder, f"the header of {path} is not that of a")

  @parameterized.product(
    value=[np.nan, np.inf, -np.inf], dtype=["bfloat16", "float16", "float32"]
  )
  def test_numbers_that_are_none(self, value, dtype):
    folder = self.written(max_file_bytes=10**9)
    name = "model.layers.1.mlp.down_proj.weight"

    def change(arrays):
      arrays[name] = arrays[name].astype(dtype)
      arrays[name][3, 2] = value

    self.changed(folder / tensor_files.SINGLE_FILE, change)
    self.refused(folder, f"{name} in .*model.safetensors holds NaN or inf")

  @parameterized.parameters("bfloat16", "float16", "float32")
  def test_the_largest_numbers_are_numbers(self, dtype):
    largest = np.asarray(jnp.finfo(dtype).max, dtype)
    self.assertTrue(tensor_files._is_finite(np.stack([largest, -largest])))

  def test_an_output_matrix_is_the_embedding_to_which_it_is_tied(self):
    folder = self.written(max_file_bytes=10**9)
    path = folder / tensor_files.SINGLE_FILE
    head = "lm_head.weight"
    embedding = "model.embed_tokens.weight"
    self.changed(path, lambda x: x.update({head: x[embedding].copy()}))
    read_params(folder, self.policy, self.mesh)
    self.changed(path, lambda x: x[head].__setitem__((15, 7), 3))
    self.refused(folder, f"{head} in .* is not {embedding}.* to false")
    self.changed(path, lambda x: x.update({head: x[embedding][:-1]}))
    self.refused(folder, f"{head} in .* is not {embedding}")

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
