"""Reads gated delta layers from config.json, and writes them.

Those of Qwen3-Next and Qwen3.5, of which every few layers attend.
"""

from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.config import DELTA, ModelConfig
from agentrl_jax.model.hugging_face.positions import GLOBAL, period_of
from agentrl_jax.model.hugging_face.settings import brief, read_size

_RECURRENT = "linear_attention"
_SIZES = {
  "linear_num_value_heads": "delta_heads",
  "linear_num_key_heads": "delta_key_heads",
  "linear_key_head_dim": "delta_key_dim",
  "linear_value_head_dim": "delta_value_dim",
  "linear_conv_kernel_dim": "delta_taps",
}
_INTERVAL = "full_attention_interval"
# What transformers takes for these models where a key is missing.
DEFAULTS = {
  "linear_num_value_heads": 32,
  "linear_num_key_heads": 16,
  "linear_key_head_dim": 128,
  "linear_value_head_dim": 128,
  "linear_conv_kernel_dim": 4,
  _INTERVAL: 4,
}
# What these models may say only so.
ONLY = {
  "attn_output_gate": (True, None),
  "output_gate_type": ("silu", "swish", None),  # one function
  "mamba_ssm_dtype": ("float32", None),
}


def read_delta(described: Mapping[str, Any]) -> dict[str, int]:
  """Reads fields of `ModelConfig`. Raises `ConfigError`."""
  found = {field: read_size(described, key) for key, field in _SIZES.items()}
  return found | {"delta_period": _period(described)}


def _period(described: Mapping[str, Any]) -> int:
  num_layers = read_size(described, "num_hidden_layers")
  kinds, period = described.get("layer_types"), read_size(described, _INTERVAL)
  if kinds is not None:
    if (
      not isinstance(kinds, list)
      or len(kinds) != num_layers
      or any(kind not in (GLOBAL, _RECURRENT) for kind in kinds)
    ):
      raise ConfigError(
        f"layer_types has {brief(kinds)}; computed here are {GLOBAL} and "
        f"{_RECURRENT}, one of them for each of num_hidden_layers={num_layers}"
        ". Start from a model that has no other"
      )
    period = period_of([kind == _RECURRENT for kind in kinds]) or 0
  if not 2 <= period <= num_layers:
    raise ConfigError(
      f"{_INTERVAL}={period} of num_hidden_layers={num_layers} is not computed "
      "here: some layers have to attend and others not. Start from such a model"
    )
  return period


def write_delta(config: ModelConfig) -> dict[str, Any]:
  """Writes what `read_delta` reads; nothing for models without such layers."""
  if not config.delta_heads:
    return {}
  found = {key: getattr(config, field) for key, field in _SIZES.items()}
  return found | {
    _INTERVAL: config.delta_period,
    "layer_types": [
      _RECURRENT if stack == DELTA else GLOBAL for stack in config.layer_stacks
    ],
  }
