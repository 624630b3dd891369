"""KV cache of one policy slot: its sequence slots, their tokens, the arrays.

`SlotTable` knows on the host which tokens each slot holds and which request it
has; `KVCacheManager` owns the arrays and launches copies between slots and the
prefix cache.
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from agentrl_jax.model.cache import place
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import EngineConfig, Request
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.cache.prefix_cache import (
  BlockPool,
  PrefixCache,
  PrefixMatch,
)

FROM_PREFIX_CACHE = -1  # source of an allocation
FREE = -1  # serial of a slot without a request
_MIXED = -1  # publication of a slot that decoded across a swap


@dataclasses.dataclass(frozen=True)
class Allocation:
  """A slot for a request, and the cached tokens that the request reuses."""

  slot: int
  num_reused: int  # tokens, from position 0 on
  source: int  # slot that holds them, may be `slot`; or FROM_PREFIX_CACHE


class SlotTable:
  """The slots of one policy slot. Arrays are indexed by slot.

  - A slot keeps its keys and values when its request ends, so that the next
    turn of the same conversation prefills only its new tokens.
  - Keys and values belong to one publication of the weights: after a swap they
    are not reused, nor are those of a slot that decoded across a swap.
  - `num_computed` <= `num_launched` for a slot with a request, and no more than
    `max_length` tokens are ever computed.

  Plain numpy.
  """

  def __init__(self, num_slots: int, context: int, *, reuse: bool = True):
    self._reuse = reuse
    self.tokens = np.zeros((num_slots, context), np.int32)
    self.num_computed = np.zeros(num_slots, np.int32)  # tokens in the cache
    self.prefill_length = np.zeros(num_slots, np.int32)  # tokens to prefill
    self.prompt_length = np.zeros(num_slots, np.int32)  # of the request
    # Upper bound of `num_computed` once all launched steps have run.
    self.num_launched = np.zeros(num_slots, np.int32)
    self.max_length = np.zeros(num_slots, np.int32)  # of prompt and answer
    self.publication = np.full(num_slots, _MIXED, np.int64)
    self.serial = np.full(num_slots, FREE, np.int64)  # of the request
    # Number of the assignment; a preempted request gets another one.
    self.assignment = np.full(num_slots, FREE, np.int64)
    self._num_assigned = 0
    self.is_decoding = np.zeros(num_slots, bool)
    self.request: list[Request | None] = [None] * num_slots
    self._freed_at = np.zeros(num_slots, np.int64)
    self._clock = 0

  @property
  def num_busy(self) -> int:
    """Slots that have a request."""
    return int(np.count_nonzero(self.serial != FREE))

  @property
  def is_full(self) -> bool:
    """True if every slot has a request."""
    return bool((self.serial != FREE).all())

  def allocate(
    self,
    request: Request,
    publication: int,
    min_copied: int,
    num_in_prefix_cache: int = 0,
  ) -> Allocation | None:
    """Chooses the best free slot for a request; None if it should wait.

    A request waits while no slot is free, and while another slot prefills at
    least `min_copied` more tokens of its prompt than any cache holds now:
    episodes of one group arrive together and share their prompt.

    A free slot whose tokens are all reused is taken in place. Otherwise the
    request gets a slot without usable tokens, or else the least recently used
    one, and reused tokens are copied there if they are at least `min_copied`;
    thus the cache of a conversation that waits for its environment survives.
    They come from the slot that shares most, or from the prefix cache where
    that holds `min_copied` tokens more than any slot.
    """
    free = self.serial == FREE
    if not free.any():
      return None
    shared = self._num_shared(request, publication)
    usable = np.minimum(shared, self.num_computed)
    coming = np.where(free, 0, np.minimum(shared, self.prefill_length))
    most = usable.max()
    if coming.max() >= max(most, num_in_prefix_cache) + min_copied:
      return None
    from_prefix_cache = num_in_prefix_cache >= most + min_copied
    in_place = free & (usable == self.num_computed) & (usable == most)
    if most and in_place.any() and not from_prefix_cache:
      source = int(in_place.argmax())
      return Allocation(source, int(most), source)
    unusable = free & (
      (self.publication != publication) | (self.num_computed == 0)
    )
    choices = unusable if unusable.any() else free
    never = np.iinfo(np.int64).max
    slot = int(np.where(choices, self._freed_at, never).argmin())
    if from_prefix_cache:
      return Allocation(slot, num_in_prefix_cache, FROM_PREFIX_CACHE)
    source = int(usable.argmax()) if most >= min_copied else slot
    return Allocation(slot, int(usable[source]), source)

  def assign(
    self, request: Request, allocation: Allocation, publication: int
  ) -> None:
    """Gives a slot to a request, as if reused tokens were there already."""
    slot, tokens = allocation.slot, request.tokens
    self.tokens[slot, : len(tokens)] = tokens
    self.num_computed[slot] = allocation.num_reused
    if request.sampled is None:
      request.num_reused = allocation.num_reused
    self.prompt_length[slot] = len(request.prompt)
    self.prefill_length[slot] = request.prefill_length
    self.num_launched[slot] = request.prefill_length
    self.max_length[slot] = request.max_length
    self.publication[slot] = publication
    self.serial[slot] = request.serial
    self.assignment[slot] = self._num_assigned
    self._num_assigned += 1
    self.is_decoding[slot] = False
    self.request[slot] = request

  def set_weights(self, publication: int, kept: Sequence[int] = ()) -> None:
    """Adapts to a swap: prefill starts again, and decoding slots are mixed.

    Slots that decode on a publication of `kept` go on with it instead.
    """
    stale = (self.serial != FREE) & (self.publication != publication)
    for slot in np.flatnonzero(stale & ~self.is_decoding):
      self.restart_prefill(slot)
      self.publication[slot] = publication
    self.mix(publication, kept)

  def mix(self, publication: int, kept: Sequence[int] = ()) -> None:
    """Marks decoding slots that go on with the newest weights as mixed."""
    stale = (self.serial != FREE) & (self.publication != publication)
    mixed = stale & self.is_decoding & ~np.isin(self.publication, kept)
    self.publication[mixed] = _MIXED

  def restart_prefill(self, slot: int) -> None:
    """Marks a slot that does not decode yet as empty."""
    self.num_computed[slot] = 0
    request = self.request[slot]
    if request is not None:
      request.num_reused = 0

  def overwritten_tokens(
    self, allocation: Allocation, publication: int
  ) -> np.ndarray:
    """Returns the reusable tokens that an allocation overwrites."""
    slot, size = allocation.slot, int(self.num_computed[allocation.slot])
    in_place = allocation.source == slot and allocation.num_reused == size
    if in_place or self.publication[slot] != publication:
      size = 0
    return self.tokens[slot, :size]

  def decoding_publications(self) -> set[int]:
    """Returns the publications that decoding slots started with."""
    return set(self.publication[self.is_decoding].tolist())

  def check(self) -> None:
    """Raises `AssertionError` if the arrays of a slot are inconsistent."""
    for slot, request in enumerate(self.request):
      serial = FREE if request is None else request.serial
      assert self.serial[slot] == serial, (slot, self.serial[slot], serial)
    assert not (self.is_decoding & (self.serial == FREE)).any(), (
      self.is_decoding
    )

  def prefilling(self) -> np.ndarray:
    """Slots whose prompt is not completely prefilled, oldest request first."""
    unfinished = self.num_computed < self.prefill_length
    return self.oldest_first(np.flatnonzero((self.serial != FREE) & unfinished))

  def decodable(self) -> np.ndarray:
    """Slots that decode, or can start to."""
    finished = self.num_computed >= self.prefill_length
    return np.flatnonzero((self.serial != FREE) & (self.is_decoding | finished))

  def cache_length_needed(self, publication: int, num_tokens: int) -> int:
    """Longest slot once every busy one has decoded `num_tokens` more tokens.

    Tokens of free slots count while they can be reused.
    """
    busy = self.serial != FREE
    launched = self.num_tokens_after(num_tokens)
    kept = np.where(self.publication == publication, self.num_computed, 0)
    return max(int(np.where(busy, launched, kept).max()), 1)

  def num_tokens_after(self, num_tokens: int) -> np.ndarray:
    """Most tokens of each slot in the cache once a call of so many has run."""
    return np.minimum(self.num_launched + num_tokens, self.max_length)

  def num_coming(self, request: Request, publication: int) -> int:
    """Most tokens of a prompt that a slot has, or will have, prefilled."""
    shared = self._num_shared(request, publication)
    is_prefilling = (self.serial != FREE) & (
      self.num_computed < self.prefill_length
    )
    coming = np.minimum(shared, self.prefill_length)
    return int(np.where(is_prefilling, coming, 0).max())

  def least_recent(self) -> int:
    """Returns the slot that has been free for the longest time."""
    never = np.iinfo(np.int64).max
    return int(np.where(self.serial == FREE, self._freed_at, never).argmin())

  def oldest_first(self, slots: np.ndarray) -> np.ndarray:
    """Sorts slots by the arrival of their requests."""
    return slots[np.argsort(self.serial[slots], kind="stable")]

  def launch(self, slots: np.ndarray, num_tokens: int) -> None:
    """Records that a call was launched, of up to `num_tokens` for slots."""
    self.num_launched[slots] += num_tokens

  def give_back(self, slots: np.ndarray, num_unused: np.ndarray) -> None:
    """Takes back what a call that was read did not sample."""
    self.num_launched[slots] -= num_unused

  def free(self, slot: int) -> None:
    """Frees a slot; its tokens stay cached until another request needs it."""
    self._clock += 1
    self._freed_at[slot] = self._clock
    self.serial[slot] = self.assignment[slot] = FREE
    self.is_decoding[slot] = False
    self.request[slot] = None

  def forget(self, slot: int) -> None:
    """Drops the tokens of a free slot, whose keys and values are gone."""
    self.num_computed[slot] = 0

  def _num_shared(self, request: Request, publication: int) -> np.ndarray:
    """Number of leading tokens that each slot shares with a prompt."""
    if not self._reuse:
      return np.zeros(len(self.num_computed), np.int32)
    prompt = request.tokens[: request.prefill_length]
    same = self.tokens[:, : len(prompt)] == prompt
    size = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    return np.where(self.publication == publication, size, 0)


_STEPS_UNTIL_SHRINKING = 200
_logger = logging.getLogger(__name__)


class KVCacheManager:
  """Owns the arrays, which are donated to each program that runs on them.

  - Allocations are planned one by one and copied together: slots about to be
    overwritten are saved to the prefix cache, if there is one, then slots are
    copied over slots, then blocks of the prefix cache are copied to slots.
  - Copies are launched and not waited for.
  """

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
    self.arrays = place(
      policy.empty_cache(
        num_slots, self.length, keeps_experts=config.router_replay
      ),
      sharding,
    )
    self._copies: dict[int, Allocation] = {}  # from other slots, by target
    self._loads: dict[int, int] = {}  # tokens from the prefix cache, by target
    blocks = (config.block_size, *config.prefix_cache_blocks)
    self._prefix_cache = PrefixCache(*blocks)
    self._make_pool = functools.partial(
      BlockPool, policy, *blocks, sharding, keeps_experts=config.router_replay
    )
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

  def match_prefix(self, tokens: np.ndarray) -> PrefixMatch:
    """Finds the longest prefix of a prompt in the prefix cache."""
    if self._pool is None:
      return PrefixMatch()
    return self._prefix_cache.match_prefix(tokens)

  def must_copy_first(
    self, allocation: Allocation, match: PrefixMatch, overwritten: np.ndarray
  ) -> bool:
    """Returns whether planned copies must run before this allocation."""
    if allocation.source in self._copies or allocation.source in self._loads:
      return True
    if self._pool is None or not self._prefix_cache.has_copies:
      return False
    if allocation.source != FROM_PREFIX_CACHE:
      match = PrefixMatch()
    return match.is_offloading(
      self._prefix_cache.batch_number
    ) or not self._prefix_cache.has_room(match, len(overwritten))

  def plan(
    self, allocation: Allocation, match: PrefixMatch, overwritten: np.ndarray
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

  def table_of(self, slot_P: np.ndarray) -> None:
    """Returns no page table: the rows of the cache are found by slot."""
    del slot_P

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
