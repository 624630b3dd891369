"""Objects outside the package that a config names as `module:name`.

There is no registry: the name says where the code is. Settings are keyword
arguments of what is named, checked against its signature before anything is
started.
"""

import importlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_jax.errors import ConfigError


def import_module_of(
  target: str, *, kind: str, form: str, example: str
) -> tuple[types.ModuleType, str]:
  """Imports the module of `module:name`; the module and the name.

  `kind` says in errors what is named, `form` and `example` how. Raises
  `ConfigError` if the target has another form or the module does not import.
  """
  module_name, colon, name = target.partition(":")
  if not colon or not module_name or not name:
    raise ConfigError(
      f"{kind} {target!r} is not of the form {form}, as in {example}"
    )
  try:
    return importlib.import_module(module_name), name
  except ModuleNotFoundError as error:
    missing = error.name or ""
    if f"{module_name}.".startswith(f"{missing}."):
      advice = "check the name, and that its folder's parent is on PYTHONPATH"
    else:
      advice = f"{module_name} needs it: install it (see its README)"
    raise ConfigError(
      f"{kind} {target!r}: there is no module {missing!r}; {advice}"
    ) from error


def require_fitting(
  target: str, make: Callable[..., Any], options: Mapping[str, Any]
) -> None:
  """Raises `ConfigError` unless `make(**options)` fits its signature."""
  signature = inspect.signature(make)
  try:
    signature.bind(**options)
  except TypeError as error:
    raise ConfigError(
      f"{target!r} cannot be made with options {dict(options)!r}: {error}; "
      f"it takes {signature}"
    ) from error
