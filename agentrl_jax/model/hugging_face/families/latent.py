"""Attention by latents in config.json: DeepSeek-V3, GLM-4.7-Flash."""

from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.positions import read_rope
from agentrl_jax.model.hugging_face.settings import (
  brief,
  read_number,
  read_size,
)

_SIZES = {
  "kv_lora_rank": "latent_dim",
  "q_lora_rank": "query_rank",
  "qk_rope_head_dim": "rotary_key_dim",
  "v_head_dim": "value_dim",
}
_STILL = "qk_nope_head_dim"  # channels of a head that do not turn
_MSCALE = "mscale_all_dim"


def read_latents(described: Mapping[str, Any]) -> dict[str, Any]:
  """Reads the sizes of latents and heads. Raises `ConfigError`."""
  found: dict[str, Any] = {
    field: read_size(described, key)
    for key, field in _SIZES.items()
    # Without the key transformers has a rank of its own.
    if key != "q_lora_rank" or described.get(key, "absent") is not None
  }
  turning = found["rotary_key_dim"]
  if described.get("head_dim") not in (None, turning):
    raise ConfigError(
      f"head_dim={brief(described['head_dim'])} is not qk_rope_head_dim="
      f"{turning}, as which transformers reads it: take head_dim out"
    )
  found["head_dim"] = read_size(described, _STILL) + turning
  rope = read_rope(described)
  if _MSCALE in rope and rope.get("rope_type") == "yarn":
    found["rope_mscale"] = read_number(rope, _MSCALE)
  return found


def write_latents(config: ModelConfig) -> dict[str, Any]:
  """Writes what `read_latents` reads, but for the key of yarn.

  Nothing where there are no latents.
  """
  if not config.latent_dim:
    return {}
  sizes = {key: getattr(config, field) for key, field in _SIZES.items()}
  return sizes | {
    "head_dim": config.rotary_key_dim,  # as transformers has it
    "q_lora_rank": config.query_rank or None,
    _STILL: config.head_dim - config.rotary_key_dim,
  }


def read_dense_layers(described: Mapping[str, Any]) -> int:
  """Reads how many of the first layers have no experts, in GLM-4.7-Flash.

  transformers takes a list of all layers, and without it one. Raises
  `ConfigError` for other orders, and where first_k_dense_replace disagrees.
  """
  num_layers = read_size(described, "num_hidden_layers")
  kinds = described.get("mlp_layer_types") or ["dense"]
  number = kinds.count("dense") if isinstance(kinds, list) else -1
  listed = ["dense"] * number + ["sparse"] * (num_layers - number)
  first = described.get("first_k_dense_replace", number)
  if kinds not in (["dense"], listed) or first != number:
    raise ConfigError(
      f"mlp_layer_types={brief(described.get('mlp_layer_types'))} and "
      f"first_k_dense_replace={brief(first)}: of num_hidden_layers={num_layers}"
      ' the first have to be "dense" and the others "sparse", counted alike by '
      "both keys; without the list one layer is dense. Correct the file"
    )
  return number
