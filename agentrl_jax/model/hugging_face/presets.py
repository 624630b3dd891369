"""Architectures of published models, by name.

Values are those of the `config.json` beside the published weights. With them a
run can be planned before any weights are present; weights bring their own
`config.json`, which must then agree.
"""

from collections.abc import Mapping

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


def _qwen2_5(
  width: int,
  layers: int,
  heads: int,
  kv_heads: int,
  mlp_width: int,
  *,
  tied: bool = False,
) -> ModelConfig:
  """Larger models pad the vocabulary further, so that it splits over more."""
  return ModelConfig(
    vocab_size=151_936 if width < 3584 else 152_064,
    width=width,
    num_layers=layers,
    num_heads=heads,
    num_kv_heads=kv_heads,
    head_dim=width // heads,
    mlp_width=mlp_width,
    rope_theta=1e6,
    norm_epsilon=1e-6,
    tied_embedding=tied,
    qkv_bias=True,
  )


def _qwen3(
  width: int,
  layers: int,
  heads: int,
  mlp_width: int,
  *,
  tied: bool = False,
) -> ModelConfig:
  """Heads have 128 channels whatever the width."""
  return ModelConfig(
    vocab_size=151_936,
    width=width,
    num_layers=layers,
    num_heads=heads,
    num_kv_heads=8,
    head_dim=128,
    mlp_width=mlp_width,
    rope_theta=1e6,
    norm_epsilon=1e-6,
    tied_embedding=tied,
    qk_norm=True,
  )


def _llama3(
  width: int,
  layers: int,
  heads: int,
  mlp_width: int,
  *,
  rope_factor: float,
  tied: bool = False,
) -> ModelConfig:
  """Llama 3.1 and later stretch the rotary wavelengths, Llama 3 does not."""
  return ModelConfig(
    vocab_size=128_256,
    width=width,
    num_layers=layers,
    num_heads=heads,
    num_kv_heads=8,
    head_dim=width // heads,
    mlp_width=mlp_width,
    rope_theta=5e5,
    rope_factor=rope_factor,
    rope_original_context=8192 if rope_factor > 1 else 0,
    norm_epsilon=1e-5,
    tied_embedding=tied,
  )


def _glm4(
  width: int, layers: int, heads: int, mlp_width: int, *, bias: bool
) -> ModelConfig:
  """The models of April 2025, with a norm on either side of each branch."""
  return ModelConfig(
    vocab_size=151_552,
    width=width,
    num_layers=layers,
    num_heads=heads,
    num_kv_heads=2,
    head_dim=128,
    mlp_width=mlp_width,
    rope_theta=1e4,
    partial_rotary_factor=0.5,
    norm_epsilon=1e-5,
    tied_embedding=False,
    qkv_bias=bias,
    sandwich_norm=True,
  )


PRESETS: Mapping[str, ModelConfig] = {
  "qwen2.5-0.5b": _qwen2_5(896, 24, 14, 2, 4864, tied=True),
  "qwen2.5-1.5b": _qwen2_5(1536, 28, 12, 2, 8960, tied=True),
  "qwen2.5-3b": _qwen2_5(2048, 36, 16, 2, 11_008, tied=True),
  "qwen2.5-7b": _qwen2_5(3584, 28, 28, 4, 18_944),
  "qwen2.5-14b": _qwen2_5(5120, 48, 40, 8, 13_824),
  "qwen2.5-32b": _qwen2_5(5120, 64, 40, 8, 27_648),
  "qwen2.5-72b": _qwen2_5(8192, 80, 64, 8, 29_568),
  "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
  "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
  "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
  "qwen3-8b": _qwen3(4096, 36, 32, 12_288),
  "qwen3-14b": _qwen3(5120, 40, 40, 17_408),
  "qwen3-32b": _qwen3(5120, 64, 64, 25_600),
  "llama-3-8b": _llama3(4096, 32, 32, 14_336, rope_factor=1),
  "llama-3-70b": _llama3(8192, 80, 64, 28_672, rope_factor=1),
  "llama-3.1-8b": _llama3(4096, 32, 32, 14_336, rope_factor=8),
  "llama-3.1-70b": _llama3(8192, 80, 64, 28_672, rope_factor=8),
  "llama-3.2-1b": _llama3(2048, 16, 32, 8192, rope_factor=32, tied=True),
  "llama-3.2-3b": _llama3(3072, 28, 24, 8192, rope_factor=32, tied=True),
  "llama-3.3-70b": _llama3(8192, 80, 64, 28_672, rope_factor=8),
  "glm-4-9b-0414": _glm4(4096, 40, 32, 13_696, bias=True),
  "glm-4-32b-0414": _glm4(6144, 61, 48, 23_040, bias=False),
}
