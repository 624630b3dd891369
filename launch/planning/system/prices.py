"""Prices of chips by the hour, with their date and source.

Prices differ by region, contract and year: `--price` replaces them. Only chips
count; hosts come with them, and buckets, networks and the machines that
environments run on are left out.
"""

import math
from collections.abc import Mapping, Sequence

from agentrl_jax.errors import ConfigError
from launch.planning.chips import CHIPS, Slice

# US dollars for an hour of one chip, on demand, in us-central1.
LIST_PRICES: Mapping[str, float] = {"v5e": 1.20, "v5p": 4.20, "v6e": 2.70}
SOURCE = (
  "Google's list prices on demand, us-central1, from SkyPilot's catalog v8 "
  "(commit 006059e), read on 2026-11-23"
)
GIVEN = "--price"


class Prices:
  """Dollars for an hour of a chip, by the kind of the chip."""

  def __init__(self, changed: Mapping[str, float]):
    self._by_chip = {**LIST_PRICES, **changed}
    self._changed = frozenset(changed)

  def require(self, slices: Sequence[Slice]) -> None:
    """Raises `ConfigError` if the price of a slice's chip is not known."""
    for kind in dict.fromkeys(each.chip.name for each in slices):
      if kind not in self._by_chip:
        raise ConfigError(
          f"{kind} has no price here; there are those of "
          f"{', '.join(self._by_chip)}: add --price={kind}=DOLLARS, for an "
          "hour of a chip"
        )

  def per_hour(self, slices: Sequence[Slice]) -> float:
    """Returns dollars for an hour of all chips of the slices."""
    return math.fsum(
      self._by_chip[each.chip.name] * each.num_chips for each in slices
    )

  def source(self, slices: Sequence[Slice]) -> str:
    """Names the price of each kind of chip, and its source."""
    kinds = dict.fromkeys(each.chip.name for each in slices)
    named = ", ".join(f"{kind} ${self._by_chip[kind]:.2f}" for kind in kinds)
    sources = [GIVEN] if self._changed & set(kinds) else []
    sources += [SOURCE] if set(kinds) - self._changed else []
    return f"{named} per chip-hour: {'; '.join(sources)}"


def read_prices(given: Sequence[str]) -> Prices:
  """Reads the values of --price, such as v5p=4.2.

  Raises `ConfigError` for an unknown chip or a price that is no number.
  """
  changed: dict[str, float] = {}
  for text in given:
    kind, _, number = text.partition("=")
    if kind not in CHIPS:
      raise ConfigError(
        f"--price={text} names the chip {kind!r}; there are "
        f"{', '.join(CHIPS)}: write --price=v5p=4.2, in dollars for an hour of "
        "a chip"
      )
    if kind in changed:
      raise ConfigError(f"--price has {kind} twice: leave one of them out")
    changed[kind] = _positive(text, number)
  return Prices(changed)


def _positive(text: str, number: str) -> float:
  try:
    value = float(number)
  except ValueError:
    value = math.nan
  if not 0 < value < math.inf:
    raise ConfigError(
      f"--price={text} must end in dollars for an hour of a chip, a number "
      "above 0: write --price=v5p=4.2"
    )
  return value
