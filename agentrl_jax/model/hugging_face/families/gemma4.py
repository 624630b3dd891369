"""Reads and writes what is Gemma 4's own in config.json.

Layers that see all tokens have heads of their own size, their own number of
keys, and their own rotation. Experts stand beside an MLP for all tokens. In
the small models the last layers share keys and values, and all read the token.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.positions import (
  GLOBAL,
  LOCAL,
  write_stretch,
)
from agentrl_jax.model.hugging_face.settings import (
  brief,
  read_flag,
  read_number,
  read_size,
)

# As published, and as transformers 5.24 writes them for each layer.
_HEADS = {
  "global_head_dim": "head_dim",
  "num_global_key_value_heads": "num_key_value_heads",
}
_BY_LAYER = "per_layer_config"
# Of the small models.
_SMALL = {
  "num_kv_shared_layers": "shared_kv_layers",
  "hidden_size_per_layer_input": "layer_input_dim",
  "use_double_wide_mlp": "double_wide_mlp",
  "vocab_size_per_layer_input": "vocab_size",
}
# Keys that stand elsewhere, or that this family does without.
_NOT_ITS = (
  "rope_theta",
  "rope_scaling",
  "rope_local_base_freq",
  "query_pre_attn_scalar",
)


def read_gemma4(
  described: Mapping[str, Any], is_local: Sequence[bool]
) -> dict[str, Any]:
  """Reads fields of `ModelConfig`; `is_local` says which layers see a window.

  Raises `ConfigError` for layers that differ in more than their kind.
  """
  same = read_flag(described, "attention_k_eq_v", absent=False)
  heads = _read_heads(described, is_local, same)
  # Without shared projections transformers passes over this number.
  kv_heads, cap = "num_global_key_value_heads", "final_logit_softcapping"
  is_given = same and heads.get(kv_heads) is not None
  is_capped = described.get(cap) is not None
  found = {
    "global_head_dim": read_size(heads, "global_head_dim"),
    "keys_as_values": same,
    "global_kv_heads": read_size(heads, kv_heads) if is_given else 0,
    "logit_cap": read_number(described, cap) if is_capped else 0.0,
  }
  sharing, inputs, wide, vocabulary = _SMALL
  shared, size = (read_size(described, k, least=0) for k in (sharing, inputs))
  is_wide = read_flag(described, wide, absent=False) and shared > 0
  number = described.get(vocabulary)
  if size and number != described["vocab_size"]:
    raise ConfigError(
      f"{vocabulary}={brief(number)} is not computed here; what is, has as "
      f"many tokens as vocab_size={described['vocab_size']}. Correct the file"
    )
  return found | {
    "shared_kv_layers": shared,
    "layer_input_dim": size,
    "double_wide_mlp": is_wide,
  }


def read_experts(described: Mapping[str, Any]) -> dict[str, Any]:
  """Reads the MLP of each layer, and the experts beside it, if there are any.

  Raises `ConfigError` if the MLP is not as wide as some of the experts.
  """
  width = read_size(described, "intermediate_size")
  if not read_flag(described, "enable_moe_block", absent=False):
    return {"mlp_width": width}
  each = read_size(described, "moe_intermediate_size")
  if width % each:
    raise ConfigError(
      f"intermediate_size={width} is not computed here; what is, is a multiple "
      f"of moe_intermediate_size={each}. Start from a model that has one"
    )
  return {
    "mlp_width": each,
    "num_experts": read_size(described, "num_experts"),
    "experts_per_token": read_size(described, "top_k_experts"),
    "normed_experts": True,
    "shared_experts": width // each,
    "normed_branches": True,
  }


def _read_heads(
  described: Mapping[str, Any], is_local: Sequence[bool], same: bool
) -> dict[str, Any]:
  """Returns sizes of the layers that see all tokens, as they are published."""
  found = {key: described[key] for key in _HEADS if key in described}
  layers = described.get(_BY_LAYER)
  if layers is None:
    return {"global_head_dim": 512} | found
  last = str(len(is_local) - 1)  # sees all tokens in every model
  own = layers.get(last) if isinstance(layers, dict) else None
  every = {str(n): own for n, local in enumerate(is_local) if not local}
  if not isinstance(own, dict) or (
    # Some programs write the layers' numbers with leading zeros.
    {key.lstrip("0"): x for key, x in layers.items()} != every
    or not set(own) <= set([*_HEADS.values()][: 1 + same])
  ):
    raise ConfigError(
      f"{_BY_LAYER}={brief(layers)} is not computed here; what is, has a "
      f"head_dim for each layer of {GLOBAL}, the same for all, and with "
      "attention_k_eq_v a num_key_value_heads. Start from a model that has"
    )
  inner = {ours: own[key] for ours, key in _HEADS.items() if key in own}
  for key, value in found.items():
    if value != inner.get(key, value):
      raise ConfigError(
        f"{key} is {brief(value)} and in {_BY_LAYER} {brief(inner[key])} in "
        "one file: leave the wrong one out"
      )
  return {"global_head_dim": described["head_dim"]} | inner


def write_gemma4(
  config: ModelConfig, described: dict[str, Any]
) -> dict[str, Any]:
  """Adds what `read_gemma4` reads, and the rotation of each kind.

  Other models are described as they were.
  """
  if not config.value_norm:
    return described
  others = {key: x for key, x in described.items() if key not in _NOT_ITS}
  turning = write_stretch(config) | {
    "rope_theta": config.rope_theta,
    "partial_rotary_factor": config.partial_rotary_factor,
  }
  if config.rope_factor == 1:
    turning.pop("factor", None)
  if config.num_experts:
    others |= {
      "intermediate_size": config.shared_width,
      "top_k_experts": config.experts_per_token,
    }
  return others | {
    "enable_moe_block": bool(config.num_experts),
    "global_head_dim": config.global_head_dim,
    "num_global_key_value_heads": config.global_kv_heads or None,
    "attention_k_eq_v": config.keys_as_values,
    "final_logit_softcapping": config.logit_cap or None,
    **{key: getattr(config, field) for key, field in _SMALL.items()},
    "rope_parameters": {
      GLOBAL: turning,
      LOCAL: {"rope_type": "default", "rope_theta": config.local_rope_theta},
    },
  }
