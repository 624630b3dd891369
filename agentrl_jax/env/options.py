"""Checks of options, for messages that are alike everywhere."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from agentrl_jax.errors import ConfigError

E = TypeVar("E")


def require_positive(**options: float) -> None:
  """Raises `ConfigError` for the first option that is no number above 0."""
  for key, value in options.items():
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
      raise ConfigError(f"{key}={value!r} must be above 0, and finite")


def require_types(options: Any) -> None:
  """Raises `ConfigError` for the first field of options of another type.

  Numbers must be above 0, or the default.
  """
  for field in dataclasses.fields(options):
    value, name = getattr(options, field.name), field.name
    if field.type in (int, float):
      if value != field.default:
        require_positive(**{name: value})
      if field.type is int and not isinstance(value, int):
        raise ConfigError(f"{name}={value!r} must be a whole number")
    elif field.type in (bool, str) and not isinstance(value, field.type):
      raise ConfigError(f"{name}={value!r} must be a {field.type.__name__}")


def require_one_of(allowed: Collection[str], **options: str) -> None:
  """Raises `ConfigError` for the first option that is not an allowed value."""
  for key, value in options.items():
    if value not in allowed:
      raise ConfigError(f"{key}={value!r} is not one of {', '.join(allowed)}")


def require_some_of(allowed: Collection[str], **options: Sequence[str]) -> None:
  """Raises `ConfigError` for the first option that is not some of `allowed`."""
  for key, value in options.items():
    if isinstance(value, str) or not value or set(value) - set(allowed):
      raise ConfigError(
        f"{key}={value!r}; allowed is a list of one or more of "
        f"{', '.join(allowed)}"
      )


def require_bounds(
  *, least: int, most: int, **options: tuple[int, int]
) -> None:
  """Raises `ConfigError` for the first pair (low, high) outside the limits."""
  for key, value in options.items():
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    if not is_pair or not least <= value[0] <= value[1] <= most:
      raise ConfigError(
        f"{key}={value!r}; allowed is a pair (low, high) with {least} <= low "
        f"<= high <= {most}"
      )


def require_file(path: pathlib.Path, option: str, wanted: str) -> None:
  """Raises `ConfigError` unless the path that an option gives is a file.

  Args:
    option: owner and name, such as "DBBench's source".
    wanted: a description of the file.
  """
  if not path.is_file():
    raise ConfigError(
      f"{option} is {str(path)!r}, which is not a file; give the path of "
      f"{wanted}"
    )


def engine_of(engine: str | E, makers: Mapping[str, Callable[[], E]]) -> E:
  """Makes the engine that is named; an engine that is given is returned.

  Raises `ConfigError` for a name that is not among `makers`.
  """
  if not isinstance(engine, str):
    return engine
  require_one_of(makers, engine=engine)
  return makers[engine]()
