"""Architectures of published models, by name.

Values are those of the `config.json` beside the published weights. With them a
run can be planned before any weights are present; weights bring their own
`config.json`, which must then agree.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.model.config import ModelConfig


def preset(name: str) -> ModelConfig:
  """Returns the architecture of a published model, such as "qwen2.5-14b".

  Raises `ConfigError` for a name that is not in `PRESETS`.
  """
  if name not in PRESETS:
    near = suggestion(name, PRESETS)
    raise ConfigError(
      f"model.name={name!r} is not one of {', '.join(PRESETS)}{near}. Name one "
      'of them, or leave it "" and set pretrained.path to a folder with a '
      "config.json"
    )
  return PRESETS[name]


def _model(
  width: int,
  num_layers: int,
  num_heads: int,
  mlp_width: int,
  *,
  kv_heads: int = 8,
  head_dim: int | None = None,
  tied: bool = False,
  **others: Any,
) -> ModelConfig:
  """Makes an architecture; heads share the width if they have no size."""
  return ModelConfig(
    width=width,
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=kv_heads,
    head_dim=head_dim or width // num_heads,
    mlp_width=mlp_width,
    tied_embedding=tied,
    **others,
  )


_qwen2_5 = functools.partial(
  _model, vocab_size=151_936, rope_theta=1e6, norm_epsilon=1e-6, qkv_bias=True
)
# Larger models pad the vocabulary further, so that it splits over more.
_wide_qwen2_5 = functools.partial(_qwen2_5, vocab_size=152_064)
_qwen3 = functools.partial(
  _model,
  vocab_size=151_936,
  head_dim=128,
  rope_theta=1e6,
  norm_epsilon=1e-6,
  qk_norm=True,
)
_qwen3_moe = functools.partial(
  _qwen3, kv_heads=4, num_experts=128, experts_per_token=8, normed_experts=True
)
_llama3 = functools.partial(
  _model, vocab_size=128_256, rope_theta=5e5, norm_epsilon=1e-5
)
# Llama 3.1 and later stretch the rotary wavelengths.
_llama3_1 = functools.partial(
  _llama3, rope_type="llama3", rope_original_context=8192
)
_mistral = functools.partial(_model, rope_theta=1e6, norm_epsilon=1e-5)
_tekken = functools.partial(_mistral, vocab_size=131_072, head_dim=128)


# The text models of April 2025; larger ones can see, and pad the vocabulary.
def _gemma3(width: int, *sizes: int, **others: Any) -> ModelConfig:
  return _model(
    width, *sizes, **_GEMMA3 | {"embedding_scale": width**0.5} | others
  )


_GEMMA3 = dict(
  vocab_size=262_144,
  head_dim=256,
  rope_theta=1e6,
  norm_epsilon=1e-6,
  window=512,
  window_period=6,
  local_rope_theta=1e4,
  query_pre_attn_scalar=256,
  qk_norm=True,
  zero_centered_norm=True,
  sandwich_norm=True,
  activation="gelu_tanh",
  tied=True,
)
_seeing_gemma3 = functools.partial(
  _gemma3, vocab_size=262_208, window=1024, rope_type="linear", rope_factor=8
)


# The models of April 2026; of those that see, the text model.
def _gemma4(width: int, *sizes: int, **others: Any) -> ModelConfig:
  return _model(
    width, *sizes, **_GEMMA4 | {"embedding_scale": width**0.5} | others
  )


_GEMMA4 = dict(
  vocab_size=262_144,
  head_dim=256,
  global_head_dim=512,
  rope_theta=1e6,
  rope_type="proportional",
  partial_rotary_factor=0.25,
  norm_epsilon=1e-6,
  window_period=6,
  local_rope_theta=1e4,
  query_pre_attn_scalar=1,
  qk_norm=True,
  value_norm=True,
  layer_scale=True,
  sandwich_norm=True,
  activation="gelu_tanh",
  logit_cap=30.0,
  tied=True,
)
_small_gemma4 = functools.partial(_gemma4, window=512, layer_input_dim=256)
_olmo2 = functools.partial(
  _model,
  vocab_size=100_352,
  rope_theta=5e5,
  norm_epsilon=1e-6,
  qk_norm=True,
  joint_qk_norm=True,
  pre_norm=False,
  sandwich_norm=True,
)
# The models of April 2025, with a norm on either side of each branch.
_glm4 = functools.partial(
  _model,
  vocab_size=151_552,
  kv_heads=2,
  head_dim=128,
  rope_theta=1e4,
  partial_rotary_factor=0.5,
  norm_epsilon=1e-5,
  sandwich_norm=True,
)
_glm4_5 = functools.partial(
  _model,
  vocab_size=151_552,
  head_dim=128,
  rope_theta=1e6,
  partial_rotary_factor=0.5,
  norm_epsilon=1e-5,
  qkv_bias=True,
  experts_per_token=8,
  normed_experts=True,
  sigmoid_router=True,
  shared_experts=1,
)
# GLM-4.6 is the same architecture.
_glm4_5_large = functools.partial(
  _glm4_5,
  num_experts=160,
  expert_scale=2.5,
  qk_norm=True,
  dense_layers=3,
  dense_mlp_width=12_288,
)
# Of every layer but the first ones, as `glm4_moe`'s.
_latent = functools.partial(
  _model,
  latent_dim=512,
  rotary_key_dim=64,
  normed_experts=True,
  sigmoid_router=True,
  shared_experts=1,
)
_gpt_oss = functools.partial(
  _model,
  vocab_size=201_088,
  head_dim=64,
  qkv_bias=True,
  o_bias=True,
  sinks=True,
  window=128,
  window_period=2,
  experts_per_token=4,
  normed_experts=True,
  swiglu_limit=7.0,
  norm_epsilon=1e-5,
  rope_theta=1.5e5,
  rope_type="yarn",
  rope_factor=32.0,
  rope_low_frequency=1.0,
  rope_high_frequency=32.0,
  rope_original_context=4096,
  rope_truncate=False,
  rope_attention_factor=0.1 * math.log(32) + 1,
)
# Layers that attend have heads of their own; all others these sizes.
_hybrid = functools.partial(
  _model,
  head_dim=256,
  rope_theta=1e7,
  partial_rotary_factor=0.25,
  norm_epsilon=1e-6,
  zero_centered_norm=True,
  qk_norm=True,
  attention_gate=True,
  delta_period=4,
  delta_heads=32,
  delta_key_heads=16,
  delta_key_dim=128,
  delta_value_dim=128,
  delta_taps=4,
)
_with_shared = functools.partial(
  _hybrid, kv_heads=2, normed_experts=True, shared_experts=1, shared_gate=True
)
_qwen3_5 = functools.partial(_hybrid, vocab_size=248_320, kv_heads=4)


PRESETS: Mapping[str, ModelConfig] = {
  "qwen2.5-0.5b": _qwen2_5(896, 24, 14, 4864, kv_heads=2, tied=True),
  "qwen2.5-1.5b": _qwen2_5(1536, 28, 12, 8960, kv_heads=2, tied=True),
  "qwen2.5-3b": _qwen2_5(2048, 36, 16, 11_008, kv_heads=2, tied=True),
  "qwen2.5-7b": _wide_qwen2_5(3584, 28, 28, 18_944, kv_heads=4),
  "qwen2.5-14b": _wide_qwen2_5(5120, 48, 40, 13_824, kv_heads=8),
  "qwen2.5-32b": _wide_qwen2_5(5120, 64, 40, 27_648, kv_heads=8),
  "qwen2.5-72b": _wide_qwen2_5(8192, 80, 64, 29_568, kv_heads=8),
  "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
  "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
  "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
  "qwen3-8b": _qwen3(4096, 36, 32, 12_288),
  "qwen3-14b": _qwen3(5120, 40, 40, 17_408),
  "qwen3-32b": _qwen3(5120, 64, 64, 25_600),
  "qwen3-30b-a3b": _qwen3_moe(2048, 48, 32, 768),
  "qwen3-235b-a22b": _qwen3_moe(4096, 94, 64, 1536),
  "llama-3-8b": _llama3(4096, 32, 32, 14_336),
  "llama-3-70b": _llama3(8192, 80, 64, 28_672),
  "llama-3.1-8b": _llama3_1(4096, 32, 32, 14_336, rope_factor=8),
  "llama-3.1-70b": _llama3_1(8192, 80, 64, 28_672, rope_factor=8),
  "llama-3.2-1b": _llama3_1(2048, 16, 32, 8192, rope_factor=32, tied=True),
  "llama-3.2-3b": _llama3_1(3072, 28, 24, 8192, rope_factor=32, tied=True),
  "llama-3.3-70b": _llama3_1(8192, 80, 64, 28_672, rope_factor=8),
  "mistral-7b-v0.3": _mistral(4096, 32, 32, 14_336, vocab_size=32_768),
  "mistral-nemo-12b": _tekken(5120, 40, 32, 14_336),
  "mistral-small-24b": _tekken(5120, 40, 32, 32_768, rope_theta=1e8),
  "gemma-3-270m": _gemma3(640, 18, 4, 2048, kv_heads=1),
  "gemma-3-1b": _gemma3(1152, 26, 4, 6912, kv_heads=1),
  "gemma-3-4b": _seeing_gemma3(2560, 34, 8, 10_240, kv_heads=4),
  "gemma-3-12b": _seeing_gemma3(3840, 48, 16, 15_360),
  "gemma-3-27b": _seeing_gemma3(
    5376, 62, 32, 21_504, kv_heads=16, head_dim=128, query_pre_attn_scalar=168
  ),
  "gemma-4-e2b": _small_gemma4(
    1536,
    35,
    8,
    6144,
    kv_heads=1,
    window_period=5,
    shared_kv_layers=20,
    double_wide_mlp=True,
  ),
  "gemma-4-e4b": _small_gemma4(
    2560, 42, 8, 10_240, kv_heads=2, shared_kv_layers=18
  ),
  "gemma-4-31b": _gemma4(
    5376,
    60,
    32,
    21_504,
    kv_heads=16,
    global_kv_heads=4,
    keys_as_values=True,
    window=1024,
  ),
  "gemma-4-26b-a4b": _gemma4(
    2816,
    30,
    16,
    704,
    global_kv_heads=2,
    keys_as_values=True,
    window=1024,
    num_experts=128,
    experts_per_token=8,
    normed_experts=True,
    shared_experts=3,
    normed_branches=True,
  ),
  "olmo-2-1b": _olmo2(2048, 16, 16, 8192, kv_heads=16),
  "olmo-2-7b": _olmo2(4096, 32, 32, 11_008, kv_heads=32),
  "olmo-2-13b": _olmo2(5120, 40, 40, 13_824, kv_heads=40),
  "olmo-2-32b": _olmo2(5120, 64, 40, 27_648),
  "glm-4-9b-0414": _glm4(4096, 40, 32, 13_696, qkv_bias=True),
  "glm-4-32b-0414": _glm4(6144, 61, 48, 23_040, qkv_bias=False),
  "glm-4.5-air": _glm4_5(
    4096, 46, 96, 1408, num_experts=128, dense_layers=1, dense_mlp_width=10_944
  ),
  "glm-4.5": _glm4_5_large(5120, 92, 96, 1536),
  "glm-4.6": _glm4_5_large(5120, 92, 96, 1536),
  "qwen3-next-80b-a3b": _with_shared(
    2048,
    48,
    16,
    512,
    vocab_size=151_936,
    delta_by_head=True,
    num_experts=512,
    experts_per_token=10,
  ),
  "qwen3.5-27b": _qwen3_5(5120, 64, 24, 17_408, delta_heads=48),
  "qwen3.5-35b-a3b": _with_shared(
    2048, 40, 16, 512, vocab_size=248_320, num_experts=256, experts_per_token=8
  ),
  "glm-4.7-flash": _latent(
    2048,
    47,
    20,
    1536,
    kv_heads=20,
    vocab_size=154_880,
    head_dim=256,
    query_rank=768,
    value_dim=256,
    num_experts=64,
    experts_per_token=4,
    expert_scale=1.8,
    dense_layers=1,
    dense_mlp_width=10_240,
    rope_theta=1e6,
    norm_epsilon=1e-5,
  ),
  # V3.1 is the same architecture, and so is R1.
  "deepseek-v3": _latent(
    7168,
    61,
    128,
    2048,
    kv_heads=128,
    vocab_size=129_280,
    head_dim=192,
    query_rank=1536,
    value_dim=128,
    num_experts=256,
    experts_per_token=8,
    expert_groups=8,
    groups_per_token=4,
    expert_scale=2.5,
    dense_layers=3,
    dense_mlp_width=18_432,
    rope_theta=1e4,
    rope_type="yarn",
    rope_factor=40.0,
    rope_low_frequency=1.0,
    rope_high_frequency=32.0,
    rope_original_context=4096,
    rope_mscale=1.0,
    norm_epsilon=1e-6,
  ),
  "gpt-oss-20b": _gpt_oss(2880, 24, 64, 2880, num_experts=32),
  "gpt-oss-120b": _gpt_oss(2880, 36, 64, 2880, num_experts=128),
}
