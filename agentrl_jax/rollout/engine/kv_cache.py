"""The keys and values of a policy slot's slots, and what moves them.

Seats are planned one by one and moved together: what is about to be overwritten
goes to the store, if there is one, then slots are copied over slots, then the
store's blocks go to theirs. Moves are launched, not waited for.
"""

import collections
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.block_pool import BlockPool
from agentrl_jax.rollout.engine.prefix_cache import Match, PrefixCache
from agentrl_jax.rollout.engine.slot_table import FROM_STORE, Allocation
from agentrl_jax.rollout.settings import EngineConfig

_STEPS_UNTIL_SHRINKING = 200
_logger = logging.getLogger(__name__)


class KVCacheManager:
  """Owns the cache; `arrays` is donated to whichever program runs next."""

  def __init__(
    self,
    policy: Policy,
    config: EngineConfig,
    num_slots: int,
    counts: collections.Counter[str],
    sharding: jax.sharding.Sharding | None = None,
  ):
    self._config, self._num_slots, self._counts = config, num_slots, counts
    self.length = config.length(1)  # of the cache now, in tokens
    self._roomy = 0  # steps since a shorter cache would not have done
    self.arrays = policy.empty_cache(num_slots, self.length)
    if sharding is not None:
      self.arrays = jax.device_put(self.arrays, sharding)
    self._copies: dict[int, Allocation] = {}  # by target slot
    self._filled: dict[int, int] = {}  # tokens from the store, by slot
    self._store = PrefixCache(config.block_size, *config.store_blocks)
    self._make_pool = functools.partial(
      BlockPool, policy, config.block_size, *config.store_blocks, sharding
    )
    self._pool = self._make_pool() if config.prefix_cache_tokens else None

  def forget(self) -> None:
    """Back to the length of a cache that holds nothing; the store is empty."""
    self._roomy = 0
    if self._pool is not None:
      self._empty_store()
    if self.length != self._config.length(1):
      self._resize(self._config.length(1))

  def set_weights(self, publication: int) -> None:
    """What was computed with other weights leaves the store."""
    self._store.set_weights(publication)
    if self._pool is not None and not self._try(self._pool.land):
      self._empty_store()

  def find(self, token: np.ndarray) -> Match:
    """What the store has of a prompt."""
    return Match() if self._pool is None else self._store.find(token)

  def has_to_move_first(
    self, seat: Allocation, match: Match, overwritten: np.ndarray
  ) -> bool:
    """Whether what is planned has to be moved before a seat can be planned."""
    if seat.source in self._copies or seat.source in self._filled:
      return True
    if self._pool is None or not self._store.has_moves:
      return False
    if seat.source != FROM_STORE:
      match = Match()
    return match.is_moving(self._store.batch) or not self._store.has_room(
      match, len(overwritten)
    )

  def plan(
    self, seat: Allocation, match: Match, overwritten: np.ndarray
  ) -> int:
    """Takes a seat up; how many tokens will be there once `move` has run.

    `overwritten` are the tokens of the slot that are of use to others.
    """
    reused = seat.reused
    if seat.source == FROM_STORE:
      reused = self._store.fetch(match, seat.slot)
      self._filled[seat.slot] = reused
    elif seat.reused and seat.source != seat.slot:
      self._copies[seat.slot] = seat
      self._counts["copied"] += reused
    if self._pool is not None and len(overwritten) >= self._config.worth:
      self._counts["stored"] += self._store.insert(overwritten, seat.slot)
    return reused

  def move(self, num_tokens: int) -> list[int]:
    """Moves what was planned, in a cache with room for `num_tokens` per slot.

    Returns the slots that do not get what the store was to fill them with: if
    a block cannot be moved, the store is emptied, and prompts are fed as if it
    had been.
    """
    length = self._config.length(num_tokens)
    if length > self.length:
      self._resize(length)
    lost: list[int] = []
    self._counts["evicted"] = self._store.num_evicted
    moves = self._store.take_moves()
    if self._pool is not None and not self._try(
      self._pool.move, moves, self.arrays
    ):
      lost = sorted(self._filled)
      self._empty_store()
    self._copy()
    if self._pool is not None and not lost:
      self.arrays = self._pool.fill(self.arrays, moves.fills)
      self._counts["restored"] += sum(self._filled.values())
    self._filled.clear()
    return lost

  def fit(self, num_tokens: int) -> None:
    """Makes the cache as long as what it holds, and is about to, needs.

    It grows at once and shrinks when that would have done for a while.
    """
    length = self._config.length(num_tokens)
    self._roomy = self._roomy + 1 if length < self.length else 0
    if length > self.length or self._roomy > _STEPS_UNTIL_SHRINKING:
      self._resize(length)

  def check(self) -> None:
    """Raises `AssertionError` if a block is lost, or a move was not made."""
    self._store.check()
    assert not self._copies and not self._filled, "planned and never moved"

  def _copy(self) -> None:
    """Copies what seats found in other slots; all are read before any write."""
    if not self._copies:
      return
    seats = list(self._copies.values())
    self._copies.clear()
    sizes = self._config.slot_sizes(self._num_slots)
    self.arrays = programs.copy(
      self.arrays,
      padded([seat.source for seat in seats], sizes, self._num_slots),
      padded([seat.slot for seat in seats], sizes, self._num_slots),
    )

  def _resize(self, length: int) -> None:
    self.arrays = programs.resize(self.arrays, cache_length=length)
    self.length, self._roomy = length, 0

  def _try(self, move: Callable[..., None], *args: Any) -> bool:
    """Whether the store could do it; what stopped it is logged and counted.

    The slots are untouched by what the store does, so nobody else has to fail.
    """
    try:
      move(*args)
    except (RuntimeError, MemoryError):
      _logger.exception(
        "the prefix store could not move its blocks; it was emptied, and "
        "prompts are fed again. If this is for want of memory, lower "
        "engine.prefix_cache_tokens or engine.prefix_cache_host_tokens"
      )
      self._counts["store_failures"] += 1
      return False
    return True

  def _empty_store(self) -> None:
    """Drops all blocks, and arrays that a failure may have left half used."""
    self._store.clear()
    self._pool = None  # before there is another
    self._pool = self._make_pool()


def padded(
  slots: Sequence[int] | np.ndarray, sizes: tuple[int, ...], nobody: int
) -> np.ndarray:
  """Slots in a compiled size; `nobody` is a slot that does not exist."""
  size = next(size for size in sizes if size >= len(slots))
  row = np.full(size, nobody, np.int32)
  row[: len(slots)] = slots
  return row
