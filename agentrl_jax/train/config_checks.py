"""Refusals that sections of the config share, in the words of the command line.

A section checks itself with these when it is made, before anything is compiled.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.train.custom import (
  CustomFunction,
  Role,
  find_custom,
  freeze,
  is_custom,
)


def require_one_of(key: str, name: str, options: Iterable[str]) -> None:
  """Raises `ConfigError` naming the key and what it may be."""
  options = list(options)
  if name not in options:
    near = suggestion(str(name), options)
    raise ConfigError(
      f"{key}={name!r} is not one of {', '.join(options)}{near}. "
      f"Set it with --config.{key}=<name>."
    )


class WithFunctions:
  """A section with keys that may name functions outside the package.

  `FUNCTIONS` gives each such key's role and the names it may have beside
  `module:function`; the key's settings stand under its name and `_settings`.
  """

  SECTION: ClassVar[str]
  FUNCTIONS: ClassVar[Mapping[str, tuple[Role, Iterable[str]]]]

  def custom_function(self, name: str) -> CustomFunction | None:
    """The function outside the package that a key names, if it names one."""
    target = getattr(self, name)
    if not is_custom(target):
      return None
    role, _ = self.FUNCTIONS[name]
    settings = getattr(self, f"{name}_settings")
    return find_custom(f"{self.SECTION}.{name}", target, role, settings)

  def _check_functions(self) -> None:
    """Raises `ConfigError` unless all fit; makes their settings hashable."""
    for name, (role, options) in self.FUNCTIONS.items():
      settings = f"{name}_settings"
      frozen = _require_function(
        f"{self.SECTION}.{name}",
        getattr(self, name),
        options,
        role,
        getattr(self, settings),
      )
      object.__setattr__(self, settings, frozen)


def _require_function(
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
