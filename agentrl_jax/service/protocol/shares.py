"""Chooses one of several servers that do the same, by hash.

Each key goes to the same server as long as that is there, and equally many keys
to each (rendezvous hashing: a server that leaves moves its own keys alone).
"""

import hashlib
import math
import time
from collections.abc import Callable, Sequence

_FIRST_AWAY_S, _MOST_AWAY_S = 1.0, 30.0


class Shares:
  """Shares keys among the servers at some addresses."""

  def __init__(
    self, addresses: Sequence[str], clock: Callable[[], float] = time.monotonic
  ):
    self.addresses = tuple(addresses)
    self._clock = clock
    self._back_at: dict[str, float] = {}
    self._away_s: dict[str, float] = {}

  @property
  def is_one(self) -> bool:
    """True if there is nothing to choose."""
    return len(self.addresses) == 1

  def choose(self, key: str, skipped: int = 0) -> str:
    """Returns the address to ask, or after `skipped` others the next.

    Those that were lost are left out for a while, if others are there.
    """
    now = self._clock()
    here = [x for x in self.addresses if self._back_at.get(x, now) <= now]
    if not here:
      return min(self.addresses, key=self._back_at.__getitem__)

    def rank(address: str) -> bytes:
      return hashlib.sha256(f"{address} {key}".encode()).digest()

    return sorted(here, key=rank)[skipped % len(here)]

  def lose(self, address: str) -> None:
    """Leaves it out for a second, and for twice as long each time again."""
    if self._back_at.get(address, -math.inf) > self._clock():
      return  # many requests lose it at once
    away_s = self._away_s.get(address, _FIRST_AWAY_S / 2)
    self._away_s[address] = away_s = min(2 * away_s, _MOST_AWAY_S)
    self._back_at[address] = self._clock() + away_s

  def find(self, address: str) -> None:
    """Notes that it has answered."""
    self._away_s.pop(address, None)
    self._back_at.pop(address, None)
