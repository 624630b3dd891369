"""Gemma 4's config.json is the preset, or refused by its key."""

import pytest
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.hugging_face.config import (
  from_model_config,
  to_model_config,
)
from agentrl_jax.model.hugging_face.presets import preset

GEMMA_4_31B = {  # which sees
  "architectures": ["Gemma4ForConditionalGeneration"],
  "eos_token_id": [1, 106],
  "model_type": "gemma4",
  "text_config": {
    "attention_bias": False,
    "attention_k_eq_v": True,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 5376,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 21504,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    "max_position_embeddings": 262144,
    "model_type": "gemma4_text",
    "num_attention_heads": 32,
    "num_experts": None,
    "num_global_key_value_heads": 4,
    "num_hidden_layers": 60,
    "num_key_value_heads": 16,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
      "full_attention": {
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
        "rope_type": "proportional",
      },
      "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": False,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
  },
  "tie_word_embeddings": True,
}
TEXT = GEMMA_4_31B["text_config"]
OWN = {"head_dim": 512, "num_key_value_heads": 4}
BY_LAYER = {f"{n:02}": OWN for n in range(5, 60, 6)}
PUBLISHED_BY_LAYER = ("global_head_dim", "num_global_key_value_heads")


def _without(*keys: str) -> dict:
  return {key: x for key, x in TEXT.items() if key not in keys}


class Gemma4Test(parameterized.TestCase):
  def test_published_ones_are_the_presets(self):
    wanted = preset("gemma-4-31b")
    implied = _without("layer_types", "rope_parameters", "vocab_size")
    by_layer = _without(*PUBLISHED_BY_LAYER) | {"per_layer_config": BY_LAYER}
    for described in (GEMMA_4_31B, TEXT, implied, by_layer):
      self.assertEqual(to_model_config(described), wanted)

  @parameterized.parameters(
    ({"hidden_size_per_layer_input": None}, "hidden_size_per_layer_input=null"),
    ({"num_kv_shared_layers": 4}, "num_kv_shared_layers=4 is not computed"),
    (
      {"enable_moe_block": True, "moe_intermediate_size": 1000},
      "intermediate_size=21504 is not computed here",
    ),
    ({"use_bidirectional_attention": "all"}, "bidirectional_attention=.all"),
    ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling=.* is not"),
    ({"layer_types": ["sliding_attention"] * 60}, "a last layer that sees all"),
    ({"attention_bias": True}, "attention_bias=true is not computed"),
    ({"global_head_dim": 7}, "global_head_dim=7 must be even"),
    ({"num_global_key_value_heads": 5}, "must be 0 or divide"),
    ({"final_logit_softcapping": -1}, "final_logit_softcapping=-1 must be"),
    (
      {"per_layer_config": BY_LAYER | {"0": {"head_dim": 64}}},
      "per_layer_config=.* is not computed here",
    ),
    (
      {"per_layer_config": BY_LAYER, "global_head_dim": 256},
      "global_head_dim is 256 and in per_layer_config 512",
    ),
    (
      {
        "rope_parameters": {
          "full_attention": {"rope_type": "linear", "factor": 2.0}
        }
      },
      'rope_type="linear" is not computed here for this model_type',
    ),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      to_model_config(TEXT | changes)

  @pytest.mark.slow
  def test_others_have_no_rotation_of_gemma_4(self):
    described = from_model_config(
      preset("qwen3-8b"), context=10, dtype="float32"
    )
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    with self.assertRaisesRegex(ConfigError, "proportional. is not computed"):
      to_model_config(described | {"rope_scaling": rope})
