"""Keys of the config: fields of dataclasses, each declared once.

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class QueueLimits(Section, section="queue"):
    max_groups: int = key(256, "groups that fit", at_least=1)

The class is a section of the config. Its fields with `key` are the keys: their
defaults, comments, ranges and choices. To make one checks every value; what a
key may be beside other keys, the class checks itself. Fields without `key` are
not in the config.
"""

import dataclasses
import functools
import typing
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from agentrl_jax.errors import ConfigError, suggestion

FUNCTION = "module:function"  # among choices: any function, by its name
_INT32 = 2**31 - 1  # counts and lengths become the devices' integers
_MOST = 1e12  # of other numbers: a bound that is never reached is finite
_LONGEST_WAIT = 1e9  # seconds, 31 years; threads wait no longer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
  """A key: its default and its type, or that of its elements."""

  default: Any
  comment: str
  one_of: tuple[str, ...]
  least: float
  most: float
  open_low: bool  # `least` itself is too low
  open_high: bool
  type: Any = None

  def why_not(self, value: Any) -> str:
    """Returns what the value must be; "" if it is."""
    if isinstance(self.default, tuple):
      is_list = isinstance(value, tuple | list)
      fits = is_list and all(map(self._has, value))
    else:
      fits = self._has(value)
    near = suggestion(value, self.one_of) if isinstance(value, str) else ""
    return "" if fits else f"must be {self.allowed}{near}"

  @property
  def allowed(self) -> str:
    """The values that the key may have, in words."""
    kind = (
      f"one of {', '.join(x or repr(x) for x in self.one_of)}"
      if self.one_of
      else self._kind
    )
    return f"a tuple, each {kind}" if isinstance(self.default, tuple) else kind

  @property
  def _kind(self) -> str:
    if self.type is bool:
      return "True or False"
    if self.type not in (int, float):
      return "a text" if self.type is str else "a mapping"
    noun = "a whole number" if self.type is int else "a number"
    low = "above" if self.open_low else "at least"
    high = "below" if self.open_high else "at most"
    return f"{noun}, {low} {self.least:g} and {high} {self.most:.10g}"

  def _has(self, value: Any) -> bool:
    if self.one_of:
      is_function = FUNCTION in self.one_of and ":" in str(value)
      return value in self.one_of or is_function
    if self.type not in (int, float):
      return isinstance(value, self.type)
    kinds = int if self.type is int else int | float
    if not isinstance(value, kinds) or isinstance(value, bool):
      return False
    above = self.least < value if self.open_low else self.least <= value
    return above and (
      value < self.most if self.open_high else value <= self.most
    )


def key(
  default: Any,
  comment: str,
  *,
  one_of: Iterable[str] = (),
  at_least: float = 0,
  at_most: float | None = None,
  above: float | None = None,
  below: float | None = None,
) -> Any:
  """Declares a field that is a key of the config.

  Without bounds numbers are at least 0. With `FUNCTION` among the choices, the
  name of a function is one, too.
  """
  first = default[0] if isinstance(default, tuple) and default else default
  most = _MOST if isinstance(first, float) else _INT32
  declared = Key(
    default=default,
    comment=comment,
    one_of=tuple(one_of),
    least=at_least if above is None else above,
    most=next((x for x in (below, at_most) if x is not None), most),
    open_low=above is not None,
    open_high=below is not None,
  )
  if isinstance(default, dict):
    return dataclasses.field(
      default_factory=lambda: dict(default), metadata={"key": declared}
    )
  return dataclasses.field(default=default, metadata={"key": declared})


def seconds(default: float, comment: str) -> Any:
  """Declares a key that is a time to wait."""
  return key(default, comment, above=0, at_most=_LONGEST_WAIT)


class Section:
  """A section of the config."""

  SECTION: ClassVar[str] = ""  # its name; "": its keys are in no section

  def __init_subclass__(cls, *, section: str = "") -> None:
    cls.SECTION = section or cls.SECTION

  def __post_init__(self) -> None:
    wrong = []
    for name, about in keys_of(type(self)).items():
      value = getattr(self, name)
      if why := about.why_not(value):
        path = f"{self.SECTION}.{name}".lstrip(".")
        wrong.append(
          f"{path}={value!r:.80} {why}. Set --config.{path}, whose default is "
          f"{about.default!r}"
        )
    if wrong:
      raise ConfigError("; ".join(wrong))


def keys_of(section: type[Section]) -> Mapping[str, Key]:
  """Returns the keys of a section by name, in the order of its class."""
  return _keys_of(typing.cast(Any, section))


@functools.cache
def _keys_of(section: Any) -> Mapping[str, Key]:
  hints = typing.get_type_hints(section)
  keys = {}
  for field in dataclasses.fields(section):
    if declared := field.metadata.get("key"):
      hint = hints[field.name]
      if isinstance(declared.default, tuple):
        hint = typing.get_args(hint)[0]
      kind = typing.get_origin(hint) or hint
      keys[field.name] = dataclasses.replace(declared, type=kind)
  return keys
