"""config.json is read as it is published, and refused by key where it must be.

The texts are those of the published files, without keys that say nothing of the
architecture.
"""

import json
import pathlib
import tempfile

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.hugging_face.config import (
  from_model_config,
  read_model,
  to_model_config,
)
from agentrl_jax.model.hugging_face.presets import PRESETS, preset

QWEN2_5_14B_INSTRUCT = {
  "architectures": ["Qwen2ForCausalLM"],
  "attention_dropout": 0.0,
  "hidden_act": "silu",
  "hidden_size": 5120,
  "intermediate_size": 13824,
  "max_position_embeddings": 32768,
  "max_window_layers": 70,
  "model_type": "qwen2",
  "num_attention_heads": 40,
  "num_hidden_layers": 48,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0,
  "sliding_window": 131072,
  "tie_word_embeddings": False,
  "torch_dtype": "bfloat16",
  "use_sliding_window": False,
  "vocab_size": 152064,
}
QWEN3_8B = {
  "architectures": ["Qwen3ForCausalLM"],
  "attention_bias": False,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 12288,
  "max_position_embeddings": 40960,
  "model_type": "qwen3",
  "num_attention_heads": 32,
  "num_hidden_layers": 36,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06,
  "rope_scaling": None,
  "rope_theta": 1000000,
  "sliding_window": None,
  "tie_word_embeddings": False,
  "use_sliding_window": False,
  "vocab_size": 151936,
}
LLAMA_3_2_1B = {
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": False,
  "head_dim": 64,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "intermediate_size": 8192,
  "max_position_embeddings": 131072,
  "mlp_bias": False,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 16,
  "num_key_value_heads": 8,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": True,
  "vocab_size": 128256,
}
GLM_4_9B_0414 = {
  "architectures": ["Glm4ForCausalLM"],
  "attention_bias": True,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 13696,
  "max_position_embeddings": 32768,
  "model_type": "glm4",
  "num_attention_heads": 32,
  "num_hidden_layers": 40,
  "num_key_value_heads": 2,
  "partial_rotary_factor": 0.5,
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "tie_word_embeddings": False,
  "vocab_size": 151552,
}
PUBLISHED = (
  ("qwen2.5-14b", QWEN2_5_14B_INSTRUCT),
  ("qwen3-8b", QWEN3_8B),
  ("llama-3.2-1b", LLAMA_3_2_1B),
  ("glm-4-9b-0414", GLM_4_9B_0414),
)


class ConfigFileTest(parameterized.TestCase):
  @parameterized.parameters(*PUBLISHED)
  def test_published_ones_are_the_presets(self, name, described):
    self.assertEqual(to_model_config(described), preset(name))

  @parameterized.parameters(*PUBLISHED)
  def test_as_transformers_5_writes_them(self, name, described):
    """Rotary settings are one section there."""
    rope = {"rope_type": "default", "rope_theta": described["rope_theta"]}
    rope |= described.get("rope_scaling") or {}
    if "partial_rotary_factor" in described:
      rope["partial_rotary_factor"] = described["partial_rotary_factor"]
    moved = ("rope_theta", "rope_scaling", "partial_rotary_factor")
    described = {k: v for k, v in described.items() if k not in moved}
    described |= {
      "rope_parameters": rope,
      "layer_types": ["full_attention"] * described["num_hidden_layers"],
    }
    self.assertEqual(to_model_config(described), preset(name))

  def test_what_is_written_reads_the_same(self):
    for name, config in PRESETS.items():
      described = from_model_config(config, context=8192, dtype="bfloat16")
      self.assertEqual(to_model_config(described), config, name)

  @parameterized.parameters(
    ({"model_type": "gpt2"}, "model_type='gpt2' is not one of qwen2, qwen3"),
    ({"model_type": "qwen3_moe"}, "model_type='qwen3_moe'"),
    ({"hidden_act": "gelu"}, "hidden_act='gelu' is not computed here"),
    ({"use_sliding_window": True}, "use_sliding_window=True is not"),
    ({"layer_types": ["sliding_attention"]}, "layer_types has sliding_att"),
    ({"attention_bias": True}, "attention_bias=true"),
    ({"quantization_config": {"bits": 4}}, "quantization_config={'bits': 4}"),
    ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_type='yarn'"),
    ({"rope_scaling": {"rope_type": "llama3"}}, "factor=None must be a num"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is computed"),
    ({"num_hidden_layers": "36"}, "num_hidden_layers='36' must be a number"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      to_model_config(QWEN3_8B | changes)

  def test_llama_with_biases_is_another_function(self):
    for key in ("attention_bias", "mlp_bias"):
      with self.assertRaisesRegex(ConfigError, key):
        to_model_config(LLAMA_3_2_1B | {key: True})

  @parameterized.parameters(
    ("qwen3-8b", {"embedding_scale": 2.0}, "embedding_scale=2.0 has no"),
    ("qwen3-8b", {"qkv_bias": True}, "are no family of"),
    (
      "qwen3-8b",
      {"partial_rotary_factor": 0.5},
      "partial_rotary_factor=0.5 is computed by glm4",
    ),
  )
  def test_no_family_computes_it(self, name, changes, message):
    config = type(preset(name))(**vars(preset(name)) | changes)
    with self.assertRaisesRegex(ConfigError, message):
      from_model_config(config, context=1, dtype="bfloat16")

  def test_a_folder_says_which_file_is_wrong(self):
    with tempfile.TemporaryDirectory() as folder:
      with self.assertRaisesRegex(ConfigError, f"pretrained.path={folder} can"):
        read_model(folder)
      path = pathlib.Path(folder) / "config.json"
      path.write_text("{")
      with self.assertRaisesRegex(ConfigError, f"{path} is not JSON"):
        read_model(folder)
      path.write_text(json.dumps(QWEN3_8B | {"model_type": None}))
      with self.assertRaisesRegex(ConfigError, f"{path}: model_type=None"):
        read_model(folder)
