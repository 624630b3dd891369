"""The slots of one policy slot: who sits where, and what runs next.

A block owns the policy slot's `KVCacheManager` and `Decoder` on the device, and
its `SlotTable` on the host. One call of `step` drops what was cancelled, seats
who waits, feeds a bounded number of prompt tokens and launches a few decode
steps; `read` takes in the tokens of an earlier `step`. Neither is thread-safe:
the engine's lock is around both.
"""

import collections
import dataclasses
import time
from collections.abc import Callable

import jax
import numpy as np

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import Answer
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.decoder import Decoder, Part
from agentrl_jax.rollout.engine.kv_cache import KVCacheManager, padded
from agentrl_jax.rollout.engine.request import Request
from agentrl_jax.rollout.engine.slot_table import NOBODY, SlotTable
from agentrl_jax.rollout.engine.weight_versions import WeightVersions
from agentrl_jax.rollout.engine.weights import Published
from agentrl_jax.rollout.settings import EngineConfig


class Scheduler:
  """Slots that share one version's weights."""

  def __init__(
    self,
    policy_slot: int,
    policy: Policy,
    config: EngineConfig,
    sharding: jax.sharding.Sharding | None = None,
    *,
    give_up: Callable[[Request], None],
  ):
    """`give_up` cancels a request that cannot go on."""
    self._policy_slot, self._policy, self._config = policy_slot, policy, config
    self._num_slots = num_slots = config.slots[policy_slot]
    self._prefill_sizes = config.slot_sizes(
      min(num_slots, config.prefill_slots)
    )
    self.counts: collections.Counter[str] = collections.Counter()
    self.wait_s = 0.0  # of all requests, from being asked to their slots
    self._cache = KVCacheManager(
      policy, config, num_slots, self.counts, sharding
    )
    self._weights = WeightVersions(config.old_weights)
    self._decoder = Decoder(policy_slot, policy, config, self._cache, give_up)
    self._book = self._empty_book()
    self._answer = np.zeros((num_slots, config.context, 3), np.int32)
    self._pending: collections.deque[Request] = collections.deque()

  def forget(self) -> None:
    """Leaves every slot as new; none may be busy."""
    self._book = self._empty_book()
    self._cache.forget()

  def check(self) -> None:
    """Raises `AssertionError` if a slot or a block of the store was lost."""
    self._cache.check()
    self._book.check()
    self._decoder.check(self._book)

  @property
  def length(self) -> int:
    """Tokens that each slot has room for now."""
    return self._cache.length

  @property
  def num_busy(self) -> int:
    """Slots that a request owns."""
    return self._book.num_busy

  @property
  def num_pending(self) -> int:
    """Requests that wait for a slot."""
    return len(self._pending)

  def admit(self, request: Request) -> None:
    """Takes a request in; it gets a slot in one of the next steps."""
    self._pending.append(request)

  def cancel(self, request: Request) -> bool:
    """Frees what a request has; False if it had left already."""
    if request in self._pending:
      self._pending.remove(request)
      return True
    slots = np.flatnonzero(self._book.serial == request.serial)
    for slot in map(int, slots):
      self._leave(slot)
    self._rest()
    return bool(slots.size)

  def step(self, published: Published) -> list[Part]:
    """Launches the next piece of work; its tokens, where there will be any."""
    book, publication = self._book, published.publication
    self._weights.set_weights(published, book.editions_decoding())
    book.restart_stale(publication, self._weights.publications)
    self._cache.set_weights(publication)
    self._seat(publication)
    self.counts["slot_steps"] += book.num_busy
    self._cache.fit(self._cache_length_needed(publication))
    self._prefill(published)
    return self._decode()

  def read(self, part: Part) -> list[tuple[Request, Answer]]:
    """Waits for nothing: `part.record` is a host array by now."""
    record = np.asarray(part.record)
    serial = np.append(self._book.serial, NOBODY)[part.slot]
    owned = (serial == part.serial) & (serial != NOBODY)
    active = (record[:, :, programs.ACTIVE] > 0) & owned
    self._take_in(record[active], part.slot[np.nonzero(active)[1]])
    self._tell(part.slot[active.any(axis=0)])
    done = (record[:, :, programs.DONE] > 0) & active
    self._follow(record, part.slot, active & ~done)
    found = [self._finish(int(slot)) for slot in part.slot[done.any(axis=0)]]
    self._rest()
    return found

  def _rest(self) -> None:
    """Holds on to no weights while there is nothing to do."""
    if not self._book.num_busy:
      self._weights.forget()

  def _take_in(self, row: np.ndarray, slot: np.ndarray) -> None:
    """Stores the records of tokens, earliest first, under their slots."""
    book, count = self._book, row[:, programs.COUNT]
    position = book.target[slot] + count
    book.token[slot, position] = row[:, programs.TOKEN]
    # The last token sampled is fed by the next step: it is not held yet.
    # Steps come in order, and of equal indices the last assignment stays.
    book.held[slot] = position
    size = len(programs.RECORD)
    self._answer[slot, count - 1] = row[:, programs.BEHAVIOR : size]
    if row.shape[1] > size:
      self._decoder.shaping.take_in(slot, count, row[:, size:])
    self.counts["sampled"] += len(row)
    self.counts["constrained"] += int(self._decoder.is_bound[slot].sum())

  def _follow(
    self, record: np.ndarray, slot: np.ndarray, goes_on: np.ndarray
  ) -> None:
    """Takes the tokens of slots that go on under a grammar through it."""
    bound = np.append(self._decoder.is_bound, False)[slot]
    for n, row in zip(*np.nonzero(goes_on & bound), strict=True):
      one = int(slot[row])
      request = self._book.owner[one]
      assert request is not None, f"slot {one} goes on for nobody"
      self._decoder.take(one, request, int(record[n, row, programs.TOKEN]))

  def _tell(self, slots: np.ndarray) -> None:
    """Lets those who listen know what their slots have sampled."""
    for slot in map(int, slots):
      request = self._book.owner[slot]
      if request is not None and request.listener is not None:
        request.listener(self._sampled(slot, request, request.num_told))
        request.num_told = int(self._book.held[slot]) + 1 - len(request.prompt)

  def _sampled(self, slot: int, request: Request, begin: int) -> Answer:
    """What a slot has sampled for its request, from a token on."""
    end = int(self._book.held[slot]) + 1
    token = self._book.token[slot, len(request.prompt) : end]
    behavior, raw, step = self._answer[slot, begin : len(token)].T.copy()
    return Answer(
      sampled=token[begin:].copy(),
      behavior_logprob=behavior.view(np.float32),
      raw_logprob=raw.view(np.float32),
      version=step,
      policy_slot=self._policy_slot,
      num_reused=request.num_reused,
      **self._decoder.shaping.told(slot, request, begin, len(token)),
    )

  def _finish(self, slot: int) -> tuple[Request, Answer]:
    request = self._book.owner[slot]
    assert request is not None, f"slot {slot} finished for nobody"
    answer = self._sampled(slot, request, 0)
    self.counts["reused"] += request.num_reused
    self._leave(slot)
    return request, answer

  def _leave(self, slot: int) -> None:
    self._book.leave(slot)
    self._decoder.leave(slot)

  def _seat(self, publication: int) -> None:
    """Gives slots to those who wait, in order, as far as there are any."""
    waits: collections.deque[Request] = collections.deque()
    while self._pending and not self._book.is_full:
      request = self._pending.popleft()
      if not self._find_seat(request, publication):
        waits.append(request)
    self._pending.extendleft(reversed(waits))
    self._move(publication)

  def _find_seat(self, request: Request, publication: int) -> bool:
    """Whether a request got a slot; what it reuses there is still to move."""
    book, cache = self._book, self._cache
    match = cache.find(request.prompt[: request.num_prefilled])
    seat = book.allocate(request, publication, self._config.worth, match.size)
    if seat is None:
      return False
    overwritten = book.overwritten(seat, publication)
    if cache.has_to_move_first(seat, match, overwritten):
      self._move(publication)
      return self._find_seat(request, publication)
    reused = cache.plan(seat, match, overwritten)
    book.assign(request, dataclasses.replace(seat, reused=reused), publication)
    self.counts["seated"] += 1
    self.wait_s += time.monotonic() - request.asked_at
    return True

  def _move(self, publication: int) -> None:
    """Moves what seats found elsewhere; what is lost is fed again."""
    for slot in self._cache.move(self._cache_length_needed(publication)):
      self._book.feed_again(slot)

  def _cache_length_needed(self, publication: int) -> int:
    return self._book.cache_length_needed(
      publication, self._config.steps_per_sync
    )

  def _prefill(self, published: Published) -> None:
    """Feeds prompts in chunks, until they are fed or the step's share is."""
    book, left = self._book, self._config.prefill_tokens
    while left > 0 and (unfilled := book.unfilled()).size:
      slot = unfilled[: self._config.prefill_slots]
      missing = book.target[slot] - book.held[slot]
      chunk = self._config.prefill_chunk(int(missing.max()))
      length = np.minimum(missing, chunk)
      slot_P = padded(slot, self._prefill_sizes, self._num_slots)
      token_PC = np.zeros((len(slot_P), chunk), np.int32)
      for row, (b, size) in enumerate(zip(slot, length, strict=True)):
        token_PC[row, :size] = book.token[b, book.held[b] :][:size]
      self._cache.arrays = programs.prefill(
        self._policy,
        published.params,
        self._cache.arrays,
        token_PC,
        _padded_to(book.held[slot], len(slot_P)),
        _padded_to(length, len(slot_P)),
        slot_P,
      )
      book.held[slot] += length
      self.counts["prefilled"] += int(length.sum())
      left -= token_PC.size

  def _decode(self) -> list[Part]:
    """Tokens for every slot that can, those that begin included."""
    book = self._book
    filled = book.filled()
    for slot in map(int, filled[~book.decoding[filled]]):
      request = book.owner[slot]
      assert request is not None, f"slot {slot} is filled for nobody"
      self._decoder.begin(slot, request)
      book.decoding[slot] = True
    return self._decoder.decode(book, self._weights)

  def _empty_book(self) -> SlotTable:
    c = self._config
    return SlotTable(self._num_slots, c.context, reuse=c.reuse)


def _padded_to(row: np.ndarray, size: int) -> np.ndarray:
  padded = np.zeros(size, row.dtype)
  padded[: len(row)] = row
  return padded
