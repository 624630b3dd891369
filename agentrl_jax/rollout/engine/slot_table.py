"""Which tokens the keys and values of each slot stand for.

Plain numpy on the host; nothing here touches a device. A slot keeps its keys
and values when its request ends, so the next turn of the same conversation
feeds only what is new. They stand for tokens *under one publication of the
weights*: after a swap they are of no use to anyone, and a slot that decoded
across a swap is never reused.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from agentrl_jax.rollout.engine.request import Request

FROM_STORE = -1  # source of a seat
NOBODY = -1  # serial of a slot without an owner
_NOTHING = -1  # publication of a slot whose keys and values are of no use


@dataclasses.dataclass(frozen=True)
class Allocation:
  """Where a request goes, and what is there for it."""

  slot: int
  reused: int  # tokens, from position 0 on
  source: int  # slot that holds them, the same if in place; or FROM_STORE


class SlotTable:
  """The slots of one policy slot. Arrays are indexed by slot."""

  def __init__(self, num_slots: int, context: int, *, reuse: bool = True):
    self._reuse = reuse
    self.token = np.zeros((num_slots, context), np.int32)
    self.held = np.zeros(num_slots, np.int32)  # entries in the cache
    self.target = np.zeros(num_slots, np.int32)  # entries before decoding
    self.reach = np.zeros(num_slots, np.int32)  # most that can be held now
    self.end = np.zeros(num_slots, np.int32)  # most that will ever be
    self.publication = np.full(num_slots, _NOTHING, np.int64)
    self.serial = np.full(num_slots, NOBODY, np.int64)  # of the request
    self.decoding = np.zeros(num_slots, bool)
    self.owner: list[Request | None] = [None] * num_slots
    self._used = np.zeros(num_slots, np.int64)
    self._clock = 0

  @property
  def num_busy(self) -> int:
    """Slots that a request owns."""
    return int(np.count_nonzero(self.serial >= 0))

  @property
  def is_full(self) -> bool:
    """Whether every slot has an owner."""
    return bool((self.serial >= 0).all())

  def allocate(
    self, request: Request, publication: int, worth: int, stored: int = 0
  ) -> Allocation | None:
    """The best free slot for a request; None if it had better wait.

    It waits while no slot is free, and while a slot is being fed `worth` more
    tokens of its prompt than any holds now: attempts at one task arrive
    together and share their prompt.

    A free slot whose keys and values are all of use is taken as it is.
    Otherwise the least recently used one is, and what is of use is copied into
    it if that is `worth` tokens, so that a conversation which is out with its
    environment stays. That comes from another slot, or from the store, if the
    `stored` tokens there are `worth` more than any slot has.
    """
    free = self.serial < 0
    if not free.any():
      return None
    shared = self._shared(request, publication)
    usable = np.minimum(shared, self.held)
    coming = np.where(free, 0, np.minimum(shared, self.target))
    most = usable.max()
    if coming.max() >= max(most, stored) + worth:
      return None
    from_store = stored >= most + worth
    whole = free & (usable == self.held) & (usable == most)
    if most and whole.any() and not from_store:
      source = int(whole.argmax())
      return Allocation(source, int(most), source)
    useless = free & ((self.publication != publication) | (self.held == 0))
    choices = useless if useless.any() else free
    slot = int(np.where(choices, self._used, np.iinfo(np.int64).max).argmin())
    if from_store:
      return Allocation(slot, stored, FROM_STORE)
    source = int(usable.argmax()) if most >= worth else slot
    return Allocation(slot, int(usable[source]), source)

  def assign(
    self, request: Request, seat: Allocation, publication: int
  ) -> None:
    """Gives a slot to a request. What is reused has to be copied by then."""
    slot, size = seat.slot, len(request.prompt)
    self.token[slot, :size] = request.prompt
    self.held[slot] = request.num_reused = seat.reused
    self.target[slot] = self.reach[slot] = request.num_prefilled
    self.end[slot] = request.end
    self.publication[slot] = publication
    self.serial[slot] = request.serial
    self.decoding[slot] = False
    self.owner[slot] = request

  def restart_stale(self, publication: int, kept: Sequence[int] = ()) -> None:
    """After a swap: prefill begins anew, and what decodes is mixed.

    Unless what decodes can be finished on its own publication, one that is
    `kept`.
    """
    stale = (self.serial >= 0) & (self.publication != publication)
    for slot in np.flatnonzero(stale & ~self.decoding):
      self.feed_again(slot)
      self.publication[slot] = publication
    mixed = stale & self.decoding & ~np.isin(self.publication, kept)
    self.publication[mixed] = _NOTHING

  def feed_again(self, slot: int) -> None:
    """A slot that does not decode yet has lost what it held."""
    self.held[slot] = 0
    owner = self.owner[slot]
    if owner is not None:
      owner.num_reused = 0

  def overwritten(self, seat: Allocation, publication: int) -> np.ndarray:
    """Tokens that a free slot holds, and that a seat in it overwrites."""
    slot, size = seat.slot, int(self.held[seat.slot])
    stays = seat.source == slot and seat.reused == size
    if stays or self.publication[slot] != publication:
      size = 0
    return self.token[slot, :size]

  def editions_decoding(self) -> set[int]:
    """Editions of the weights that slots which decode began on."""
    return set(self.publication[self.decoding].tolist())

  def check(self) -> None:
    """Raises `AssertionError` if a slot has an owner by halves."""
    for slot, owner in enumerate(self.owner):
      serial = NOBODY if owner is None else owner.serial
      assert self.serial[slot] == serial, (slot, self.serial[slot], serial)
    assert not (self.decoding & (self.serial < 0)).any(), self.decoding

  def unfilled(self) -> np.ndarray:
    """Slots whose prompt is not yet in the cache, first come first."""
    slots = np.flatnonzero((self.serial >= 0) & (self.held < self.target))
    return slots[np.argsort(self.serial[slots], kind="stable")]

  def filled(self) -> np.ndarray:
    """Slots that can decode, or do already."""
    return np.flatnonzero(
      (self.serial >= 0) & (self.decoding | (self.held >= self.target))
    )

  def cache_length_needed(self, publication: int, num_steps: int) -> int:
    """The longest slot, once every busy one has decoded `num_steps` more.

    What a free slot holds counts while it is of use.
    """
    busy = self.serial >= 0
    soon = np.minimum(self.reach + num_steps, self.end)
    kept = np.where(self.publication == publication, self.held, 0)
    return max(int(np.where(busy, soon, kept).max()), 1)

  def go_on(self, slot: np.ndarray, num_steps: int) -> None:
    """These slots are about to sample up to so many tokens more."""
    reach = self.reach[slot] + num_steps
    self.reach[slot] = np.minimum(reach, self.end[slot])

  def leave(self, slot: int) -> None:
    """Frees a slot; what it holds stays for whoever can use it."""
    self._clock += 1
    self._used[slot] = self._clock
    self.serial[slot] = NOBODY
    self.decoding[slot] = False
    self.owner[slot] = None

  def _shared(self, request: Request, publication: int) -> np.ndarray:
    """How many leading tokens each slot has in common with a prompt."""
    if not self._reuse:
      return np.zeros(len(self.held), np.int32)
    prompt = request.prompt[: request.num_prefilled]
    same = self.token[:, : len(prompt)] == prompt
    size = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    return np.where(self.publication == publication, size, 0)
