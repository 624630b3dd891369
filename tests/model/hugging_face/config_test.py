"""config.json is read as it is published, and refused by key where it must be.

The texts are those of the published files, without keys that say nothing of the
architecture.
"""

import dataclasses
import json
import math
import pathlib
import tempfile

from absl.testing import parameterized
from hypothesis import given, settings, strategies

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.hugging_face.config import (
  from_model_config,
  longest_context,
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
OLMO_2_1B = {
  "architectures": ["Olmo2ForCausalLM"],
  "attention_bias": False,
  "attention_dropout": 0.0,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "initializer_range": 0.02,
  "intermediate_size": 8192,
  "max_position_embeddings": 4096,
  "model_type": "olmo2",
  "num_attention_heads": 16,
  "num_hidden_layers": 16,
  "num_key_value_heads": 16,
  "rms_norm_eps": 1e-06,
  "rope_scaling": None,
  "rope_theta": 500000,
  "tie_word_embeddings": False,
  "vocab_size": 100352,
}
MISTRAL = {
  **{k: v for k, v in LLAMA_3_2_1B.items() if k != "rope_scaling"},
  "model_type": "mistral",
  "architectures": ["MistralForCausalLM"],
}
QWEN3_NEXT_80B_A3B = {
  "architectures": ["Qwen3NextForCausalLM"],
  "attention_dropout": 0.0,
  "decoder_sparse_step": 1,
  "full_attention_interval": 4,
  "head_dim": 256,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "intermediate_size": 5120,
  "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128,
  "linear_num_key_heads": 16,
  "linear_num_value_heads": 32,
  "linear_value_head_dim": 128,
  "max_position_embeddings": 262144,
  "mlp_only_layers": [],
  "model_type": "qwen3_next",
  "moe_intermediate_size": 512,
  "norm_topk_prob": True,
  "num_attention_heads": 16,
  "num_experts": 512,
  "num_experts_per_tok": 10,
  "num_hidden_layers": 48,
  "num_key_value_heads": 2,
  "partial_rotary_factor": 0.25,
  "rms_norm_eps": 1e-06,
  "rope_scaling": None,
  "rope_theta": 10000000,
  "shared_expert_intermediate_size": 512,
  "tie_word_embeddings": False,
  "use_sliding_window": False,
  "vocab_size": 151936,
}
QWEN3_5_35B_A3B = {
  "architectures": ["Qwen3_5MoeForConditionalGeneration"],
  "model_type": "qwen3_5_moe",
  "text_config": {
    "attention_bias": False,
    "attn_output_gate": True,
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 10,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512,
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
      "mrope_interleaved": True,
      "mrope_section": [11, 11, 10],
      "partial_rotary_factor": 0.25,
      "rope_theta": 10000000,
      "rope_type": "default",
    },
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "vocab_size": 248320,
  },
  "tie_word_embeddings": False,
  "vision_config": {"depth": 27},
}
QWEN3_5_TEXT = QWEN3_5_35B_A3B["text_config"]
YARN = {  # as Qwen's model cards say
  "type": "yarn",
  "factor": 4.0,
  "original_max_position_embeddings": 32768,
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
QWEN3_30B_A3B = {
  "architectures": ["Qwen3MoeForCausalLM"],
  "attention_bias": False,
  "decoder_sparse_step": 1,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "intermediate_size": 6144,
  "max_position_embeddings": 40960,
  "mlp_only_layers": [],
  "model_type": "qwen3_moe",
  "moe_intermediate_size": 768,
  "norm_topk_prob": True,
  "num_attention_heads": 32,
  "num_experts": 128,
  "num_experts_per_tok": 8,
  "num_hidden_layers": 48,
  "num_key_value_heads": 4,
  "output_router_logits": False,
  "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0,
  "router_aux_loss_coef": 0.001,
  "tie_word_embeddings": False,
  "vocab_size": 151936,
}
GLM_4_5_AIR = {
  "architectures": ["Glm4MoeForCausalLM"],
  "attention_bias": True,
  "first_k_dense_replace": 1,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 10944,
  "max_position_embeddings": 131072,
  "model_type": "glm4_moe",
  "moe_intermediate_size": 1408,
  "n_group": 1,
  "n_routed_experts": 128,
  "n_shared_experts": 1,
  "norm_topk_prob": True,
  "num_attention_heads": 96,
  "num_experts_per_tok": 8,
  "num_hidden_layers": 46,
  "num_key_value_heads": 8,
  "num_nextn_predict_layers": 1,
  "partial_rotary_factor": 0.5,
  "rms_norm_eps": 1e-05,
  "rope_scaling": None,
  "rope_theta": 1000000,
  "routed_scaling_factor": 1.0,
  "tie_word_embeddings": False,
  "topk_group": 1,
  "use_qk_norm": False,
  "vocab_size": 151552,
}
GEMMA_3_1B = {
  "architectures": ["Gemma3ForCausalLM"],
  "attention_bias": False,
  "attn_logit_softcapping": None,
  "final_logit_softcapping": None,
  "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 1152,
  "intermediate_size": 6912,
  "max_position_embeddings": 32768,
  "model_type": "gemma3_text",
  "num_attention_heads": 4,
  "num_hidden_layers": 26,
  "num_key_value_heads": 1,
  "query_pre_attn_scalar": 256,
  "rms_norm_eps": 1e-06,
  "rope_local_base_freq": 10000,
  "rope_scaling": None,
  "rope_theta": 1000000,
  "sliding_window": 512,
  "sliding_window_pattern": 6,
  "vocab_size": 262144,
}
GEMMA_3_27B = {  # which sees, and says of its text what is no default
  "architectures": ["Gemma3ForConditionalGeneration"],
  "eos_token_id": [1, 106],
  "image_token_index": 262144,
  "mm_tokens_per_image": 256,
  "model_type": "gemma3",
  "text_config": {
    "head_dim": 128,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "model_type": "gemma3_text",
    "num_attention_heads": 32,
    "num_hidden_layers": 62,
    "num_key_value_heads": 16,
    "query_pre_attn_scalar": 168,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
  },
  "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
GPT_OSS_20B = {
  "architectures": ["GptOssForCausalLM"],
  "attention_bias": True,
  "attention_dropout": 0.0,
  "eos_token_id": 200002,
  "experts_per_token": 4,
  "head_dim": 64,
  "hidden_act": "silu",
  "hidden_size": 2880,
  "initial_context_length": 4096,
  "intermediate_size": 2880,
  "layer_types": ["sliding_attention", "full_attention"] * 12,
  "max_position_embeddings": 131072,
  "model_type": "gpt_oss",
  "num_attention_heads": 64,
  "num_experts_per_tok": 4,
  "num_hidden_layers": 24,
  "num_key_value_heads": 8,
  "num_local_experts": 32,
  "quantization_config": {
    "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    "quant_method": "mxfp4",
  },
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "rope_type": "yarn",
    "truncate": False,
  },
  "rope_theta": 150000,
  "sliding_window": 128,
  "swiglu_limit": 7.0,
  "tie_word_embeddings": False,
  "vocab_size": 201088,
}
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
GEMMA_4_TEXT = GEMMA_4_31B["text_config"]
GEMMA_4_E2B = GEMMA_4_TEXT | {
  "attention_k_eq_v": False,
  "hidden_size": 1536,
  "hidden_size_per_layer_input": 256,
  "intermediate_size": 6144,
  "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
  "num_attention_heads": 8,
  "num_global_key_value_heads": None,
  "num_hidden_layers": 35,
  "num_key_value_heads": 1,
  "num_kv_shared_layers": 20,
  "sliding_window": 512,
  "use_double_wide_mlp": True,
  "vocab_size_per_layer_input": 262144,
}
GEMMA_4_E4B = GEMMA_4_E2B | {
  "hidden_size": 2560,
  "intermediate_size": 10240,
  "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 7,
  "num_hidden_layers": 42,
  "num_key_value_heads": 2,
  "num_kv_shared_layers": 18,
  "use_double_wide_mlp": False,
}
GEMMA_4_OWN = {"head_dim": 512, "num_key_value_heads": 4}
GEMMA_4_BY_LAYER = {f"{n:02}": GEMMA_4_OWN for n in range(5, 60, 6)}
PUBLISHED = (
  ("qwen2.5-14b", QWEN2_5_14B_INSTRUCT),
  ("qwen3-8b", QWEN3_8B),
  ("llama-3.2-1b", LLAMA_3_2_1B),
  ("glm-4-9b-0414", GLM_4_9B_0414),
  ("olmo-2-1b", OLMO_2_1B),
)

_FIELDS = {
  "vocab_size": "vocab_size",
  "hidden_size": "width",
  "num_hidden_layers": "num_layers",
  "num_attention_heads": "num_heads",
  "num_key_value_heads": "num_kv_heads",
  "head_dim": "head_dim",
  "intermediate_size": "mlp_width",
  "rms_norm_eps": "norm_epsilon",
  "tie_word_embeddings": "tied_embedding",
  "rope_theta": "rope_theta",
  "partial_rotary_factor": "partial_rotary_factor",
}
_ROPE_FIELDS = {
  "rope_theta": "rope_theta",
  "partial_rotary_factor": "partial_rotary_factor",
  "factor": "rope_factor",
  "low_freq_factor": "rope_low_frequency",
  "high_freq_factor": "rope_high_frequency",
  "original_max_position_embeddings": "rope_original_context",
  "beta_slow": "rope_low_frequency",
  "beta_fast": "rope_high_frequency",
  "truncate": "rope_truncate",
  "attention_factor": "rope_attention_factor",
}
_KEYS = sorted(
  {*_FIELDS, *_ROPE_FIELDS, "model_type", "architectures", "attention_bias"}
  | {"rope_scaling", "rope_parameters", "rope_type", "type", "layer_types"}
  | {"hidden_act", "mlp_bias", "use_sliding_window", "quantization_config"}
  | {"mrope_section", "num_experts", "auto_map", "sliding_window"}
  | {"sliding_window_pattern", "rope_local_base_freq", "query_pre_attn_scalar"}
  | {"sliding_attention", "full_attention", "hidden_activation"}
)
_SCALARS = strategies.one_of(
  strategies.none(),
  strategies.booleans(),
  strategies.sampled_from(
    (0, 1, 2, 3, 8, 64, -1, 0.5, 1.0, 2.0, 1e-6, 1e300, 10**30, "8", "")
  ),
  strategies.sampled_from(
    ("default", "llama3", "yarn", "dynamic", "linear", "longrope", "mrope")
  ),
  strategies.integers(),
  strategies.floats(allow_nan=True),
  strategies.text(max_size=3),
)
_VALUES = strategies.one_of(
  _SCALARS,
  strategies.lists(_SCALARS, max_size=3),
  strategies.dictionaries(strategies.sampled_from(_KEYS), _SCALARS, max_size=4),
)


# What transformers takes without a key, where it fits any model.
_DEFAULTS = {
  "head_dim": 128,
  "num_key_value_heads": None,
  "tie_word_embeddings": False,
  "rope_theta": 1e4,
  "partial_rotary_factor": 0.5,
}
_REQUIRED = {
  ("num_key_value_heads", name)
  for name, _ in PUBLISHED
  if not name.startswith(("llama", "olmo"))
}


def _without(described: dict, *keys: str) -> dict:
  return {key: x for key, x in described.items() if key not in keys}


def _changed(data):
  """Draws a published config with one to three keys changed or left out."""
  _, published = data.draw(
    strategies.sampled_from((*PUBLISHED, ("gemma-3-1b", GEMMA_3_1B)))
  )
  described = json.loads(json.dumps(published))
  for _ in range(data.draw(strategies.integers(1, 3))):
    target = described
    nested = described.get("rope_scaling")
    if isinstance(nested, dict) and data.draw(strategies.booleans()):
      target = nested
    key = data.draw(strategies.sampled_from(_KEYS))
    if data.draw(strategies.integers(0, 4)):
      target[key] = data.draw(_VALUES)
    else:
      target.pop(key, None)
  return json.loads(json.dumps(described))  # as it comes from a file


def _type_of(key: str) -> type:
  if key == "tie_word_embeddings":
    return bool
  is_real = key.startswith(("rms", "rope", "partial"))
  return float if is_real else int


# Without what only code of DeepSeek's own reads, and without fp8.
DEEPSEEK_V3 = {
  "architectures": ["DeepseekV3ForCausalLM"],
  "attention_bias": False,
  "auto_map": {
    "AutoConfig": "configuration_deepseek.DeepseekV3Config",
    "AutoModel": "modeling_deepseek.DeepseekV3Model",
    "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
  },
  "first_k_dense_replace": 3,
  "hidden_act": "silu",
  "hidden_size": 7168,
  "intermediate_size": 18432,
  "kv_lora_rank": 512,
  "max_position_embeddings": 163840,
  "model_type": "deepseek_v3",
  "moe_intermediate_size": 2048,
  "moe_layer_freq": 1,
  "n_group": 8,
  "n_routed_experts": 256,
  "n_shared_experts": 1,
  "norm_topk_prob": True,
  "num_attention_heads": 128,
  "num_experts_per_tok": 8,
  "num_hidden_layers": 61,
  "num_key_value_heads": 128,
  "num_nextn_predict_layers": 1,
  "q_lora_rank": 1536,
  "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-06,
  "rope_scaling": {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
  },
  "rope_theta": 10000,
  "routed_scaling_factor": 2.5,
  "scoring_func": "sigmoid",
  "tie_word_embeddings": False,
  "topk_group": 4,
  "topk_method": "noaux_tc",
  "v_head_dim": 128,
  "vocab_size": 129280,
}
GLM_4_7_FLASH = {
  "architectures": ["Glm4MoeLiteForCausalLM"],
  "attention_bias": False,
  "first_k_dense_replace": 1,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "intermediate_size": 10240,
  "kv_lora_rank": 512,
  "max_position_embeddings": 202752,
  "model_type": "glm4_moe_lite",
  "moe_intermediate_size": 1536,
  "n_group": 1,
  "n_routed_experts": 64,
  "n_shared_experts": 1,
  "norm_topk_prob": True,
  "num_attention_heads": 20,
  "num_experts_per_tok": 4,
  "num_hidden_layers": 47,
  "num_key_value_heads": 20,
  "num_nextn_predict_layers": 1,
  "partial_rotary_factor": 1.0,
  "q_lora_rank": 768,
  "qk_nope_head_dim": 192,
  "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-05,
  "rope_scaling": None,
  "rope_theta": 1000000,
  "routed_scaling_factor": 1.8,
  "tie_word_embeddings": False,
  "topk_group": 1,
  "topk_method": "noaux_tc",
  "v_head_dim": 256,
  "vocab_size": 154880,
}


class ConfigFileTest(parameterized.TestCase):
  @parameterized.parameters(
    *PUBLISHED,
    ("qwen3-30b-a3b", QWEN3_30B_A3B),
    ("glm-4.5-air", GLM_4_5_AIR),
    ("gemma-3-1b", GEMMA_3_1B),
    ("gemma-3-27b", GEMMA_3_27B),
    ("gpt-oss-20b", GPT_OSS_20B),
    ("qwen3-next-80b-a3b", QWEN3_NEXT_80B_A3B),
    ("qwen3.5-35b-a3b", QWEN3_5_35B_A3B),
    ("deepseek-v3", DEEPSEEK_V3),
    ("glm-4.7-flash", GLM_4_7_FLASH),
    ("gemma-4-31b", GEMMA_4_31B),
    ("gemma-4-31b", GEMMA_4_TEXT),
    *(  # of the whole model alone
      (
        name,
        described
        | {
          "text_config": _without(
            described["text_config"], "tie_word_embeddings"
          )
        },
      )
      for name, described in (
        ("gemma-4-31b", GEMMA_4_31B),
        ("qwen3.5-35b-a3b", QWEN3_5_35B_A3B),
      )
    ),
    ("gemma-4-e2b", GEMMA_4_E2B),
    ("gemma-4-e4b", GEMMA_4_E4B),
    (  # what is not said is that of transformers' classes
      "gemma-4-e4b",
      _without(
        GEMMA_4_E4B,
        "hidden_size_per_layer_input",
        "vocab_size_per_layer_input",
        "use_double_wide_mlp",
      ),
    ),
    (  # of layers that there are not
      "gemma-4-31b",
      GEMMA_4_TEXT | {"use_double_wide_mlp": True},
    ),
    (  # as transformers 5 names and writes them
      "qwen3-30b-a3b",
      _without(QWEN3_30B_A3B, "num_experts") | {"num_local_experts": 128},
    ),
    (
      "glm-4.5-air",
      _without(GLM_4_5_AIR, "n_routed_experts") | {"num_local_experts": 128},
    ),
    (
      "gemma-4-31b",
      _without(GEMMA_4_TEXT, "global_head_dim", "num_global_key_value_heads")
      | {"per_layer_config": GEMMA_4_BY_LAYER},
    ),
    (  # what is not said is that of transformers' classes
      "gemma-4-31b",
      _without(GEMMA_4_TEXT, "layer_types", "rope_parameters", "vocab_size"),
    ),
    *(
      ("gpt-oss-20b", _without(GPT_OSS_20B, key))
      for key in (
        "attention_bias",
        "head_dim",
        "layer_types",
        "rope_theta",
        "sliding_window",
        "swiglu_limit",
        "tie_word_embeddings",
        "quantization_config",
      )
    ),
  )
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
    described = _without(described, *moved) | {
      "rope_parameters": rope,
      "layer_types": ["full_attention"] * described["num_hidden_layers"],
    }
    self.assertEqual(to_model_config(described), preset(name))

  def test_what_is_written_reads_the_same(self):
    yarn = to_model_config(QWEN3_8B | {"rope_scaling": YARN})
    linear = {"rope_scaling": {"type": "linear", "factor": 2}}
    stretched = {"yarn": yarn, "linear": to_model_config(QWEN3_8B | linear)}
    for name, config in (stretched | PRESETS).items():
      described = from_model_config(config, context=8192, dtype="bfloat16")
      self.assertEqual(to_model_config(described), config, name)

  @parameterized.parameters(
    ({}, {}),
    ({"attention_factor": 0.8}, {"rope_attention_factor": 0.8}),
    ({"mscale": 0.7, "mscale_all_dim": 0.7}, {"rope_attention_factor": 1.0}),
    (
      {"beta_fast": 8, "truncate": False},
      {"rope_high_frequency": 8.0, "rope_truncate": False},
    ),
  )
  def test_yarn(self, keys, fields):
    described = QWEN2_5_14B_INSTRUCT | {"rope_scaling": YARN | keys}
    expected = vars(preset("qwen2.5-14b")) | {
      "rope_type": "yarn",
      "rope_factor": 4.0,
      "rope_original_context": 32768,
      "rope_low_frequency": 1.0,
      "rope_high_frequency": 32.0,
      "rope_attention_factor": 0.1 * math.log(4) + 1,
    }
    self.assertEqual(vars(to_model_config(described)), expected | fields)
    outer = {"original_max_position_embeddings": 32768}
    inner = {k: v for k, v in (YARN | keys).items() if k not in outer}
    described = QWEN2_5_14B_INSTRUCT | outer | {"rope_scaling": inner}
    self.assertEqual(vars(to_model_config(described)), expected | fields)

  def test_yarn_extends_the_context(self):
    for rope, context in ((None, 40960), (YARN, 131072)):
      with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "config.json"
        path.write_text(json.dumps(QWEN3_8B | {"rope_scaling": rope}))
        self.assertEqual(longest_context(path.parent), context)

  @parameterized.parameters(
    (
      QWEN3_8B,
      {"model_type": "gpt2"},
      'model_type="gpt2" is not one of qwen2, qwen3',
    ),
    (
      QWEN3_8B,
      {"model_type": "qwen3_moe"},
      r'architectures=.*\["Qwen3MoeForCausalLM"\] is',
    ),
    (
      QWEN3_8B,
      {"num_experts": 8},
      "num_experts=8 is .* of a model_type .*: qwen3_moe",
    ),
    (
      QWEN3_8B,
      {"hidden_act": "gelu"},
      'hidden_act="gelu" is not computed here',
    ),
    (QWEN3_8B, {"use_sliding_window": True}, "use_sliding_window=true is not"),
    (
      QWEN3_8B,
      {"layer_types": ["sliding_attention"]},
      "layer_types has .'sliding_att",
    ),
    (
      QWEN3_8B,
      {"layer_types": ["full_attention"]},
      "once for each of num_hidden_layers",
    ),
    (QWEN3_8B, {"layer_types": 3}, "layer_types has 3; full_attention alone"),
    (
      QWEN3_8B,  # without a list as long as this
      {"layer_types": ["full_attention"], "num_hidden_layers": 2**31 - 1},
      "once for each of num_hidden_layers=2147483647",
    ),
    (QWEN3_8B, {"attention_bias": True}, "attention_bias=true"),
    (
      QWEN3_8B,
      {"quantization_config": {"bits": 4}},
      "quantization_config={'bits': 4}",
    ),
    (
      QWEN3_8B,
      {"rope_scaling": {"type": "yarn", "factor": 4}},
      "original_max_position_embeddings=null must be a whole number",
    ),
    (
      QWEN3_8B,
      {"rope_scaling": YARN | {"truncate": None}},
      "truncate=null must be true",
    ),
    (
      QWEN3_8B,
      {"rope_scaling": YARN | {"mscale": 1}},
      "mscale is given without mscale_",
    ),
    (
      QWEN3_8B,
      {"rope_scaling": YARN | {"factor": 0.5}},
      "rope_factor=0.5 must be at",
    ),
    (
      QWEN3_8B,
      {"rope_scaling": YARN | {"attn_factor": 2}},
      '"attn_factor" means nothing',
    ),
    (
      QWEN3_8B,
      {"rope_scaling": YARN | {"beta_fast": 1, "beta_slow": 32}},
      "0 < model.rope_low_frequency=32.0 < model.rope_high_frequency=1.0",
    ),
    (
      QWEN3_8B,
      {"rope_scaling": YARN, "original_max_position_embeddings": 4096},
      "original_max_position_embeddings is 32768 and 4096 in one file",
    ),
    (QWEN3_8B, {"rope_scaling": {"type": "longrope"}}, 'rope_type="longrope"'),
    (
      QWEN3_8B,
      {"rope_scaling": {"type": "dynamic", "factor": 2}},
      'rope_type="dynamic" is not computed here .it turns a token by the len',
    ),
    (
      QWEN3_8B,
      {"rope_scaling": {"rope_type": "llama3"}},
      "factor=null must be a num",
    ),
    # Passed over, each of these would be another model.
    (
      QWEN3_8B,
      {"rope_scaling": {"factor": 4.0}},
      '"factor" means nothing with rope_typ',
    ),
    (
      QWEN3_8B,
      {"rope_scaling": {"rope_type": "default", "type": "yarn"}},
      'rope_type is "default" and "yarn" in one file',
    ),
    (
      QWEN3_8B,
      {"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}},
      '"mrope_section" means nothing',
    ),
    (
      QWEN3_8B,
      {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
      '"full_attention" means nothing',
    ),
    (
      QWEN3_8B,
      {"rope_parameters": {"rope_theta": 5e5}},
      "rope_theta is 1000000 and 500",
    ),
    (
      QWEN3_8B,
      {"rope_scaling": [1]},
      r"rope_parameters=\[1\] must be an object",
    ),
    (QWEN3_8B, {"rope_scaling": 0}, "rope_parameters=0 must be an object"),
    (QWEN3_8B, {"rope_theta": 0}, "rope_theta=0 must be a number above 0"),
    (QWEN3_8B, {"rope_theta": True}, "rope_theta=true must be a number"),
    (QWEN3_8B, {"head_dim": 0}, "head_dim=0 must be a whole number"),
    (QWEN3_8B, {"head_dim": None}, "head_dim=null is read in different ways"),
    (
      QWEN3_8B,
      {"num_key_value_heads": 5},
      "=5 does not divide num_attention_heads=32",
    ),
    (
      QWEN3_8B,
      {"tie_word_embeddings": "false"},
      '="false" must be true or false',
    ),
    (QWEN3_8B, {"tie_word_embeddings": None}, "=null must be true or false"),
    (
      QWEN3_8B,
      {"rms_norm_eps": 10**400},
      "must be a number above 0, of at most 1",
    ),
    (
      QWEN3_8B,
      {"rms_norm_eps": float("nan")},
      "rms_norm_eps=NaN must be a number",
    ),
    (
      QWEN3_8B,
      {"vocab_size": 2**31},
      "vocab_size=2147483648 must be a whole number",
    ),
    (
      QWEN3_8B,
      {"vocab_size": 151936.0},
      "vocab_size=151936.0 must be a whole number",
    ),
    (
      QWEN3_8B,
      {"architectures": ["Qwen3ForSequenceClassification"]},
      "not computed here",
    ),
    (QWEN3_8B, {"architectures": "Qwen3ForCausalLM"}, "not computed here"),
    (
      QWEN3_8B,
      {"auto_map": {"AutoModel": "x.Y"}},
      "auto_map={'AutoModel': 'x.Y'} is not",
    ),
    (QWEN3_8B, {"use_sliding_window": 0}, "use_sliding_window=0 is not"),
    (
      QWEN3_8B,
      {"partial_rotary_factor": 0.5},
      "partial_rotary_factor=0.5 is computed",
    ),
    (
      QWEN3_8B,
      {"num_hidden_layers": "36"},
      'num_hidden_layers="36" must be a whole',
    ),
    (
      QWEN3_30B_A3B,
      {"decoder_sparse_step": 2},
      "decoder_sparse_step=2 is not computed",
    ),
    (
      QWEN3_30B_A3B,
      {"mlp_only_layers": [0]},
      r"mlp_only_layers=\[0\] is not computed",
    ),
    (
      QWEN3_30B_A3B,
      {"num_local_experts": 8},
      "num_experts and num_local_experts differ",
    ),
    (
      QWEN3_30B_A3B,
      {"num_experts": None},
      "num_experts=null must be a whole number",
    ),
    (
      QWEN3_30B_A3B,
      {"num_experts": 4},
      "experts_per_token=8 must lie between 1 and .*=4",
    ),
    (
      QWEN3_30B_A3B,
      {"norm_topk_prob": 1},
      "norm_topk_prob=1 must be true or false",
    ),
    (
      GLM_4_5_AIR,
      {"n_group": 0},
      "n_group=0 must .*|expert_groups=0 must divide",
    ),
    (
      GLM_4_5_AIR,
      {"n_shared_experts": -1},
      "n_shared_experts=-1 must be a whole .* from 0",
    ),
    (
      GLM_4_5_AIR,
      {"first_k_dense_replace": 46},
      "dense_layers=46 must be 0, or from 1 to",
    ),
    (
      GLM_4_5_AIR,
      {"n_group": 3, "topk_group": 3},
      "expert_groups=3 must divide .*=128",
    ),
    (
      GLM_4_5_AIR,
      {"num_local_experts": 8},
      "n_routed_experts and num_local_experts differ",
    ),
    (
      GLM_4_5_AIR,
      {"routed_scaling_factor": 0},
      "routed_scaling_factor=0 must be a number",
    ),
    (GLM_4_5_AIR, {"use_qk_norm": 1}, "use_qk_norm=1 must be true or false"),
    (
      DEEPSEEK_V3,
      {"rope_interleave": False},
      "rope_interleave=false is not computed here",
    ),
    (DEEPSEEK_V3, {"scoring_func": "softmax"}, 'has scoring_func="sigmoid"'),
    (
      DEEPSEEK_V3,
      {"auto_map": {"AutoModel": "mine.Model"}},
      "auto_map=.* not computed",
    ),
    (
      DEEPSEEK_V3,
      {"quantization_config": {"quant_method": "fp8"}},
      "fp8_cast_bf16.py",
    ),
    (
      DEEPSEEK_V3,
      {"attention_bias": True},
      "attention_bias=true is not computed here",
    ),
    (
      DEEPSEEK_V3,
      {"use_qk_norm": True},
      "qk_norm=True means nothing with .*latent_dim=512",
    ),
    (DEEPSEEK_V3, {"head_dim": 192}, "head_dim=192 is not qk_rope_head_dim=64"),
    (
      DEEPSEEK_V3,
      {"num_key_value_heads": 4},
      "num_kv_heads=4 be model.num_heads=128",
    ),
    (
      DEEPSEEK_V3,
      {"v_head_dim": None},
      "v_head_dim=null must be a whole number",
    ),
    (
      DEEPSEEK_V3,
      {"model_type": "deepseek_v32"},
      "indexer .* deepseek_v3 has the same",
    ),
    (
      DEEPSEEK_V3,
      {"model_type": "glm_moe_dsa"},
      "indexer .* glm4_moe_lite has the same",
    ),
    (
      DEEPSEEK_V3,
      {"model_type": "glm4_moe_lite", "architectures": None},
      "mlp_layer_types=null and first_k_dense_replace=3: ",
    ),
    (
      GEMMA_3_1B,
      {"attn_logit_softcapping": 50.0},
      "attn_logit_softcapping=50.0 is not",
    ),
    (
      GEMMA_3_1B,
      {"use_bidirectional_attention": True},
      "use_bidirectional_attention=true",
    ),
    (
      GEMMA_3_1B,
      {"hidden_activation": "gelu"},
      'hidden_activation="gelu" is not',
    ),
    (
      GEMMA_3_1B,
      {"sliding_window": 0},
      "sliding_window=0 must be a whole number",
    ),
    (GEMMA_3_1B, {"sliding_window": "512"}, 'sliding_window="512" must be'),
    (
      GEMMA_3_1B,
      {"layer_types": ["sliding_attention"]},
      "one of them for each of num_hid",
    ),
    (
      GEMMA_3_1B,
      {"layer_types": ["full_attention", *["sliding_attention"] * 25]},
      "full_attention at unequal distances",
    ),
    (
      GEMMA_3_1B,
      {"sliding_window_pattern": 1.5},
      "sliding_window_pattern=1.5 must be",
    ),
    (
      GEMMA_3_1B,
      {"rope_parameters": {"full_attention": {}, "chunked_attention": {}}},
      "rope_parameters=.* is not computed here",
    ),
    (
      GEMMA_3_1B,
      {
        "rope_parameters": {
          "sliding_attention": {"rope_type": "linear", "factor": 2}
        }
      },
      "of which the latter has rope_theta alone",
    ),
    (
      GEMMA_3_1B,
      {"rope_parameters": {"sliding_attention": {"rope_theta": 5.0}}},
      "rope_theta of sliding_attention is 5.0 and rope_local_base_freq is 10",
    ),
    (
      GPT_OSS_20B,
      {"attention_bias": False},
      "attention_bias=false is not .* with true",
    ),
    (
      GPT_OSS_20B,
      {"quantization_config": {"quant_method": "fp8"}},
      "quantization_config=",
    ),
    (
      GPT_OSS_20B,
      {"quantization_config": "mxfp4"},
      'quantization_config="mxfp4" is not',
    ),
    (GPT_OSS_20B, {"swiglu_limit": None}, "swiglu_limit=null must be a number"),
    (
      GPT_OSS_20B,
      {"swiglu_limit": 0},
      "swiglu_limit=0 must be a number above 0",
    ),
    (GPT_OSS_20B, {"swiglu_alpha": 1.0}, "swiglu_alpha=1.0 is not computed"),
    (
      GPT_OSS_20B,
      {"rope_scaling": None},
      "rope_type is missing, and transformers would",
    ),
    (
      GPT_OSS_20B,
      {"sliding_window": None},
      "sliding_window=null must be a whole number",
    ),
    (
      GPT_OSS_20B,
      {"num_local_experts": 2},
      "experts_per_token=4 must lie between 1 and",
    ),
    (
      GPT_OSS_20B,
      {"hidden_act": "gelu"},
      'hidden_act="gelu" is not computed here',
    ),
    (
      GPT_OSS_20B,
      {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 22},
      "full_attention at unequal distances",
    ),
    (
      QWEN3_5_TEXT,
      {"attn_output_gate": False},
      "attn_output_gate=false is not computed",
    ),
    (
      QWEN3_5_TEXT,
      {"output_gate_type": "sigmoid"},
      'output_gate_type="sigmoid" is not',
    ),
    (
      QWEN3_5_TEXT,
      {"norm_topk_prob": False},
      "norm_topk_prob=false is not computed",
    ),
    (
      QWEN3_5_TEXT,
      {"layer_types": ["linear_attention"] * 40},
      "full_attention_interval=0 of",
    ),
    (
      QWEN3_5_TEXT,
      {"layer_types": ["full_attention"] * 40},
      "full_attention_interval=0 of",
    ),
    (
      QWEN3_5_TEXT,
      {"layer_types": ["chunked_attention"] * 40},
      "full_attention and linear_a",
    ),
    (
      QWEN3_5_TEXT,
      {"layer_types": None, "full_attention_interval": 41},
      "interval=41 of num",
    ),
    (
      QWEN3_5_TEXT,
      {"linear_num_value_heads": 24},
      "delta_heads=24 a multiple of",
    ),
    (
      QWEN3_5_TEXT,
      {"shared_expert_intermediate_size": 700},
      "a multiple of moe_intermedia",
    ),
    (
      QWEN3_5_35B_A3B,
      {"tie_word_embeddings": True},
      "true and in text_config false: leave",
    ),
    (
      GEMMA_4_TEXT,
      {"hidden_size_per_layer_input": None},
      "hidden_size_per_layer_input=null must be",
    ),
    (
      GEMMA_4_E2B,
      {"num_kv_shared_layers": -1},
      "num_kv_shared_layers=-1 must be",
    ),
    *(
      (
        GEMMA_4_E2B,
        {"num_kv_shared_layers": number},
        f"shared_kv_layers={number} must leave layers of each kind",
      )
      for number in (31, 35, 36)
    ),
    (
      GEMMA_4_E2B,
      {
        "enable_moe_block": True,
        "moe_intermediate_size": 2048,
        "num_experts": 8,
        "top_k_experts": 2,
      },
      "shared_kv_layers=20 .* goes without model.num_experts=8",
    ),
    (
      GEMMA_4_E2B,
      {"use_double_wide_mlp": None},
      "use_double_wide_mlp=null must be true or false",
    ),
    (
      GEMMA_4_E2B,
      {"vocab_size_per_layer_input": 262208},
      "vocab_size_per_layer_input=262208 is not computed here",
    ),
    (
      GEMMA_4_TEXT,
      {"enable_moe_block": True, "moe_intermediate_size": 1000},
      "intermediate_size=21504 is not computed here",
    ),
    (
      GEMMA_4_TEXT,
      {"use_bidirectional_attention": "all"},
      "bidirectional_attention=.all",
    ),
    (
      GEMMA_4_TEXT,
      {"rope_scaling": {"rope_type": "linear"}},
      "rope_scaling=.* is not",
    ),
    (
      GEMMA_4_TEXT,
      {"layer_types": ["sliding_attention"] * 60},
      "a last layer that sees all",
    ),
    (
      GEMMA_4_TEXT,
      {"attention_bias": True},
      "attention_bias=true is not computed",
    ),
    (GEMMA_4_TEXT, {"global_head_dim": 7}, "global_head_dim=7 must be even"),
    (GEMMA_4_TEXT, {"num_global_key_value_heads": 5}, "must be 0 or divide"),
    (
      GEMMA_4_TEXT,
      {"final_logit_softcapping": -1},
      "final_logit_softcapping=-1 must be",
    ),
    (
      GEMMA_4_TEXT,
      {"per_layer_config": GEMMA_4_BY_LAYER | {"0": {"head_dim": 64}}},
      "per_layer_config=.* is not computed here",
    ),
    (
      GEMMA_4_TEXT,
      {"per_layer_config": GEMMA_4_BY_LAYER, "global_head_dim": 256},
      "global_head_dim is 256 and in per_layer_config 512",
    ),
    (
      GEMMA_4_TEXT,
      {
        "rope_parameters": {
          "full_attention": {"rope_type": "linear", "factor": 2.0}
        }
      },
      'rope_type="linear" is not computed here for this model_type',
    ),
    (
      QWEN3_8B,
      {
        "rope_scaling": {
          "rope_type": "proportional",
          "partial_rotary_factor": 0.5,
        }
      },
      "proportional. is not computed",
    ),
    (MISTRAL, {"sliding_window": False}, "sliding_window=false must be"),
    (
      MISTRAL,
      {"layer_types": ["full_attention"] * 16},
      "leave layer_types out",
    ),
    (
      _without(GLM_4_7_FLASH, "first_k_dense_replace"),
      {"mlp_layer_types": ["sparse", "dense", *["sparse"] * 45]},
      'the first have to be "dense"',
    ),
    (LLAMA_3_2_1B, {"attention_bias": True}, "attention_bias"),
    (LLAMA_3_2_1B, {"mlp_bias": True}, "mlp_bias"),
  )
  def test_refuses(self, base, changes, message):
    with self.assertRaisesRegex(ConfigError, message):
      to_model_config(base | changes)

  def test_latents_of_transformers_5(self):
    """Queries without a rank; sizes of heads that it adds; a list of MLPs."""
    described = _without(GLM_4_7_FLASH, "first_k_dense_replace") | {
      "q_lora_rank": None,
      "head_dim": 64,
      "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 45,
    }
    wanted = dataclasses.replace(
      preset("glm-4.7-flash"), query_rank=0, dense_layers=2
    )
    self.assertEqual(to_model_config(described), wanted)
    written = from_model_config(wanted, context=64, dtype="bfloat16")
    self.assertEqual(to_model_config(written), wanted)

  def test_what_glm_4_5_has_without_keys(self):
    """As in transformers' class, and an export says all of it again."""
    described = {
      key: value
      for key, value in GLM_4_5_AIR.items()
      if not key.startswith(("n_shared", "n_group", "topk", "norm", "routed"))
      and key not in ("partial_rotary_factor", "use_qk_norm")
      and key not in ("first_k_dense_replace", "attention_bias")
    }
    wanted = dataclasses.replace(preset("glm-4.5-air"), qkv_bias=False)
    self.assertEqual(to_model_config(described), wanted)
    described = from_model_config(wanted, context=64, dtype="bfloat16")
    self.assertEqual(to_model_config(described), wanted)
    self.assertEqual(described["num_nextn_predict_layers"], 0)

  def test_windows_as_transformers_5_writes_them(self):
    described = {
      key: value
      for key, value in GEMMA_3_1B.items()
      if not key.startswith(("rope", "sliding_window_pattern"))
    }
    described["rope_parameters"] = {
      "full_attention": {"rope_type": "default", "rope_theta": 1e6},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    described["layer_types"] = (
      ["sliding_attention"] * 5 + ["full_attention"]
    ) * 4 + ["sliding_attention"] * 2
    self.assertEqual(to_model_config(described), preset("gemma-3-1b"))
    few = described | {"num_hidden_layers": 3, "layer_types": ["x"] * 3}
    for kinds, fields in (
      ("sss", {"window": 512, "window_period": 0}),
      ("ssf", {"window": 512, "window_period": 3}),
      ("sfs", {"window": 512, "window_period": 2}),
      ("fff", {"window": 0, "window_period": 0, "local_rope_theta": 0.0}),
    ):
      names = {"s": "sliding_attention", "f": "full_attention"}
      few["layer_types"] = [names[kind] for kind in kinds]
      found = vars(to_model_config(few))
      self.assertEqual({key: found[key] for key in fields}, fields)

  def test_mistral_has_a_window_in_every_layer(self):
    for keys, window in (({}, 4096), ({"sliding_window": 9}, 9)):
      config = to_model_config(MISTRAL | keys)
      self.assertEqual((config.window, config.window_period), (window, 0))
      again = from_model_config(config, context=8, dtype="float32")
      self.assertEqual(again["model_type"], "mistral")
      self.assertNotIn("layer_types", again)  # which transformers refuses
    config = to_model_config(MISTRAL | {"sliding_window": None})
    self.assertEqual(config.window, 0)
    self.assertEqual(
      from_model_config(config, context=8, dtype="float32")["model_type"],
      "llama",
    )

  def test_gpt_oss_without_windows(self):
    layers = {"layer_types": ["full_attention"] * 24}
    read = to_model_config(GPT_OSS_20B | layers)
    self.assertEqual((read.window, read.window_period), (0, 0))
    written = from_model_config(read, context=8192, dtype="bfloat16")
    self.assertEqual(written["layer_types"], layers["layer_types"])

  @parameterized.parameters(
    b"",
    b"{",
    b"[]",
    b"3",
    b"null",
    b'"qwen3"',
    b"\xef\xbb\xbf{}",  # a byte order mark
    b"\xff\xfe{\x00}\x00",
    b'{"model_type": ["qwen3"]}',
    b'{"model_type": {"a": 1}}',
    b"[" * 100_000,
    b'{"vocab_size": ' + b"9" * 5000 + b"}",
  )
  def test_a_file_that_is_no_config(self, contents):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "config.json"
      path.write_bytes(contents)
      with self.assertRaisesRegex(ConfigError, str(path)):
        read_model(folder)

  @parameterized.parameters(*PUBLISHED)
  def test_a_key_that_is_missing_has_the_default_of_transformers(
    self, name, described
  ):
    for key in set(described) & set(_FIELDS):
      rest = _without(described, key)
      with self.subTest(key):
        if key not in _DEFAULTS or (key, name) in _REQUIRED:
          with self.assertRaisesRegex(ConfigError, key):
            to_model_config(rest)
          continue
        default = _DEFAULTS[key]
        if key == "head_dim" and name == "llama-3.2-1b":
          default = 64  # width / heads
        if key == "num_key_value_heads":
          default = described["num_attention_heads"]
        expected = vars(preset(name)) | {_FIELDS[key]: default}
        self.assertEqual(vars(to_model_config(rest)), expected)

  @settings(max_examples=80, deadline=None)
  @given(strategies.data())
  def test_any_value_of_a_key_is_read_or_refused(self, data):
    described = _changed(data)
    try:
      found = to_model_config(described)
    except ConfigError as error:
      self.assertGreater(len(str(error)), 20)
      return
    for key, value in described.items():
      if key in _FIELDS and value is not None:
        self.assertEqual(getattr(found, _FIELDS[key]), value, key)
        self.assertIs(type(getattr(found, _FIELDS[key])), _type_of(key))
    self._check_rope(described, found)
    self.assertFalse(described.get("use_sliding_window"))
    self.assertFalse(described.get("quantization_config"))

  def _check_rope(self, described, found):
    rope = {
      key: value
      for place in ("rope_scaling", "rope_parameters")
      for key, value in (described.get(place) or {}).items()
      if value is not None
    }
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    self.assertEqual(found.rope_type, kind)
    stretched = kind != "default" and rope["factor"] != 1
    self.assertEqual(found.rope_factor != 1, stretched)
    for key, value in rope.items():
      if not key.startswith("mscale"):
        self.assertEqual(getattr(found, _ROPE_FIELDS[key]), value, key)

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

  @parameterized.parameters('"x"', "-1", "1.5", "true", "NaN", "[]")
  def test_a_context_that_is_no_number(self, value):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "config.json"
      path.write_text(f'{{"max_position_embeddings": {value}}}')
      with self.assertRaisesRegex(ConfigError, f"{path}: max_position_emb"):
        longest_context(path.parent)
      path.write_text('{"max_position_embeddings": null}')
      self.assertIsNone(longest_context(path.parent))

  def test_a_folder_without_a_config(self):
    with (
      tempfile.TemporaryDirectory() as folder,
      self.assertRaisesRegex(ConfigError, f"pretrained.path={folder} can"),
    ):
      read_model(folder)
