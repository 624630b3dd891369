"""Budget of a sweep: cores, memory and time, as written on the command line."""

import dataclasses
import os
import re
from typing import Self

from agentrl_jax.errors import ConfigError

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(cores?|GiB|GB|min|h)")
_UNITS = {
  "core": ("cores", 1.0),
  "cores": ("cores", 1.0),
  "GiB": ("memory_gib", 1.0),
  "GB": ("memory_gib", 1e9 / 2**30),
  "h": ("hours", 1.0),
  "min": ("hours", 1 / 60),
}
_EXAMPLE = "write it as in --budget=2cores,16GiB,6.5h"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
  """Upper bounds of all cells together."""

  cores: int
  memory_gib: float = float("inf")
  hours: float = float("inf")  # from the start of the command

  @classmethod
  def parse(cls, text: str) -> Self:
    """Reads "2cores,16GiB,6h"; "" is all cores of this machine."""
    there = len(os.sched_getaffinity(0))
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
      match = _PART.fullmatch(part.strip())
      if match is None:
        raise ConfigError(f"--budget={text}: {part!r} is no amount; {_EXAMPLE}")
      number, unit = float(match[1]), match[2]
      if not number:
        raise ConfigError(f"--budget={text}: {part!r} is nothing; {_EXAMPLE}")
      name, per_unit = _UNITS[unit]
      if name in found:
        raise ConfigError(
          f"--budget={text}: {part!r} is a second amount of "
          f"{name.partition('_')[0]}, and each may be given once; {_EXAMPLE}"
        )
      found[name] = number * per_unit
    cores = found.pop("cores", there)
    if cores != int(cores) or cores > there:
      raise ConfigError(
        f"--budget={text}: cores must be a whole number up to {there}, which "
        "this process may use"
      )
    return cls(cores=int(cores), **found)
