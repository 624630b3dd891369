"""Checks of a section of the config.

Everything is checked before anything is compiled. A key that would change
nothing under the other keys is refused, with the reason: a config that says
more than its run does is worse than a run that does not start.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.train import custom
from agentrl_jax.train.custom import CustomFunction, Role


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


class WithFunctions:
  """A section with keys that may name functions outside the package.

  `FUNCTIONS` maps each such key to its role and to the names that it may have
  beside `module:function`. The settings of the function stand under the key
  with `_settings` at its end.
  """

  SECTION: ClassVar[str]
  FUNCTIONS: ClassVar[Mapping[str, tuple[Role, Iterable[str]]]]
  _functions: ClassVar[Mapping[str, CustomFunction]]  # set on each instance

  def custom_function(self, key: str) -> CustomFunction | None:
    """Returns the function that a key names as module:function, else None."""
    return self._functions.get(key)

  def _check_functions(self) -> None:
    """Finds the functions and makes their settings hashable."""
    functions = {}
    for name, (role, options) in self.FUNCTIONS.items():
      key, target = f"{self.SECTION}.{name}", getattr(self, name)
      settings = custom.require_settings(
        key, target, getattr(self, f"{name}_settings"), options
      )
      object.__setattr__(self, f"{name}_settings", settings)
      if custom.is_custom(target):
        functions[name] = custom.find_custom(key, target, role, settings)
    object.__setattr__(self, "_functions", functions)
