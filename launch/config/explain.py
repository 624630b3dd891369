"""Explanation of config keys: default, values, comment, and the key's class."""

import functools
import inspect
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from agentrl_jax.env.loading import find_class
from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import Key, Section, keys_of
from configs import base
from configs.base import SECTIONS, flat_keys, why_unknown
from launch.config.settings import PlaceSettings

_ROOT = pathlib.Path(base.__file__).parents[1]
_CLASSES: tuple[type[Section], ...] = (*SECTIONS, PlaceSettings)
_UNITS = {"_s": "seconds", "_mb": "megabytes", "_tokens": "tokens"}


def explain(key: str, config: ml_collections.ConfigDict) -> str:
  """Returns what is known of a config's key, or of all keys of a section.

  Raises `ConfigError` with similar names for a key that does not exist.
  """
  if key.startswith("environments"):
    config = _completed(config)
  if why := why_unknown(key, config):
    raise ConfigError(why)
  value: Any = config
  for word in key.split("."):
    value = value[word]
  if isinstance(value, ml_collections.ConfigDict) and len(value):
    return table(config, f"{key}.")
  defaults = dict(flat_keys(base.get_config()))
  default = defaults.get(key, value)
  lines = {
    "value": "" if value == default else repr(value),
    "default": repr(default),
    "unit": next((u for end, u in _UNITS.items() if key.endswith(end)), ""),
    "comment": _comment(key, config),
  }
  if known := _declared().get(_generic(key)):
    about, section = known
    path = pathlib.Path(inspect.getfile(section)).relative_to(_ROOT)
    lines |= {"values": about.allowed, "set in": f"{path}, {section.__name__}"}
  return "\n".join(
    [key, *(f"  {name:8}{text}" for name, text in lines.items() if text)]
  )


def table(config: ml_collections.ConfigDict, prefix: str = "") -> str:
  """Returns a line for each key below a prefix: key, value, comment.

  A `*` stands before a value that is not the default.
  """
  default = dict(flat_keys(base.get_config()))
  rows = [
    (
      key,
      f"{'* ' * (value != default.get(key, value))}{value!r:.30}",
      _comment(key, config).partition(". ")[0],
    )
    for key, value in flat_keys(config)
    if key.startswith(prefix)
  ]
  widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
  return "\n".join(
    f"{key:{widths[0]}}  {value:{widths[1]}}  {text}".rstrip()
    for key, value, text in rows
  )


def _completed(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns the config with every key that its environments' sections take."""
  full = config.copy_and_resolve_references()
  places = {
    name: about.default for name, about in keys_of(PlaceSettings).items()
  }
  for section in full.environments.values():
    make = find_class(section.target)
    known = inspect.signature(make).parameters.values()
    options = {p.name: p.default for p in known if p.default is not p.empty}
    mistakes = dict.fromkeys(make.mistakes, 0.0)
    section.options = options | section.options.to_dict()
    section.mistakes = mistakes | section.mistakes.to_dict()
    section.place = places | section.place.to_dict()
  return full


@functools.cache
def _declared() -> Mapping[str, tuple[Key, type[Section]]]:
  """Returns all declared keys, those of any environment's place included."""
  return {
    f"{section.SECTION}.{name}".lstrip("."): (about, section)
    for section in _CLASSES
    for name, about in keys_of(section).items()
  }


def _generic(key: str) -> str:
  """Returns the key that is declared, for an environment's place NAME's."""
  words = key.split(".")
  if words[0] == "environments" and words[2:3] == ["place"]:
    return ".".join(["environments.NAME", *words[2:]])
  return "tasks.weights" if words[:2] == ["tasks", "weights"] else key


def _comment(key: str, config: ml_collections.ConfigDict) -> str:
  if known := _declared().get(_generic(key)):
    return known[0].comment
  words = key.split(".")
  if words[0] == "environments" and words[-1] != "target":
    return f"see {config.environments[words[1]].target}"
  return ""
