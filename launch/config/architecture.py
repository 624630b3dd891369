"""Reads the model of a config: its own keys, a published name, or a folder.

With `pretrained.path` the model is that of the folder's config.json, and
`model.name` may state the model that the folder must hold. Keys that are then
not read must keep their defaults.
"""

import dataclasses
import pathlib
import shlex
from collections.abc import Sequence

import ml_collections

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.config import read_model
from agentrl_jax.model.hugging_face.presets import preset
from configs import base

_LONGEST = 60  # characters of a value in a message
# Other numbers do not change the size of anything; those are the folder's.
_SHAPES = (
  "vocab_size",
  "width",
  "num_layers",
  "num_heads",
  "num_kv_heads",
  "head_dim",
  "mlp_width",
  "num_experts",
  "experts_per_token",
  "swiglu_limit",
  "sigmoid_router",
  "shared_experts",
  "dense_layers",
  "dense_mlp_width",
  "latent_dim",
  "query_rank",
  "rotary_key_dim",
  "value_dim",
  "tied_embedding",
  "qk_norm",
  "joint_qk_norm",
  "qkv_bias",
  "sinks",
  "attention_gate",
  "shared_gate",
  "delta_period",
  "delta_heads",
  "delta_key_heads",
  "delta_key_dim",
  "delta_value_dim",
  "delta_taps",
  "o_bias",
  "pre_norm",
  "sandwich_norm",
  "global_head_dim",
  "global_kv_heads",
  "keys_as_values",
  "normed_branches",
  "value_norm",
  "shared_kv_layers",
  "double_wide_mlp",
  "layer_input_dim",
  "layer_scale",
)


def read_architecture(config: ml_collections.ConfigDict) -> ModelConfig:
  """Reads the model. Raises `ConfigError` where its sources disagree."""
  keys = config.model.to_dict()
  name, path = keys.pop("name"), config.pretrained.path
  if not name and not path:
    vocab_size = config.tokenizer.vocab_size
    return ModelConfig(vocab_size=vocab_size, qk_norm=True, **keys)
  source = f"pretrained.path={path}" if path else f"model.name={name}"
  replaced = [("model", key) for key in keys if key != "value_head"]
  if path:
    replaced += [("tokenizer", key) for key in config.tokenizer]
    replaced += [("warm_start", "copy_gain")]  # of fresh params
  _refuse_idle(config, source, replaced)
  named = preset(name) if name else None
  if path:
    found, _ = read_model(pathlib.Path(path))
    if named is not None:
      _refuse_other(found, named, path, name)
  else:
    assert named is not None
    found = named
    _refuse_small(config, found, name)
  return dataclasses.replace(found, value_head=keys["value_head"])


def _refuse_idle(
  config: ml_collections.ConfigDict,
  source: str,
  keys: Sequence[tuple[str, str]],
) -> None:
  """Raises `ConfigError` naming all of these keys that are set."""
  idle = base.default_values()
  changed = {
    f"{section}.{key}": (config[section][key], idle[section][key])
    for section, key in keys
    if config[section][key] != idle[section][key]
  }
  if changed:
    found = ", ".join(
      f"{key}={_brief(value)}" for key, (value, _) in changed.items()
    )
    flags = " ".join(
      shlex.quote(f"--config.{key}={value}")
      for key, (_, value) in changed.items()
    )
    verb = "means" if len(changed) == 1 else "mean"
    raise ConfigError(
      f"{found} {verb} nothing where {source} says it; set {flags}, or begin "
      "with configs/finetune.py, which sets none of them"
    )


def _brief(value: object) -> str:
  text = str(value)
  return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _refuse_other(
  found: ModelConfig, named: ModelConfig, path: str, name: str
) -> None:
  differing = [
    f"{key} is {getattr(found, key)} there and {getattr(named, key)} in {name}"
    for key in _SHAPES
    if getattr(found, key) != getattr(named, key)
  ]
  if differing:
    raise ConfigError(
      f"pretrained.path={path} holds another model than model.name={name}: "
      f"{'; '.join(differing)}. Set --config.model.name= to take what is there"
    )


def _refuse_small(
  config: ml_collections.ConfigDict, model: ModelConfig, name: str
) -> None:
  if config.tokenizer.vocab_size > model.vocab_size:
    raise ConfigError(
      f"tokenizer.vocab_size={config.tokenizer.vocab_size} is above the "
      f"{model.vocab_size} tokens of model.name={name}"
    )
