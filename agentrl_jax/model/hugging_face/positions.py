"""Reads what layers make of positions from config.json, and writes it.

That is how queries and keys rotate, and which layers see a window of tokens.

Every key is read or refused: one that is passed over is another model.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.settings import (
  brief,
  read_flag,
  read_number,
  read_size,
)

_KINDS = GLOBAL, LOCAL = "full_attention", "sliding_attention"
# Keys of families with windows, and the fields of `ModelConfig` that they are.
# A family without a default of a key does without it.
OF_WINDOWS = {
  "sliding_window": "window",
  "rope_local_base_freq": "local_rope_theta",
  "query_pre_attn_scalar": "query_pre_attn_scalar",
}
ROPE = ("rope_scaling", "rope_parameters")
_ORIGINAL = "original_max_position_embeddings"
# Keys of each type, and the fields of `ModelConfig` that they are.
_STRETCHES: Mapping[str, Mapping[str, str]] = {
  "default": {},
  "linear": {"factor": "rope_factor"},
  "llama3": {
    "factor": "rope_factor",
    "low_freq_factor": "rope_low_frequency",
    "high_freq_factor": "rope_high_frequency",
    _ORIGINAL: "rope_original_context",
  },
  "yarn": {
    "factor": "rope_factor",
    "beta_slow": "rope_low_frequency",
    "beta_fast": "rope_high_frequency",
    _ORIGINAL: "rope_original_context",
    "truncate": "rope_truncate",
    "attention_factor": "rope_attention_factor",
  },
  "proportional": {"factor": "rope_factor"},
}
# What these have without these keys.
_YARN = {"beta_slow": 1.0, "beta_fast": 32.0, "truncate": True}
_PROPORTIONAL = {"factor": 1.0}
_MSCALES = ("mscale", "mscale_all_dim")
# Which channels turn by a picture's rows and columns in models that see: those
# of a text's tokens have the same number as its place.
_OF_PICTURES = ("mrope_section", "mrope_interleaved")
_WITH_PICTURES = ("qwen3_5_text", "qwen3_5_moe_text")
_BY_LENGTH = (
  "it turns a token by the length of the whole sequence, so that one in the "
  "cache would have to be turned anew"
)
_REASONS = {"dynamic": _BY_LENGTH, "longrope": _BY_LENGTH}


def read_rotary(
  described: Mapping[str, Any], default_share: float, default_theta: float
) -> dict[str, Any]:
  """Reads rotary settings in the form of transformers 4 and of 5.

  The defaults, of the share of channels that turn and of the base, are for
  keys that are missing.
  """
  rope = read_rope(described)
  shares = {"partial_rotary_factor": default_share}
  found: dict[str, Any] = {
    key: read_number(rope, key) if key in rope else default
    for key, default in ({"rope_theta": default_theta} | shares).items()
  }
  # Where both say it, transformers takes the outer one.
  outer = described.get(_ORIGINAL)
  if outer is not None and rope.get("rope_type") in ("llama3", "yarn"):
    _add_setting(rope, _ORIGINAL, outer)
  return found | read_stretch(rope)


def read_stretch(rope: Mapping[str, Any]) -> dict[str, Any]:
  """Reads fields of `ModelConfig` from `rope_type` and the keys of that type.

  Raises `ConfigError` for other types, and for keys that are not read.
  """
  kind = rope.get("rope_type", "default")
  if not isinstance(kind, str) or kind not in _STRETCHES:
    reason = _REASONS.get(kind) if isinstance(kind, str) else None
    raise ConfigError(
      f"rope_type={brief(kind)} is not computed here"
      f"{f' ({reason})' if reason else ''}; {', '.join(_STRETCHES)} are. "
      "Past the context that the model was trained on, other types change what "
      "it says; without them, delete rope_scaling from config.json and keep to "
      "that context"
    )
  wanted = _STRETCHES[kind]
  read = {"rope_type", "rope_theta", "partial_rotary_factor", *wanted}
  read |= set(_MSCALES if kind == "yarn" else ())
  if unread := sorted(set(rope) - read):
    raise ConfigError(
      f"{' and '.join(ROPE)}: {', '.join(map(brief, unread))} means nothing "
      f"with rope_type={json.dumps(kind)} here; allowed are "
      f"{', '.join(sorted(read))}. Delete it if the model does without"
    )
  if kind == "yarn":
    rope = _YARN | {"attention_factor": _attention_factor(rope)} | dict(rope)
  elif kind == "proportional":
    rope = _PROPORTIONAL | dict(rope)
  readers = {_ORIGINAL: read_size, "truncate": read_flag}
  return {"rope_type": kind} | {
    field: readers.get(key, read_number)(rope, key)
    for key, field in wanted.items()
  }


def _attention_factor(rope: Mapping[str, Any]) -> float:
  """Reads yarn's factor of queries and keys, or computes its default."""
  if "attention_factor" in rope:
    return read_number(rope, "attention_factor")
  factor = read_number(rope, "factor")
  given = [key for key in _MSCALES if key in rope]
  if len(given) == 1:
    raise ConfigError(
      f"{given[0]} is given without {', '.join({*_MSCALES} - {*given})}, which "
      "programs read in different ways: give attention_factor in its place"
    )
  slopes = [read_number(rope, key) for key in given] or [1.0, 0.0]
  # A factor below 1 is refused with the other fields.
  log = math.log(max(factor, 1))
  above, below = (0.1 * slope * log + 1 for slope in slopes)
  return above / below


def read_rope(described: Mapping[str, Any]) -> dict[str, Any]:
  """Collects rotary settings from all their places; null is as absent.

  Raises `ConfigError` for places that disagree.
  """
  found: dict[str, Any] = {}
  sees = described.get("model_type") in _WITH_PICTURES
  top = {k: described.get(k) for k in ("rope_theta", "partial_rotary_factor")}
  for place in (top, *(described.get(key) for key in ROPE)):
    if place is None:
      continue
    if not isinstance(place, dict):
      raise ConfigError(
        f"{' or '.join(ROPE)}={brief(place)} must be an object with "
        "rope_type, or null: correct the file"
      )
    for key, value in place.items():
      if sees and key in _OF_PICTURES:
        continue
      name = "rope_type" if key == "type" else key  # as it was called before
      # For transformers yarn's `truncate` is true if absent, false if null.
      if value is not None or name == "truncate":
        _add_setting(found, name, value)
  return found


def _add_setting(found: dict[str, Any], name: str, value: Any) -> None:
  if name in found and found[name] != value:
    raise ConfigError(
      f"{name} is {brief(found[name])} and {brief(value)} in one file: "
      "leave the wrong one out"
    )
  found[name] = value


def write_stretch(config: ModelConfig) -> dict[str, Any]:
  """Writes `rope_type` and the keys of that type, as `read_stretch` reads."""
  mscale = {"mscale_all_dim": config.rope_mscale} if config.rope_mscale else {}
  return {"rope_type": config.rope_type, **mscale} | {
    key: getattr(config, field)
    for key, field in _STRETCHES[config.rope_type].items()
  }


def with_flat_rope(
  described: Mapping[str, Any], absent: Any = None
) -> dict[str, Any]:
  """Returns keys that take the place of rotary settings by kind of layer.

  That is how transformers 5 writes them; where there are none, the family may
  have settings that are meant by `absent`.
  """
  rope = described.get("rope_parameters") or absent
  if not isinstance(rope, dict) or not any(kind in rope for kind in _KINDS):
    return {}
  inner = {kind: rope.get(kind) or {} for kind in _KINDS}
  local = dict(inner[LOCAL])
  theta = local.pop("rope_theta", None)
  if set(rope) - {*_KINDS} or local not in ({}, {"rope_type": "default"}):
    raise ConfigError(
      f"rope_parameters={brief(rope)} is not computed here; what is, has "
      f"{' and '.join(_KINDS)}, of which the latter has rope_theta alone"
    )
  flat: dict[str, Any] = {"rope_parameters": inner[GLOBAL]}
  if theta is not None:
    outer = described.get("rope_local_base_freq", theta)
    if outer != theta:
      raise ConfigError(
        f"rope_theta of {LOCAL} is {brief(theta)} and rope_local_base_freq "
        f"is {brief(outer)} in one file: leave the wrong one out"
      )
    flat["rope_local_base_freq"] = theta
  return flat


def read_windows(
  described: Mapping[str, Any],
  default_period: int | None,
  defaults: Mapping[str, Any],
) -> dict[str, Any]:
  """Reads which layers see a window, and what else belongs to it.

  Where no key says otherwise every `default_period`-th layer sees all tokens,
  and with 0 none does; None is a family without windows. `defaults` has the
  keys of the family.
  """
  if default_period is None:
    return {}
  found: dict[str, Any] = {}
  if "query_pre_attn_scalar" in defaults:
    found["query_pre_attn_scalar"] = read_size(
      described, "query_pre_attn_scalar"
    )
  period = _window_period(described, default_period)
  if period is None:
    return found
  found |= {
    "window": read_size(described, "sliding_window"),
    "window_period": period,
  }
  if "rope_local_base_freq" in defaults:
    found["local_rope_theta"] = read_number(described, "rope_local_base_freq")
  return found


def _window_period(described: Mapping[str, Any], default: int) -> int | None:
  """Reads which layers see all tokens; None if all do."""
  num_layers = read_size(described, "num_hidden_layers")
  period: int | None = default
  if "sliding_window_pattern" in described:
    period = read_size(described, "sliding_window_pattern")
  elif not default and described.get("sliding_window") is None:
    period = None
  layers = described.get("layer_types")
  if layers is not None:
    if (
      not isinstance(layers, list)
      or len(layers) != num_layers
      or any(kind not in _KINDS for kind in layers)
    ):
      raise ConfigError(
        f"layer_types has {brief(layers)}; computed here are "
        f"{' and '.join(_KINDS)}, one of them for each of "
        f"num_hidden_layers={num_layers}. Start from a model that has no other"
      )
    listed = period_of([kind == LOCAL for kind in layers])
    if not default and listed != period:
      raise ConfigError(
        f"layer_types has {brief(layers)}, and for this model_type "
        f"sliding_window={brief(described.get('sliding_window'))} is of all "
        "layers: leave layer_types out"
      )
    period = listed
  if period == 1:
    return None
  return period if period and period <= num_layers else period and 0


def period_of(is_local: list[bool]) -> int | None:
  """Returns 0 if all layers are local, None if none is."""
  if all(is_local):
    return 0
  if not any(is_local):
    return None
  period = is_local.index(False) + 1
  if is_local != [(n + 1) % period > 0 for n in range(len(is_local))]:
    raise ConfigError(
      "layer_types has full_attention at unequal distances; equal ones, from "
      "the first layer on, are computed here. Start from a model that has them"
    )
  return period


def write_windows(config: ModelConfig, *, has_types: bool) -> dict[str, Any]:
  """Writes what `read_windows` reads; `has_types` says if by layer."""
  found = {key: getattr(config, field) for key, field in OF_WINDOWS.items()}
  found = {key: value for key, value in found.items() if value}
  if has_types:
    found["layer_types"] = [
      LOCAL if is_local else GLOBAL for is_local in config.local_layers
    ]
  return found
