"""The sequence slots of one policy slot: their requests and their tokens."""

import collections
from collections.abc import Sequence

import numpy as np

from agentrl_jax.rollout.api import Request

FREE = -1  # serial of a slot without a request


class SlotTable:
  """The slots of one policy slot. Arrays are indexed by slot.

  - `num_computed` <= `num_launched` for a slot with a request, and no more than
    `max_length` tokens are ever computed.

  Plain numpy.
  """

  def __init__(self, num_slots: int, context: int):
    self.tokens = np.zeros((num_slots, context), np.int32)
    self.num_computed = np.zeros(num_slots, np.int32)  # tokens in the cache
    self.prefill_length = np.zeros(num_slots, np.int32)  # tokens to prefill
    self.prompt_length = np.zeros(num_slots, np.int32)  # of the request
    # Upper bound of `num_computed` once all launched steps have run.
    self.num_launched = np.zeros(num_slots, np.int32)
    self.max_length = np.zeros(num_slots, np.int32)  # of prompt and answer
    self.serial = np.full(num_slots, FREE, np.int64)  # of the request
    # Number of the assignment; a preempted request gets another one.
    self.assignment = np.full(num_slots, FREE, np.int64)
    self._num_assigned = 0
    self.is_decoding = np.zeros(num_slots, bool)
    # Whether keys and values are of more than one publication of the weights.
    self.is_mixed = np.zeros(num_slots, bool)
    self.request: list[Request | None] = [None] * num_slots
    self._free = collections.deque(range(num_slots))  # longest first

  @property
  def num_busy(self) -> int:
    """Slots that have a request."""
    return int(np.count_nonzero(self.serial != FREE))

  @property
  def is_full(self) -> bool:
    """True if every slot has a request."""
    return not self._free

  def free_slot(self) -> int:
    """Returns the slot that has been free for the longest time.

    What others have sampled is there for drafts.
    """
    return self._free[0]

  def assign(self, slot: int, request: Request, num_reused: int) -> None:
    """Gives a slot to a request, of which so many tokens are cached."""
    tokens = request.tokens
    self._free.remove(slot)
    self.tokens[slot, : len(tokens)] = tokens
    self.num_computed[slot] = num_reused
    if request.sampled is None:
      request.num_reused = num_reused
    self.prompt_length[slot] = len(request.prompt)
    self.prefill_length[slot] = request.prefill_length
    self.num_launched[slot] = request.prefill_length
    self.max_length[slot] = request.max_length
    self.serial[slot] = request.serial
    self.assignment[slot] = self._num_assigned
    self._num_assigned += 1
    self.is_decoding[slot] = self.is_mixed[slot] = False
    self.request[slot] = request

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

  def num_tokens_after(self, num_tokens: int) -> np.ndarray:
    """Most tokens of each slot in the cache once a call of so many has run."""
    return np.minimum(self.num_launched + num_tokens, self.max_length)

  def num_coming(self, request: Request, *, whole: bool) -> int:
    """Most tokens of a prompt that a slot prefills and does not have yet.

    Counts `whole` prompts alone, or also where a prompt begins alike.
    """
    prefilling = self.prefilling()
    prompt = request.tokens[: request.prefill_length]
    same = self.tokens[prefilling, : len(prompt)] == prompt
    shared = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    size = self.prefill_length[prefilling]
    coming = np.minimum(shared, np.where(whole & (shared < size), 0, size))
    return int(coming.max(initial=0))

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
    """Frees a slot."""
    self._free.append(slot)
    self.num_computed[slot] = 0
    self.serial[slot] = self.assignment[slot] = FREE
    self.is_decoding[slot] = False
    self.request[slot] = None


def padded(
  slots: Sequence[int] | np.ndarray, sizes: tuple[int, ...], padding: int
) -> np.ndarray:
  """Pads slots to a compiled size; `padding` is a slot that does not exist."""
  size = next(size for size in sizes if size >= len(slots))
  row = np.full(size, padding, np.int32)
  row[: len(slots)] = slots
  return row
