"""The tokens whose keys and values each slot holds, and the slots' requests.

Plain numpy on the host. A slot keeps its keys and values when its request ends,
so that the next turn of the same conversation prefills only its new tokens.
Keys and values belong to one publication of the weights: after a swap they are
not reused, nor are those of a slot that decoded across a swap.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from agentrl_jax.rollout.engine.request import Request

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

  `num_computed` <= `num_launched` <= `max_length` for a slot with a request.
  """

  def __init__(self, num_slots: int, context: int, *, reuse: bool = True):
    self._reuse = reuse
    self.tokens = np.zeros((num_slots, context), np.int32)
    self.num_computed = np.zeros(num_slots, np.int32)  # tokens in the cache
    self.num_prefilled = np.zeros(num_slots, np.int32)  # before decoding starts
    # Upper bound of `num_computed` once all launched steps have run.
    self.num_launched = np.zeros(num_slots, np.int32)
    self.max_length = np.zeros(num_slots, np.int32)  # of prompt and answer
    self.publication = np.full(num_slots, _MIXED, np.int64)
    self.serial = np.full(num_slots, FREE, np.int64)  # of the request
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
    """Whether every slot has a request."""
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
    coming = np.where(free, 0, np.minimum(shared, self.num_prefilled))
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
    slot, size = allocation.slot, len(request.prompt)
    self.tokens[slot, :size] = request.prompt
    self.num_computed[slot] = request.num_reused = allocation.num_reused
    self.num_prefilled[slot] = request.num_prefilled
    self.num_launched[slot] = request.num_prefilled
    self.max_length[slot] = request.max_length
    self.publication[slot] = publication
    self.serial[slot] = request.serial
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
    unfinished = self.num_computed < self.num_prefilled
    slots = np.flatnonzero((self.serial != FREE) & unfinished)
    return slots[np.argsort(self.serial[slots], kind="stable")]

  def decodable(self) -> np.ndarray:
    """Slots that decode, or can start to."""
    finished = self.num_computed >= self.num_prefilled
    return np.flatnonzero((self.serial != FREE) & (self.is_decoding | finished))

  def cache_length_needed(self, publication: int, num_steps: int) -> int:
    """Longest slot once every busy one has decoded `num_steps` more tokens.

    Tokens of free slots count while they can be reused.
    """
    busy = self.serial != FREE
    launched = np.minimum(self.num_launched + num_steps, self.max_length)
    kept = np.where(self.publication == publication, self.num_computed, 0)
    return max(int(np.where(busy, launched, kept).max()), 1)

  def launch(self, slots: np.ndarray, num_steps: int) -> None:
    """Records that up to `num_steps` decode steps were launched for slots."""
    launched = self.num_launched[slots] + num_steps
    self.num_launched[slots] = np.minimum(launched, self.max_length[slots])

  def free(self, slot: int) -> None:
    """Frees a slot; its tokens stay cached until another request needs it."""
    self._clock += 1
    self._freed_at[slot] = self._clock
    self.serial[slot] = FREE
    self.is_decoding[slot] = False
    self.request[slot] = None

  def _num_shared(self, request: Request, publication: int) -> np.ndarray:
    """Number of leading tokens that each slot shares with a prompt."""
    if not self._reuse:
      return np.zeros(len(self.num_computed), np.int32)
    prompt = request.prompt[: request.num_prefilled]
    same = self.tokens[:, : len(prompt)] == prompt
    size = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    return np.where(self.publication == publication, size, 0)
