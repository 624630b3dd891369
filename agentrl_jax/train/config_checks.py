"""Refusals that sections of the config share, in the words of the command line.

A section checks itself with these when it is made, before anything is compiled.
"""

from collections.abc import Iterable

from agentrl_jax.errors import ConfigError, suggestion


def require_one_of(key: str, name: str, options: Iterable[str]) -> None:
  """Raises `ConfigError` naming the key and what it may be."""
  options = list(options)
  if name not in options:
    near = suggestion(str(name), options)
    raise ConfigError(
      f"{key}={name!r} is not one of {', '.join(options)}{near}. "
      f"Set it with --config.{key}=<name>."
    )


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
