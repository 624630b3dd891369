"""Checks of a section of the config.

Everything is checked before anything is compiled. A key that would change
nothing under the other keys is refused, with the reason: a config that says
more than its run does is worse than a run that does not start.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.keys import Section
from agentrl_jax.train import custom
from agentrl_jax.train.custom import CustomFunction, FunctionRole


def require_one_of(key: str, name: str, options: Iterable[str]) -> None:
  """Raises `ConfigError` with the key and its options."""
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

  `idle` is the value that it may have all the same; `why` completes the
  message "means nothing".
  """
  if value != idle and not is_read:
    raise ConfigError(
      f"{key}={value} means nothing {why}; set --config.{key}={idle}"
    )


@dataclasses.dataclass(frozen=True)
class Setting:
  """A number that a built-in function takes; a whole one if its default is."""

  default: float
  allows: Callable[[float], bool]
  rule: str  # completes "must be"

  def require(self, key: str, value: object) -> None:
    """Raises `ConfigError` for what is no such number."""
    kinds = (int,) if isinstance(self.default, int) else (int, float)
    if type(value) not in kinds or not self.allows(value):  # type: ignore[arg-type]
      raise ConfigError(f"{key}={value!r:.80} must be {self.rule}")


class WithFunctions(Section):
  """A section with keys that name functions, built-in ones or module:function.

  `FUNCTIONS` maps each such key to its role. The settings of the function stand
  under the key with `_settings` at its end; `SETTINGS` has those of built-in
  functions, by key and name.
  """

  FUNCTIONS: ClassVar[Mapping[str, FunctionRole]]
  SETTINGS: ClassVar[Mapping[str, Mapping[str, Mapping[str, Setting]]]]
  _functions: ClassVar[Mapping[str, CustomFunction]]  # set on each instance

  def custom_function(self, key: str) -> CustomFunction | None:
    """Returns the function that a key names as module:function, else None."""
    return self._functions.get(key)

  def __post_init__(self) -> None:
    """Finds the functions and makes their settings hashable."""
    super().__post_init__()
    functions = {}
    for name, role in self.FUNCTIONS.items():
      key, target = f"{self.SECTION}.{name}", getattr(self, name)
      given = getattr(self, f"{name}_settings")
      settings: Mapping[str, Any] = custom.freeze(f"{key}_settings", given)
      if custom.is_custom(target):
        functions[name] = custom.find_custom(key, target, role, settings)
      else:
        known = self.SETTINGS.get(name, {}).get(target, {})
        settings = _of_builtin(key, target, settings, known)
      object.__setattr__(self, f"{name}_settings", settings)
    object.__setattr__(self, "_functions", functions)


def _of_builtin(
  key: str, name: str, given: Mapping[str, Any], known: Mapping[str, Setting]
) -> Mapping[str, Any]:
  """Returns the settings of a built-in function, with their defaults."""
  if unknown := [setting for setting in given if setting not in known]:
    takes = f"takes {', '.join(known)}" if known else "takes no settings"
    raise ConfigError(
      f"{key}_settings: {', '.join(unknown)} means nothing for {key}={name!r}, "
      f"which {takes}; set --config.{key}_settings={{}}"
    )
  for setting, about in known.items():
    value = given.get(setting, about.default)
    about.require(f"{key}_settings: {setting}", value)
  defaults = {setting: about.default for setting, about in known.items()}
  settings: Mapping[str, Any] = custom.freeze(key, defaults | dict(given))
  return settings
