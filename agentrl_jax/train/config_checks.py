"""Refusals that sections of the config share, in the words of the command line.

A section checks itself with these when it is made, before anything is compiled.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.train.custom import Role, find_custom, freeze, is_custom


def require_one_of(key: str, name: str, options: Iterable[str]) -> None:
  """Raises `ConfigError` naming the key and what it may be."""
  options = list(options)
  if name not in options:
    near = suggestion(str(name), options)
    raise ConfigError(
      f"{key}={name!r} is not one of {', '.join(options)}{near}. "
      f"Set it with --config.{key}=<name>."
    )


def require_function(
  key: str,
  name: str,
  options: Iterable[str],
  role: Role,
  settings: Mapping[str, Any],
) -> Mapping[str, Any]:
  """The settings, hashable, of one of the options or of `module:function`.

  Raises `ConfigError` for a name that is neither, for a function that does not
  fit its role or the settings, and for settings without a function to take
  them.
  """
  if not isinstance(settings, Mapping):
    raise ConfigError(
      f"{key}_settings={settings!r} must be a mapping of names to values, as "
      f"in --config.{key}_settings=\"{{'width': 0.2}}\""
    )
  frozen: Mapping[str, Any] = freeze(f"{key}_settings", settings)
  if is_custom(name):
    find_custom(key, name, role, frozen)
    return frozen
  options = list(options)
  if name not in options:
    near = suggestion(str(name), options)
    raise ConfigError(
      f"{key}={name!r} is not one of {', '.join(filter(None, options))}{near}, "
      f"nor module:function. Set it with --config.{key}=<name>."
    )
  require_read(
    f"{key}_settings",
    dict(settings),
    idle={},
    is_read=False,
    why=f"for {key}={name!r}, only for a function of your own",
  )
  return frozen


def require_read(
  key: str, value: object, *, idle: object, is_read: bool, why: str
) -> None:
  """Raises `ConfigError` if a key is set that nothing would read.

  `idle` is the value at which it may stand all the same, and `why` completes
  "means nothing".
  """
  if value != idle and not is_read:
    raise ConfigError(
      f"{key}={value} means nothing {why}; set --config.{key}={idle}"
    )
