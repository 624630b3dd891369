"""Converts between Hugging Face's `config.json` and `ModelConfig`.

Those of `FAMILIES` are read. A setting that the decoder does not compute is
refused by its key, never ignored: a model that runs and computes something else
is worse than none.
"""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.hugging_face_files import base_of, read_object
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.families.delta import (
  read_delta,
  write_delta,
)
from agentrl_jax.model.hugging_face.families.family import (
  FAMILIES,
  TRAITS,
  Family,
)
from agentrl_jax.model.hugging_face.families.gemma4 import (
  read_experts,
  read_gemma4,
  write_gemma4,
)
from agentrl_jax.model.hugging_face.families.latent import (
  read_dense_layers,
  read_latents,
  write_latents,
)
from agentrl_jax.model.hugging_face.mxfp4 import is_mxfp4
from agentrl_jax.model.hugging_face.positions import (
  GLOBAL,
  OF_WINDOWS,
  read_rope,
  read_rotary,
  read_stretch,
  read_windows,
  with_flat_rope,
  write_stretch,
  write_windows,
)
from agentrl_jax.model.hugging_face.settings import (
  brief,
  is_one_of,
  read_flag,
  read_number,
  read_size,
)

CONFIG_FILE = "config.json"

_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
# Classes that have a key/value head per head where their number is missing.
_MULTI_HEAD = ("LlamaForCausalLM", "Olmo2ForCausalLM")

_PARTLY_ROTARY = [n for n, f in FAMILIES.items() if f.default_rotary_share != 1]

# Families with a sparse indexer, and those without one that are most like them.
_SPARSE = {"deepseek_v32": "deepseek_v3", "glm_moe_dsa": "glm4_moe_lite"}
# What else can be done about a key of another value.
_OTHERWISE = {
  "quantization_config": ", or cast the weights to bfloat16 and take the key "
  "out (for blocks of fp8, DeepSeek's inference/fp8_cast_bf16.py does it)"
}

# What config.json may say only so, by key: anything else is another function.
_ONLY: dict[str, tuple[Any, ...]] = {
  "use_sliding_window": (False, None),
  "mlp_bias": (False, None),
  "quantization_config": (None,),
  "swiglu_alpha": (1.702, None),
  "decoder_sparse_step": (1, None),
  "mlp_only_layers": ([], None),
  "attn_logit_softcapping": (None,),
  "final_logit_softcapping": (None,),
  "use_bidirectional_attention": (False, None),
  # Code of the folder's own in place of transformers'.
  "auto_map": (None,),
}


def read_model(folder: str | pathlib.Path) -> tuple[ModelConfig, str]:
  """Reads the architecture and family from a folder's config.json.

  Of a folder of adapters it is that of their base. Raises `ConfigError` if
  there is none, or one of another kind of model.
  """
  path = base_of(pathlib.Path(folder)) / CONFIG_FILE
  if not path.is_file():
    raise ConfigError(
      f"pretrained.path={folder} cannot be read: there is no {path}. It must "
      "be a local folder with config.json, *.safetensors and tokenizer.json; "
      "give pretrained.path its new place if it has moved"
    )
  described = read_object(path)
  try:
    return to_model_config(described), text_part(described)["model_type"]
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def longest_context(folder: pathlib.Path) -> int | None:
  """Reads the tokens of context that a folder's model is made for, if it says.

  yarn extends it: published folders keep max_position_embeddings as it was.
  Raises `ConfigError` for what is no number.
  """
  path, key = base_of(folder) / CONFIG_FILE, "max_position_embeddings"
  described = text_part(read_object(path))
  try:
    if described.get(key) is None:
      return None
    context, rope = read_size(described, key), read_rope(described)
    if rope.get("rope_type") != "yarn":
      return context
    fields = read_stretch(rope)
    extended = fields["rope_factor"] * fields["rope_original_context"]
    return max(context, int(extended))
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def to_model_config(described: Mapping[str, Any]) -> ModelConfig:
  """Converts the contents of a config.json to a `ModelConfig`.

  Raises `ConfigError` for settings that the decoder does not compute, by key,
  and for values that transformers would not read as they are meant.
  """
  described = text_part(described)
  name = described.get("model_type")
  if not isinstance(name, str) or name not in FAMILIES:
    if like := _SPARSE.get(str(name)):
      raise ConfigError(
        f"model_type={brief(name)} is not computed here: an indexer chooses "
        f"the tokens that each sees. {like} has the same attention without it"
      )
    raise ConfigError(
      f"model_type={brief(name)} is not one of {', '.join(FAMILIES)}: the "
      "decoder does not compute it. Start from a model of these families, or "
      "add it (docs/models.md)."
    )
  family = FAMILIES[name]
  # Noted by whoever wants to know which keys are read.
  has_kinds = family.window_period is not None
  absent = family.defaults.get("rope_parameters")
  flat = with_flat_rope(described, absent) if has_kinds else {}
  maps: Any = flat, described, family.defaults
  described = collections.ChainMap(*maps)
  _refuse(described, family)
  width = read_size(described, "hidden_size")
  num_heads = read_size(described, "num_attention_heads")
  config = ModelConfig(
    vocab_size=read_size(described, "vocab_size"),
    width=width,
    num_layers=read_size(described, "num_hidden_layers"),
    num_heads=num_heads,
    num_kv_heads=_kv_heads(described, family, num_heads),
    **_heads(described, family, width, num_heads),
    norm_epsilon=read_number(described, "rms_norm_eps", most=1.0),
    tied_embedding=read_flag(described, "tie_word_embeddings", absent=False),
    qkv_bias=read_flag(
      described, "attention_bias", absent=family.default_qkv_bias
    )
    if family.qkv_bias is None
    else family.qkv_bias,
    embedding_scale=width**0.5 if family.scaled_embedding else 1.0,
    **family.traits(),
    **(read_delta(described) if family.delta else {}),
    **read_windows(described, family.window_period, family.defaults),
    **_mlps(described, family),
    **_rotary(described, family),
  )
  if not family.value_norm:
    return config
  return dataclasses.replace(
    config, **read_gemma4(described, config.local_layers)
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
    "max_position_embeddings": context,
    "rms_norm_eps": config.norm_epsilon,
    "rope_theta": config.rope_theta,
    "tie_word_embeddings": config.tied_embedding,
    "torch_dtype": dtype,
    "pad_token_id": None,  # by default GLM-4's own, in any vocabulary
  }
  act = "hidden_act" if config.activation == "silu" else "hidden_activation"
  has_types = bool(FAMILIES[name].window_period)
  described |= (
    write_latents(config)
    | {act: _ACTIVATIONS[config.activation]}
    | write_windows(config, has_types=has_types)
    | write_delta(config)
  )
  if FAMILIES[name].default_rotary_share != 1:
    described["partial_rotary_factor"] = config.partial_rotary_factor
  if config.expert_bias:
    described |= {
      "num_local_experts": config.num_experts,
      "num_experts_per_tok": config.experts_per_token,
      "swiglu_limit": config.swiglu_limit,
    }
  elif config.num_experts:
    key = "n_routed_experts" if config.sigmoid_router else "num_experts"
    described |= {
      "moe_intermediate_size": config.mlp_width,
      key: config.num_experts,
      "num_experts_per_tok": config.experts_per_token,
      "norm_topk_prob": config.normed_experts,
    }
  if config.shared_gate:
    described[_SHARED] = config.shared_width
  if config.sigmoid_router:
    described |= {
      "use_qk_norm": config.qk_norm,
      PREDICTED_LAYERS: 0,
      "intermediate_size": config.dense_mlp_width or config.mlp_width,
      **{key: getattr(config, field) for key, field in _SIGMOID.items()},
      "routed_scaling_factor": config.expert_scale,
    }
  if name != "qwen2":
    described["attention_bias"] = config.qkv_bias
  if config.rope_type != "default" or config.expert_bias:
    described["rope_scaling"] = write_stretch(config)
  return write_gemma4(config, described)


def family_of(config: ModelConfig) -> str:
  """Returns the `model_type` that computes this architecture.

  Raises `ConfigError` if there is none.
  """
  is_scaled = config.embedding_scale != 1
  if is_scaled and config.embedding_scale != config.width**0.5:
    raise ConfigError(
      f"model.embedding_scale={config.embedding_scale} has no counterpart in "
      "Hugging Face's models of these families; it has to be 1, or the root of "
      "the width in Gemma's"
    )
  names = [
    name
    for name, family in FAMILIES.items()
    if all(getattr(config, key) == x for key, x in family.traits().items())
    and family.qkv_bias in (config.qkv_bias, None)
    and family.latents == bool(config.latent_dim)
    and family.experts in (bool(config.num_experts), None)
    and config.normed_branches
    == (family.experts is None and bool(config.num_experts))
    and family.fused_experts == config.expert_bias
    and family.delta == bool(config.delta_heads)
    and family.scaled_embedding == is_scaled
    and family.value_norm == bool(config.global_head_dim)
    and family.value_norm >= bool(config.layer_input_dim)
    and all(
      key in family.defaults or not getattr(config, field)
      for key, field in OF_WINDOWS.items()
    )
  ]
  if not names:
    names = [*TRAITS, "qkv_bias", "num_experts", "embedding_scale"]
    names += [*OF_WINDOWS.values(), "swiglu_limit", "delta_heads", "latent_dim"]
    listed = ", ".join(f"model.{n}={getattr(config, n)}" for n in names)
    raise ConfigError(
      f"{listed} together are no family of Hugging Face's; those known are "
      f"{', '.join(FAMILIES)}"
    )
  name = names[0]  # the first of those that compute the same
  is_whole = config.partial_rotary_factor == 1 or config.value_norm
  if not is_whole and name not in _PARTLY_ROTARY:
    raise ConfigError(
      f"model.partial_rotary_factor={config.partial_rotary_factor} is computed "
      f"by {' and '.join(_PARTLY_ROTARY)} alone, and this architecture is "
      f"{name}'s"
    )
  return name


def has_family(config: ModelConfig) -> bool:
  """Says if a family computes this architecture."""
  try:
    family_of(config)
  except ConfigError:
    return False
  return True


# Models of more than text, and the family of their text_config.
_WRAPPERS = {
  "gemma3": ("Gemma3ForConditionalGeneration", "gemma3_text"),
  "qwen3_5": ("Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
  "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"),
  "gemma4": ("Gemma4ForConditionalGeneration", "gemma4_text"),
}


def text_part(described: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the config of the text model, where one of more contains it."""
  wrapper = _WRAPPERS.get(str(described.get("model_type")))
  inner = described.get("text_config")
  if wrapper is None or not isinstance(inner, dict):
    return described
  architecture, family = wrapper
  names = described.get("architectures")
  if names not in (None, [architecture]):
    raise ConfigError(
      f"architectures={brief(names)} is not computed here; of this model_type "
      f'["{architecture}"] is, whose text model is read'
    )
  whole = {"architectures": [FAMILIES[family].architecture]}
  if "eos_token_id" in described:  # stands beside the text's config
    whole["eos_token_id"] = described["eos_token_id"]
  tied = "tie_word_embeddings"
  if tied in described:  # for the whole model, so that it counts
    if inner.get(tied, described[tied]) != described[tied]:
      raise ConfigError(
        f"{tied} is {brief(described[tied])} and in text_config "
        f"{brief(inner[tied])}: leave the wrong one out"
      )
    whole[tied] = described[tied]
  return {"model_type": family} | inner | whole


def _refuse(described: Mapping[str, Any], family: Family) -> None:
  only: dict[str, tuple[Any, ...]] = {key: (None,) for key in family.nulls}
  only |= family.only
  act = "hidden_act" if family.activation == "silu" else "hidden_activation"
  only[act] = (_ACTIVATIONS[family.activation],)
  if family.fused_experts and is_mxfp4(described):
    only["quantization_config"] = (described["quantization_config"],)
  for key, allowed in (_ONLY | family.only | only).items():
    absent = "absent" if key in family.nulls else next(iter(allowed), None)
    value = described.get(key, absent)
    if allowed and not is_one_of(value, allowed):
      raise ConfigError(
        f"{key}={brief(value)} is not computed here; what is, has "
        f"{key}={json.dumps(allowed[0])}. Start from a model that has"
        f"{_OTHERWISE.get(key, '')}"
      )
  has_bias = read_flag(
    described, "attention_bias", absent=family.o_bias, null=False
  )
  if has_bias != family.o_bias and family.qkv_bias is not None:
    # In these families the output projection has a bias as well.
    raise ConfigError(
      f"attention_bias={json.dumps(has_bias)} is not computed here for this "
      f"model_type; start from a model with {json.dumps(family.o_bias)}"
    )
  names = described.get("architectures")
  if names is not None and names != [family.architecture]:
    raise ConfigError(
      f"architectures={brief(names)} is not computed here; of this model_type "
      f'["{family.architecture}"] is, or no such key. Start from a model that '
      "predicts the next token"
    )
  layers = described.get("layer_types")
  if layers is not None and family.window_period is None and not family.delta:
    num_layers = read_size(described, "num_hidden_layers")
    if (
      not isinstance(layers, list)
      or len(layers) != num_layers
      or any(kind != GLOBAL for kind in layers)
    ):
      raise ConfigError(
        f"layer_types has {brief(layers)}; {GLOBAL} alone is computed here "
        f"for this model_type, once for each of num_hidden_layers={num_layers}"
        ". Start from a model that has no other"
      )


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# Layers after the last that predict further tokens, which nothing here does.
PREDICTED_LAYERS = "num_nextn_predict_layers"
# Counts of GLM-4.5's experts. In transformers absent ones are 1.
_SIGMOID = {
  "n_group": "expert_groups",
  "topk_group": "groups_per_token",
  "n_shared_experts": "shared_experts",
  "first_k_dense_replace": "dense_layers",
}


def _mlps(described: Mapping[str, Any], family: Family) -> dict[str, Any]:
  if not family.experts:
    one = _one_mlp if family.experts is False else read_experts
    return one(described)
  if family.fused_experts:
    return _fused_experts(described)
  if family.shared_gate:
    return _experts(described, _EXPERTS[:1], normed=True) | {
      "shared_experts": _shared_experts(described)
    }
  if not family.sigmoid_router:
    return _experts(described, _EXPERTS[:2], normed=False)
  key = "routed_scaling_factor"
  read = _experts(described, _EXPERTS[2:0:-1], normed=True) | {
    "qk_norm": read_flag(described, "use_qk_norm", absent=False),
    "expert_scale": read_number({key: 1.0} | dict(described), key),
    **{
      field: read_size({key: 1} | dict(described), key, least=0)
      for key, field in _SIGMOID.items()
    },
  }
  if "mlp_layer_types" in family.defaults:
    read["dense_layers"] = read_dense_layers(described)
  if read["dense_layers"]:
    read["dense_mlp_width"] = read_size(described, "intermediate_size")
  return read


_SHARED = "shared_expert_intermediate_size"


def _shared_experts(described: Mapping[str, Any]) -> int:
  """Reads how many experts the shared one is as wide as."""
  whole = read_size(described, _SHARED)
  each = read_size(described, "moe_intermediate_size")
  if whole % each:
    raise ConfigError(
      f"{_SHARED}={whole} is not computed here; what is, is a multiple of "
      f"moe_intermediate_size={each}. Start from a model that has one"
    )
  return whole // each


def _one_mlp(described: Mapping[str, Any]) -> dict[str, Any]:
  for key in _EXPERTS:
    if described.get(key):
      raise ConfigError(
        f"{key}={brief(described[key])} is not computed here for this "
        "model_type. Start from a model without experts, or of a model_type "
        f"with them: {', '.join(n for n, f in FAMILIES.items() if f.experts)}"
      )
  return {"mlp_width": read_size(described, "intermediate_size")}


def _experts(
  described: Mapping[str, Any], keys: Sequence[str], *, normed: bool
) -> dict[str, Any]:
  """Reads experts, whose number transformers 5 may call num_local_experts."""
  names = [key for key in keys if described.get(key) is not None]
  if len({json.dumps(described[key]) for key in names}) > 1:
    raise ConfigError(
      f"{' and '.join(names)} differ in one file: leave the wrong one out"
    )
  return {
    "mlp_width": read_size(described, "moe_intermediate_size"),
    "num_experts": read_size(described, names[0] if names else keys[0]),
    "experts_per_token": read_size(described, "num_experts_per_tok"),
    "normed_experts": read_flag(described, "norm_topk_prob", absent=normed),
  }


def _fused_experts(described: Mapping[str, Any]) -> dict[str, Any]:
  """Reads gpt-oss's experts, of which the chosen have softmax weights."""
  return {
    "mlp_width": read_size(described, "intermediate_size"),
    "num_experts": read_size(described, "num_local_experts"),
    "experts_per_token": read_size(described, "num_experts_per_tok"),
    "normed_experts": True,
    "swiglu_limit": read_number(described, "swiglu_limit"),
  }


def _kv_heads(
  described: Mapping[str, Any], family: Family, num_heads: int
) -> int:
  """Reads num_key_value_heads; null is as many as there are heads."""
  key = "num_key_value_heads"
  if key not in described and family.architecture not in _MULTI_HEAD:
    raise ConfigError(
      f"{key} is missing, and transformers would take a number that has "
      "nothing to do with this model: add it, or null for one per head"
    )
  if described.get(key) is None:
    return num_heads
  number = read_size(described, key)
  if num_heads % number:
    raise ConfigError(
      f"{key}={number} does not divide num_attention_heads={num_heads}: each "
      "key/value head serves the same number of heads. Correct the file"
    )
  return number


def _heads(
  described: Mapping[str, Any], family: Family, width: int, num_heads: int
) -> dict[str, Any]:
  """Reads the sizes of heads, and of latents that they are made of."""
  if family.latents:
    return read_latents(described)
  return {"head_dim": _head_dim(described, family, width, num_heads)}


def _head_dim(
  described: Mapping[str, Any], family: Family, width: int, num_heads: int
) -> int:
  """Reads head_dim; without it heads share the width, or have the default."""
  if described.get("head_dim") is not None:
    return read_size(described, "head_dim")
  if family.default_head_dim is not None:
    if "head_dim" not in described:
      return family.default_head_dim
    raise ConfigError(
      "head_dim=null is read in different ways for this model_type: give the "
      f"number of channels of a head, or leave the key out, which is "
      f"{family.default_head_dim}"
    )
  if width % num_heads:
    raise ConfigError(
      f"head_dim is missing, and num_attention_heads={num_heads} does not "
      f"divide hidden_size={width}: add head_dim"
    )
  return width // num_heads


def _rotary(described: Mapping[str, Any], family: Family) -> dict[str, Any]:
  if family.fused_experts and "rope_type" not in read_rope(described):
    raise ConfigError(
      "rope_type is missing, and transformers would take yarn with a factor of "
      "32 for this model_type: add rope_scaling with a rope_type"
    )
  read = read_rotary(
    described, family.default_rotary_share, family.default_rope_theta
  )
  kind, kinds = read["rope_type"], ("proportional", "default")
  if kind not in kinds if family.value_norm else kind == kinds[0]:
    raise ConfigError(
      f"rope_type={brief(kind)} is not computed here for this model_type. Of "
      f"Gemma 4 {' and '.join(kinds)} are, and of others the first is not"
    )
  if kind == kinds[0]:
    return read
  if read["partial_rotary_factor"] != 1 and family.default_rotary_share == 1:
    raise ConfigError(
      f"partial_rotary_factor={read['partial_rotary_factor']} is computed "
      f"here for {' and '.join(_PARTLY_ROTARY)} alone; start from another model"
    )
  return read
