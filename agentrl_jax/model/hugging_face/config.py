"""Converts between Hugging Face's `config.json` and `ModelConfig`.

Four families are read: `qwen2` (Qwen2.5), `qwen3`, `llama` (Llama 3) and `glm4`
(GLM-4-0414). A setting that the decoder does not compute is refused by its key,
never ignored: a model that runs and computes something else is worse than none.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.config import ModelConfig

CONFIG_FILE = "config.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """Properties of a `model_type` that its config.json does not contain."""

  architecture: str  # the class that transformers has for it
  default_head_dim: int | None = None  # None: width / heads
  qk_norm: bool = False
  qkv_bias: bool | None = False  # None: `attention_bias` says
  sandwich_norm: bool = False
  default_rotary_share: float = 1.0
  interleaved_rotary: bool = False  # channel 2i turns with channel 2i + 1
  fused_gate_up: bool = False  # one tensor, the gate's rows first


FAMILIES: Mapping[str, Family] = {
  "qwen2": Family(architecture="Qwen2ForCausalLM", qkv_bias=True),
  "qwen3": Family(
    architecture="Qwen3ForCausalLM", default_head_dim=128, qk_norm=True
  ),
  "llama": Family(architecture="LlamaForCausalLM"),
  "glm4": Family(
    architecture="Glm4ForCausalLM",
    default_head_dim=128,
    qkv_bias=None,
    sandwich_norm=True,
    default_rotary_share=0.5,
    interleaved_rotary=True,
    fused_gate_up=True,
  ),
}

# What config.json may say only so, by key: anything else is another function.
_ONLY: Mapping[str, tuple[Any, ...]] = {
  "hidden_act": ("silu",),
  "use_sliding_window": (False, None),
  "mlp_bias": (False, None),
  "quantization_config": (None,),
  "num_experts": (None, 0),
  "num_local_experts": (None, 0),
  "n_routed_experts": (None, 0),
}


def read_model(folder: str | pathlib.Path) -> tuple[ModelConfig, str]:
  """Reads the architecture and family from a folder's config.json.

  Raises `ConfigError` if there is none, or one of another kind of model.
  """
  path = pathlib.Path(folder) / CONFIG_FILE
  try:
    described = json.loads(path.read_text())
  except OSError as error:
    raise ConfigError(
      f"pretrained.path={folder} cannot be read: {error}. It must be a local "
      "folder with config.json, *.safetensors and tokenizer.json"
    ) from error
  except ValueError as error:
    raise ConfigError(f"{path} is not JSON: {error}") from error
  try:
    return to_model_config(described), described["model_type"]
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def to_model_config(described: Mapping[str, Any]) -> ModelConfig:
  """Converts a config.json to a `ModelConfig`.

  Raises `ConfigError` for settings that the decoder does not compute, by key.
  """
  name = described.get("model_type")
  if name not in FAMILIES:
    raise ConfigError(
      f"model_type={name!r} is not one of {', '.join(FAMILIES)}: the decoder "
      "does not compute it"
    )
  family = FAMILIES[name]
  _refuse(described, family)
  num_heads = _number(described, "num_attention_heads")
  kv_heads = described.get("num_key_value_heads")
  return ModelConfig(
    vocab_size=_number(described, "vocab_size"),
    width=_number(described, "hidden_size"),
    num_layers=_number(described, "num_hidden_layers"),
    num_heads=num_heads,
    num_kv_heads=num_heads if kv_heads is None else kv_heads,
    head_dim=described.get("head_dim")
    or family.default_head_dim
    or _number(described, "hidden_size") // num_heads,
    mlp_width=_number(described, "intermediate_size"),
    norm_epsilon=_number(described, "rms_norm_eps"),
    tied_embedding=described.get("tie_word_embeddings", False),
    qk_norm=family.qk_norm,
    qkv_bias=bool(described.get("attention_bias", True))
    if family.qkv_bias is None
    else family.qkv_bias,
    sandwich_norm=family.sandwich_norm,
    **_rotary(described, family),
  )


def from_model_config(
  config: ModelConfig, *, context: int, dtype: str
) -> dict[str, Any]:
  """Makes a config.json that transformers reads as this architecture.

  `context` is the number of tokens of the rows that the model was trained on.
  Raises `ConfigError` if no family computes the same.
  """
  name = family_of(config)
  described: dict[str, Any] = {
    "architectures": [FAMILIES[name].architecture],
    "model_type": name,
    "vocab_size": config.vocab_size,
    "hidden_size": config.width,
    "num_hidden_layers": config.num_layers,
    "num_attention_heads": config.num_heads,
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    "intermediate_size": config.mlp_width,
    "hidden_act": "silu",
    "max_position_embeddings": context,
    "rms_norm_eps": config.norm_epsilon,
    "rope_theta": config.rope_theta,
    "tie_word_embeddings": config.tied_embedding,
    "torch_dtype": dtype,
    "pad_token_id": None,  # by default GLM-4's own, in any vocabulary
  }
  if name == "glm4":
    described["partial_rotary_factor"] = config.partial_rotary_factor
  if name != "qwen2":
    described["attention_bias"] = config.qkv_bias
  if config.rope_factor != 1:
    described["rope_scaling"] = {
      "rope_type": "llama3",
      "factor": config.rope_factor,
      "low_freq_factor": config.rope_low_frequency,
      "high_freq_factor": config.rope_high_frequency,
      "original_max_position_embeddings": config.rope_original_context,
    }
  return described


def family_of(config: ModelConfig) -> str:
  """Returns the `model_type` that computes this architecture.

  Raises `ConfigError` if there is none.
  """
  if config.embedding_scale != 1:
    raise ConfigError(
      f"model.embedding_scale={config.embedding_scale} has no counterpart in "
      "Hugging Face's models of these families; it has to be 1"
    )
  traits = (config.qk_norm, config.qkv_bias, config.sandwich_norm)
  names = {
    (False, True, False): "qwen2",
    (True, False, False): "qwen3",
    (False, False, False): "llama",
    (False, True, True): "glm4",
    (False, False, True): "glm4",
  }
  if traits not in names:
    raise ConfigError(
      f"model.qk_norm={config.qk_norm}, model.qkv_bias={config.qkv_bias} and "
      f"model.sandwich_norm={config.sandwich_norm} together are no family of "
      f"Hugging Face's; those known are {', '.join(FAMILIES)}"
    )
  name = names[traits]
  if config.partial_rotary_factor != 1 and name != "glm4":
    raise ConfigError(
      f"model.partial_rotary_factor={config.partial_rotary_factor} is computed "
      f"by glm4 alone, and this architecture is {name}'s"
    )
  return name


def _refuse(described: Mapping[str, Any], family: Family) -> None:
  for key, allowed in _ONLY.items():
    if key in described and described[key] not in allowed:
      raise ConfigError(
        f"{key}={described[key]!r} is not computed here; what is, has "
        f"{key}={allowed[0]!r}"
      )
  if described.get("attention_bias") and family.qkv_bias is not None:
    # With it these two families put a bias on the output projection as well.
    raise ConfigError(
      "attention_bias=true is not computed here for this model_type"
    )
  kinds = set(described.get("layer_types") or ()) - {"full_attention"}
  if kinds:
    raise ConfigError(
      f"layer_types has {', '.join(sorted(kinds))}; full_attention alone is "
      "computed here"
    )


def _rotary(described: Mapping[str, Any], family: Family) -> dict[str, Any]:
  """Reads rotary settings in the form of transformers 4 and of 5."""
  rope = dict(described.get("rope_scaling") or {})
  rope |= described.get("rope_parameters") or {}
  found: dict[str, Any] = {
    "rope_theta": float(
      rope.pop("rope_theta", None) or described.get("rope_theta") or 1e4
    ),
    "partial_rotary_factor": float(
      rope.pop("partial_rotary_factor", None)
      or described.get("partial_rotary_factor")
      or family.default_rotary_share
    ),
  }
  if found["partial_rotary_factor"] != 1 and not family.interleaved_rotary:
    raise ConfigError(
      f"partial_rotary_factor={found['partial_rotary_factor']} is computed "
      "here for glm4 alone"
    )
  kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
  rope.pop("type", None)  # written beside `rope_type` by some
  if kind == "default":
    return found
  if kind != "llama3":
    raise ConfigError(
      f"rope_type={kind!r} is not computed here; default and llama3 are. Past "
      "the context that the model was trained on, other types change what it "
      "says; without them, delete rope_scaling from config.json and keep to "
      "that context"
    )
  return found | {
    "rope_factor": float(_number(rope, "factor")),
    "rope_low_frequency": float(_number(rope, "low_freq_factor")),
    "rope_high_frequency": float(_number(rope, "high_freq_factor")),
    "rope_original_context": int(
      _number(rope, "original_max_position_embeddings")
    ),
  }


def _number(described: Mapping[str, Any], key: str) -> Any:
  if not isinstance(described.get(key), int | float):
    raise ConfigError(f"{key}={described.get(key)!r} must be a number")
  return described[key]
