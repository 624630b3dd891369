"""Loads an environment from the name of its class, as configs have it.

There is no registry: `module:Class` names the code, and options are the class's
own keyword arguments, checked before anything starts.
"""

import ast
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import ConfigError
from agentrl_jax.named_objects import import_module_of, require_fitting


def load_environment(
  target: str, options: Mapping[str, Any] | None = None
) -> Environment:
  """Makes the environment `module:Class` with `options`."""
  make = find_class(target)
  options = options or {}
  _require_fitting(target, make, options)
  return make(**options)


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
  """Parses `key=value` words; values are Python literals or text."""
  options: dict[str, Any] = {}
  for pair in pairs:
    key, equals, text = pair.partition("=")
    if not equals or not key.isidentifier():
      raise ConfigError(
        f"option {pair!r} is not of the form key=value, as in num_rounds=15"
      )
    if key in options:
      raise ConfigError(f"option {key} is given twice")
    options[key] = _read_literal(text)
  return options


def _read_literal(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def find_class(target: str) -> type[Environment]:
  """Returns the class `module:Class`; raises `ConfigError` without one."""
  module, class_name = import_module_of(
    target,
    kind="environment",
    form="module:Class",
    example="environments.arithmetic.environment:Arithmetic",
  )
  loaded = getattr(module, class_name, None)
  if inspect.isclass(loaded) and issubclass(loaded, Environment):
    return loaded
  known = [
    name
    for name, value in vars(module).items()
    if inspect.isclass(value)
    and issubclass(value, Environment)
    and not inspect.isabstract(value)
  ]
  raise ConfigError(
    f"{target!r}: {module.__name__} has no Environment {class_name!r}; "
    f"it has {', '.join(known) or 'none'}"
  )


def _require_fitting(
  target: str, make: type[Environment], options: Mapping[str, Any]
) -> None:
  if inspect.isabstract(make):
    missing = ", ".join(sorted(make.__abstractmethods__))
    raise ConfigError(f"{target!r} is abstract: it does not define {missing}")
  require_fitting(target, make, options)
