"""The KV cache of a policy slot's sequence slots, and the copies within it.

Invariants:

- Allocations are planned one by one and copied together: slots about to be
  overwritten are saved to the prefix cache, if there is one, then slots are
  copied over slots, then blocks of the prefix cache are copied to slots.
- Copies are launched and not waited for.
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
from agentrl_jax.rollout.engine.prefix_cache import (
  BlockPool,
  Match,
  PrefixCache,
)
from agentrl_jax.rollout.engine.slot_table import FROM_PREFIX_CACHE, Allocation
from agentrl_jax.rollout.settings import EngineConfig

_STEPS_UNTIL_SHRINKING = 200
_logger = logging.getLogger(__name__)


class KVCacheManager:
  """Owns the cache; `arrays` is donated to each program that runs on it."""

  def __init__(
    self,
    policy: Policy,
    config: EngineConfig,
    num_slots: int,
    counts: collections.Counter[str],
    sharding: jax.sharding.Sharding | None = None,
  ):
    self._config, self._num_slots, self._counts = config, num_slots, counts
    self.length = config.cache_length(1)  # tokens per slot, now
    self._num_oversized = 0  # steps in a row that needed a shorter cache
    self.arrays = policy.empty_cache(num_slots, self.length)
    if sharding is not None:
      self.arrays = jax.device_put(self.arrays, sharding)
    self._copies: dict[int, Allocation] = {}  # from other slots, by target
    self._loads: dict[int, int] = {}  # tokens from the prefix cache, by target
    blocks = (config.block_size, *config.prefix_cache_blocks)
    self._prefix_cache = PrefixCache(*blocks)
    self._make_pool = functools.partial(BlockPool, policy, *blocks, sharding)
    self._pool = self._make_pool() if config.prefix_cache_tokens else None

  def reset(self) -> None:
    """Restores the shortest length, and empties the prefix cache."""
    self._num_oversized = 0
    if self._pool is not None:
      self._empty_prefix_cache()
    if self.length != self._config.cache_length(1):
      self._resize(self._config.cache_length(1))

  def set_weights(self, publication: int) -> None:
    """Drops blocks of the prefix cache that other weights computed."""
    if self._pool is None:
      return
    self._prefix_cache.set_weights(publication)
    if not self._try(self._pool.finish_offloads):
      self._empty_prefix_cache()

  def match_prefix(self, tokens: np.ndarray) -> Match:
    """Finds the longest prefix of a prompt in the prefix cache."""
    if self._pool is None:
      return Match()
    return self._prefix_cache.match_prefix(tokens)

  def must_copy_first(
    self, allocation: Allocation, match: Match, overwritten: np.ndarray
  ) -> bool:
    """Whether planned copies have to run before this allocation is planned."""
    if allocation.source in self._copies or allocation.source in self._loads:
      return True
    if self._pool is None or not self._prefix_cache.has_copies:
      return False
    if allocation.source != FROM_PREFIX_CACHE:
      match = Match()
    return match.is_offloading(
      self._prefix_cache.batch_number
    ) or not self._prefix_cache.has_room(match, len(overwritten))

  def plan(
    self, allocation: Allocation, match: Match, overwritten: np.ndarray
  ) -> int:
    """Plans the copies of an allocation; returns the number of reused tokens.

    `overwritten` are tokens of the slot that other requests could reuse.
    """
    num_reused = allocation.num_reused
    if allocation.source == FROM_PREFIX_CACHE:
      num_reused = self._prefix_cache.load(match, allocation.slot)
      self._loads[allocation.slot] = num_reused
    elif num_reused and allocation.source != allocation.slot:
      self._copies[allocation.slot] = allocation
      self._counts["copied"] += num_reused
    if (
      self._pool is not None
      and len(overwritten) >= self._config.min_copied_tokens
    ):
      self._counts["stored"] += self._prefix_cache.insert(
        overwritten, allocation.slot
      )
    return num_reused

  def copy(self, num_tokens: int) -> list[int]:
    """Launches the planned copies, with room for `num_tokens` per slot.

    Returns the slots whose blocks of the prefix cache are lost: if a block
    cannot be copied, the prefix cache is emptied, and these slots have to
    prefill their whole prompts.
    """
    length = self._config.cache_length(num_tokens)
    if length > self.length:
      self._resize(length)
    if self._pool is None:
      self._copy_slots()
      return []
    lost: list[int] = []
    self._counts["evicted"] = self._prefix_cache.num_evicted
    batch = self._prefix_cache.take_batch()
    if not self._try(self._pool.copy, batch, self.arrays):
      lost = sorted(self._loads)
      self._empty_prefix_cache()
    self._copy_slots()
    if not lost:
      self.arrays = self._pool.fill(self.arrays, batch.fills)
      self._counts["restored"] += sum(self._loads.values())
    self._loads.clear()
    return lost

  def fit(self, num_tokens: int) -> None:
    """Resizes the cache to the compiled length that `num_tokens` need.

    It grows at once, and shrinks after a number of steps that needed less.
    """
    length = self._config.cache_length(num_tokens)
    self._num_oversized = self._num_oversized + 1 if length < self.length else 0
    if length > self.length or self._num_oversized > _STEPS_UNTIL_SHRINKING:
      self._resize(length)

  def check(self) -> None:
    """Raises `AssertionError` if a block is lost or a copy was not made."""
    self._prefix_cache.check()
    assert not self._copies and not self._loads, "planned and never copied"

  def _copy_slots(self) -> None:
    """Copies slots over slots; all are read before any is written."""
    if not self._copies:
      return
    allocations = list(self._copies.values())
    self._copies.clear()
    sizes = self._config.slot_sizes(self._num_slots)
    self.arrays = programs.copy(
      self.arrays,
      padded([a.source for a in allocations], sizes, self._num_slots),
      padded([a.slot for a in allocations], sizes, self._num_slots),
    )

  def _resize(self, length: int) -> None:
    self.arrays = programs.resize(self.arrays, cache_length=length)
    self.length, self._num_oversized = length, 0

  def _try(self, copy: Callable[..., None], *args: Any) -> bool:
    """Returns whether the pool could copy; logs and counts a failure.

    A failure leaves the slots untouched, so no request has to fail with it.
    """
    try:
      copy(*args)
    except (RuntimeError, MemoryError):
      _logger.exception(
        "the prefix cache could not copy its blocks; it was emptied, and "
        "prompts are prefilled again. If memory is short, lower "
        "engine.prefix_cache_tokens or engine.prefix_cache_host_tokens"
      )
      self._counts["store_failures"] += 1
      return False
    return True

  def _empty_prefix_cache(self) -> None:
    """Drops all blocks, and arrays that a failed copy may have donated."""
    self._prefix_cache.clear()
    self._pool = None  # frees the memory before it is allocated again
    self._pool = self._make_pool()


def padded(
  slots: Sequence[int] | np.ndarray, sizes: tuple[int, ...], padding: int
) -> np.ndarray:
  """Pads slots to a compiled size; `padding` is a slot that does not exist."""
  size = next(size for size in sizes if size >= len(slots))
  row = np.full(size, padding, np.int32)
  row[: len(slots)] = slots
  return row
