"""PEFT computes with our adapters what we do, and we with PEFT's."""

import dataclasses
import functools
import importlib.util
import json
import pathlib
import tempfile
import unittest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model import lora, sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face import export, pretrained, tensor_files
from agentrl_jax.model.hugging_face import peft as ours
from agentrl_jax.model.hugging_face.config import read_model
from agentrl_jax.model.hugging_face.tensor_files import TensorFile
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.model.policy import Policy
from tests.model import drawn
from tests.model.hugging_face import families
from tests.settings import COMPUTE, lora_config

CONFIG = lora_config(rank=3, alpha=6.0)
SIZES = dict(
  vocab_size=61,
  width=24,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  mlp_width=20,
)
MODELS = {
  "qwen2": ModelConfig(**SIZES, qkv_bias=True, qk_norm=False),
  "qwen3": ModelConfig(
    **SIZES,
    qk_norm=True,
    rope_type="yarn",
    rope_factor=4.0,
    rope_original_context=16,
    rope_attention_factor=1.2,
  ),
  "llama": ModelConfig(**SIZES, qk_norm=False),
  "olmo2": ModelConfig(
    **SIZES,
    qk_norm=True,
    joint_qk_norm=True,
    pre_norm=False,
    sandwich_norm=True,
  ),
  "qwen3_moe": ModelConfig(
    **SIZES, qk_norm=True, num_experts=3, experts_per_token=2
  ),
  "glm4_moe": ModelConfig(
    **SIZES,
    qkv_bias=True,
    num_experts=4,
    experts_per_token=2,
    sigmoid_router=True,
    dense_layers=1,
    dense_mlp_width=20,
  ),
  "gpt_oss": ModelConfig(
    **SIZES,
    qkv_bias=True,
    o_bias=True,
    sinks=True,
    window=4,
    window_period=2,
    num_experts=4,
    experts_per_token=2,
    normed_experts=True,
    swiglu_limit=7.0,
  ),
  "gemma4_text": ModelConfig(
    **SIZES,
    qk_norm=True,
    window=5,
    window_period=2,
    local_rope_theta=100.0,
    rope_type="proportional",
    partial_rotary_factor=0.5,
    global_head_dim=12,
    global_kv_heads=1,
    keys_as_values=True,
    value_norm=True,
    query_pre_attn_scalar=1,
    sandwich_norm=True,
    layer_scale=True,
    num_experts=4,
    experts_per_token=2,
    normed_experts=True,
    shared_experts=1,
    normed_branches=True,
    activation="gelu_tanh",
    embedding_scale=24**0.5,
  ),
  "glm4": ModelConfig(
    **SIZES, qk_norm=False, sandwich_norm=True, partial_rotary_factor=0.5
  ),
}


def fitting(model: ModelConfig, config: LoraConfig = CONFIG) -> LoraConfig:
  """The same adapters as far as PEFT has them: `LoraConfig.check`."""
  if not model.num_experts:
    return config
  one_of_two = len({"gate", "up"} & {*config.targets}) == 1
  left_out = ("gate", "up") if one_of_two else ()
  targets = tuple(name for name in config.targets if name not in left_out)
  return dataclasses.replace(config, targets=targets)


@functools.cache
def shapes_of(model: ModelConfig, config: LoraConfig):
  return Policy(model, COMPUTE, adaptation=config).abstract_split()[0]


def adapters_of(model: ModelConfig, config: LoraConfig = CONFIG):
  """Adapters of which no number is 0."""
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32) * 0.2,
    shapes_of(model, config),
  )


class FolderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = (
      pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
      / "adapters"
    )

  def write(self, model=MODELS["qwen3"], config=CONFIG):
    adapters = adapters_of(model, config)
    ours.write_adapters(self.folder, adapters, model, config, base="some/base")
    return adapters

  def change(self, **values):
    path = self.folder / ours.CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | values))

  def change_tensors(self, change):
    """Writes the file of tensors again, after `change` of their dict."""
    path = self.folder / ours.TENSORS_FILE
    with TensorFile(path) as file:
      arrays = {name: ours._read(file, name) for name in file.entries}
    change(arrays)
    entries = {name: (x.dtype, x.shape) for name, x in arrays.items()}
    tensor_files.write_file(path, entries, arrays.values())

  @parameterized.product(
    name=[*MODELS], targets=[CONFIG.targets, ("q", "o"), ("up", "k")]
  )
  def test_comes_back_bit_for_bit(self, name, targets):
    config = lora_config(rank=3, alpha=6.0, targets=targets)
    config = fitting(MODELS[name], config)
    targets = config.targets
    adapters = self.write(MODELS[name], config)
    found, again = ours.read_adapters(self.folder, MODELS[name])
    if name == "glm4" and "up" in targets and "gate" not in targets:
      gate = again["layers"].pop("gate")  # one module with up
      self.assertFalse(gate["lora_b"].any())
      targets = (*targets, "gate")
    self.assertEqual(set(found.targets), set(targets))
    self.assertEqual((found.rank, found.scale), (config.rank, config.scale))
    jax.tree.map(np.testing.assert_array_equal, again, adapters)

  def test_names_are_those_of_a_base_that_sees(self):
    base = self.folder.with_name("base")
    base.mkdir()
    described = {"model_type": "gemma3", "text_config": {}}
    (base / "config.json").write_text(json.dumps(described))
    model = MODELS["llama"]
    adapters = adapters_of(model)
    ours.write_adapters(self.folder, adapters, model, CONFIG, base=str(base))
    with TensorFile(self.folder / ours.TENSORS_FILE) as file:
      names = [*file.entries]
    below = "base_model.model.model.language_model.layers."
    self.assertTrue(all(name.startswith(below) for name in names), names)
    _, again = ours.read_adapters(self.folder, model)
    jax.tree.map(np.testing.assert_array_equal, again, adapters)

  @parameterized.parameters("llama", "gpt_oss", "gemma4_text")
  def test_a_folder_of_adapters_is_its_base_with_them(self, name):
    model, base = MODELS[name], self.folder.with_name("base")
    adapters = self.write(model)
    self.change(base_model_name_or_path="../base")
    plain = Policy(model, COMPUTE)
    params = jax.tree.map(jnp.asarray, drawn.fill(plain.abstract_params()))
    export.write_params(base, params, model, context=16, dtype="float32")
    self.assertEqual(read_model(self.folder), read_model(base))
    digests = [tensor_files.model_digest(self.folder)]
    whole, mesh = lora.joined(params, adapters), sharding.make_mesh({})
    config = dataclasses.replace(CONFIG, targets=CONFIG.targets[::-1])
    trains = Policy(model, COMPUTE, adaptation=config)
    jax.tree.map(
      np.testing.assert_array_equal,
      pretrained.read_params(self.folder, trains, mesh),
      whole,
    )
    # Of a tensor with several parts rsLoRA's scale would be another.
    for rank_root in (1, 3**0.5) if name == "llama" else (1,):
      jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-6),
        pretrained.read_params(self.folder, plain, mesh),
        lora.merged(whole, CONFIG.scale * rank_root),
      )
      self.change(use_rslora=True)
    digests += map(tensor_files.model_digest, (self.folder, base))
    self.assertLen({*digests}, 3)

  @parameterized.parameters("some/base", None, ".")
  def test_adapters_whose_base_is_not_here(self, base):
    self.write()
    self.change(base_model_name_or_path=base)
    with self.assertRaisesRegex(
      ConfigError, "adapters .*set base_model_name_or_path in .*adapter_config"
    ):
      read_model(self.folder)

  def test_is_not_written_over(self):
    self.write()
    with self.assertRaisesRegex(ConfigError, "is there already"):
      self.write()

  @parameterized.parameters(
    ({"use_dora": True}, "use_dora=True"),
    ({"lora_bias": True}, "lora_bias=True"),
    ({"trainable_token_indices": [3]}, "trainable_token_indices"),
    ({"target_parameters": ["experts.down_proj"]}, "target_parameters="),
    ({"peft_type": "IA3"}, "peft_type='IA3'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"target_modules": "all-linear"}, "must list some of q_proj"),
    ({"target_modules": ["w1"]}, "must list some of q_proj"),
    ({"rank_pattern": {"q_proj": 9}}, "one rank for all"),
    ({"target_modules": [["q_proj"]]}, "must list some of q_proj"),
    ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
    ({"r": None}, "adapter_config.json: r=null must be a whole number"),
    ({"r": "8"}, "r="),
    ({"r": -1}, "r=-1"),
    ({"r": True}, "r=true"),
    ({"lora_alpha": float("nan")}, "lora_alpha=NaN must be a number"),
    ({"lora_alpha": "16"}, "lora_alpha="),
    ({"target_modules": None}, "must list some of q_proj"),
    ({"target_modules": [1, {}]}, "must list some of q_proj"),
    ({"rank_pattern": [1]}, "one rank for all"),
  )
  def test_configs_of_other_adapters_or_of_none(self, change, pattern):
    self.write()
    self.change(**change)
    with self.assertRaisesRegex(ConfigError, pattern):
      ours.read_adapters(self.folder, MODELS["qwen3"])

  @parameterized.parameters("", "[]", "{", "version https://git-lfs.github.com")
  def test_a_config_that_is_none(self, text):
    self.write()
    (self.folder / ours.CONFIG_FILE).write_text(text)
    with self.assertRaisesRegex(ConfigError, "adapter_config.json"):
      ours.read_adapters(self.folder, MODELS["qwen3"])

  def test_no_tensor_is_passed_over(self):
    self.write()
    more = {"base_model.model.model.embed_tokens.weight": np.ones((2, 2), "f4")}
    self.change_tensors(lambda arrays: arrays.update(more))
    with self.assertRaisesRegex(CheckpointError, "holds .*embed_tokens"):
      ours.read_adapters(self.folder, MODELS["qwen3"])

  @parameterized.product(
    letter=("A", "B"),
    change=(
      np.ravel,
      lambda array: array.ravel()[0],
      lambda array: array[:0],
      lambda array: np.concatenate([array, array]),
      lambda array: np.concatenate([array, array], 1),
      lambda array: array[None],
    ),
  )
  def test_a_tensor_of_another_shape(self, letter, change):
    def change_one(arrays):
      name = min(name for name in arrays if f"lora_{letter}" in name)
      arrays[name] = np.asarray(change(arrays[name]))

    self.write()
    self.change_tensors(change_one)
    with self.assertRaisesRegex(CheckpointError, "are of another model"):
      ours.read_adapters(self.folder, MODELS["qwen3"])

  def test_adapters_of_another_model(self):
    self.write()
    self.change(r=2)
    with self.assertRaisesRegex(CheckpointError, "rank 2 in 1 parts"):
      ours.read_adapters(self.folder, MODELS["qwen3"])
    self.change(r=3, target_modules=["q_proj"])
    (self.folder / ours.CONFIG_FILE).unlink()
    with self.assertRaisesRegex(ConfigError, "adapter_config.json cannot be"):
      ours.read_adapters(self.folder, MODELS["qwen3"])

  def test_more_layers_than_there_are(self):
    self.write(MODELS["qwen2"])
    deeper = ModelConfig(**(SIZES | {"num_layers": 3}), qk_norm=True)
    with self.assertRaisesRegex(CheckpointError, "layers.2.* another model"):
      ours.read_adapters(self.folder, deeper)


@unittest.skipIf(families.torch is None, families.WITHOUT)
@unittest.skipIf(
  importlib.util.find_spec("peft") is None, "needs peft: pip install peft"
)
# What peft reads of transformers, which has given it another name.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
# Of tensors of all experts, whose ranks peft takes from there nevertheless.
@pytest.mark.filterwarnings("ignore:The following .*_pattern:RuntimeWarning")
class PeftTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def build(self, family):
    sees = family == "gemma3"
    described = families.describe(
      "gemma3_text" if sees else family,
      tied=family in ("llama", "gemma3", "gemma4_text"),
    )
    model = (families.build_seeing if sees else families.build)(described)
    policy, params = families.load(
      families.saved(model, self.root / "base", max_shard_size=10**9)
    )
    of_ours = MODELS.get(family, MODELS["llama"])
    self.assertEqual(policy.config.num_experts > 0, of_ours.num_experts > 0)
    return model, policy.config, params

  def compare(self, theirs, config, params, adapters, adaptation):
    policy = Policy(config, COMPUTE, adaptation=adaptation)
    token_BT = np.random.default_rng(0).integers(0, config.vocab_size, (2, 17))
    rows = (token_BT, np.tile(np.arange(17), (2, 1)), np.ones((2, 17), int))
    torch = families.torch
    with torch.no_grad():
      wanted = theirs(torch.tensor(token_BT)).logits.numpy()
    whole = policy.whole(jax.tree.map(jnp.asarray, adapters), params)
    for params in (whole, policy.plain(whole)):
      found = jax.jit(policy.logits)(params, *rows)
      np.testing.assert_allclose(found, wanted, atol=1e-4)
    return wanted

  @parameterized.parameters(
    *((family, CONFIG.targets) for family in (*MODELS, "gemma3", "gemma4_e2b")),
    ("gpt_oss", ("down",)),
    ("gpt_oss", ("k", "gate", "up")),
  )
  @pytest.mark.slow
  def test_peft_loads_ours(self, family, targets):
    model, config, params = self.build(family)
    adaptation = dataclasses.replace(CONFIG, targets=targets)
    adapters = adapters_of(config, adaptation)
    base = str(self.root / "base")
    ours.write_adapters(
      self.root / "ours", adapters, config, adaptation, base=base
    )
    import peft  # late: it reads torch, for seconds

    theirs = peft.PeftModel.from_pretrained(model, self.root / "ours").eval()
    adapted = self.compare(theirs, config, params, adapters, adaptation)
    with theirs.disable_adapter(), families.torch.no_grad():
      ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, 17))
      plain = theirs(families.torch.tensor(ids)).logits.numpy()
    self.assertGreater(np.abs(adapted - plain).max(), 0.01)
    if family == "gemma3":
      self.assertFalse(
        [
          n
          for n, _ in theirs.named_parameters()
          if "vision" in n and "lora" in n
        ]
      )

  @parameterized.parameters(
    "qwen2", "glm4", "gpt_oss", "gemma4_text", "gemma4_e2b"
  )
  @pytest.mark.slow
  def test_we_load_pefts(self, family):
    model, config, params = self.build(family)
    names = [*ours._names(config)]
    import peft

    theirs = peft.get_peft_model(
      model,
      peft.LoraConfig(
        r=2,
        lora_alpha=5,
        target_modules=[name for name in names if "." not in name],
        target_parameters=[
          "mlp." * (family == "gpt_oss") + name for name in names if "." in name
        ],
      ),
    )
    with families.torch.no_grad():
      for name, weight in theirs.named_parameters():
        if "lora_" in name:
          weight.add_(0.2 * families.torch.randn_like(weight))
    theirs.save_pretrained(self.root / "theirs", save_embedding_layers=False)
    adaptation, adapters = ours.read_adapters(self.root / "theirs", config)
    self.assertEqual(adaptation.scale, 2.5)
    self.compare(theirs.eval(), config, params, adapters, adaptation)
