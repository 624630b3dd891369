"""Reads single settings of a config.json, and refuses what is none."""

import json
import reprlib
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError

_LARGEST = 2**31 - 1  # of sizes: axes of arrays are counted in 32 bits


def read_size(described: Mapping[str, Any], key: str, least: int = 1) -> int:
  """Reads a whole number, by default above 0. Raises `ConfigError`."""
  value = described.get(key)
  if (
    not isinstance(value, int)
    or isinstance(value, bool)
    or not least <= value <= _LARGEST
  ):
    raise ConfigError(
      f"{key}={brief(value)} must be a whole number from {least} to "
      f"{_LARGEST}: correct the file"
    )
  return value


def read_number(
  described: Mapping[str, Any], key: str, most: float = float(_LARGEST)
) -> float:
  """Reads a number above 0. Raises `ConfigError`."""
  value = described.get(key)
  if (
    not isinstance(value, int | float)
    or isinstance(value, bool)
    or not 0 < value <= most
  ):
    raise ConfigError(
      f"{key}={brief(value)} must be a number above 0, of at most {most:g}: "
      "correct the file"
    )
  return float(value)


def read_flag(
  described: Mapping[str, Any],
  key: str,
  *,
  absent: bool = False,
  null: bool | None = None,
) -> bool:
  """Reads a boolean; None for `null` refuses it."""
  value = described.get(key, absent)
  if value is None and null is not None:
    return null
  if not isinstance(value, bool):
    raise ConfigError(
      f"{key}={brief(value)} must be true or false: correct the file"
    )
  return value


def is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
  """Says if a value is one of those, by type too: 0 equals False."""
  return any(type(value) is type(one) and value == one for one in allowed)


def brief(value: Any, longest: int = 60) -> str:
  """Writes a value as JSON does, cut to what a sentence can hold."""
  is_nested = isinstance(value, dict | list | tuple)
  text = reprlib.repr(value) if is_nested else json.dumps(value, default=repr)
  return text if len(text) <= longest else f"{text[: longest - 3]}..."
