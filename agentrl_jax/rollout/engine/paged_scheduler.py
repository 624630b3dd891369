"""The scheduler of a policy slot whose KV cache is a pool of pages.

Invariants:

- A request enters when the pages of its prompt are free, and one more for each
  running request. Requests enter in the order of their arrival.
- Before a call is launched, each of its slots has pages for all tokens that it
  may sample. If there are too few, the youngest request is preempted: it gives
  up its slot and pages, keeps what it has sampled, and waits again, before
  those that came after it. Its tokens are prefilled when it enters again, and
  it goes on with the same tokens, since their keys depend on seed and position.
- The oldest request is never preempted for another one, and no request is
  larger than the pool (`RolloutEngine.check`). So the oldest one always ends.
"""

import jax
import numpy as np

from agentrl_jax.rollout.api import Request, Sampled
from agentrl_jax.rollout.engine.cache.kv_cache import FREE, Allocation
from agentrl_jax.rollout.engine.cache.paged_cache import PagedCache
from agentrl_jax.rollout.engine.decoder import DecodeCall, Published
from agentrl_jax.rollout.engine.scheduler import Scheduler


class PagedScheduler(Scheduler):
  """Schedules the requests of one policy slot, in pages."""

  _cache: PagedCache

  def check(self) -> None:
    """Raises `AssertionError` if a slot or a page was lost."""
    self._table.check()
    self._cache.check(self._table)
    self._decoder.check(self._table)

  def _make_cache(self, sharding: jax.sharding.Sharding | None) -> PagedCache:
    return PagedCache(
      self._policy, self._config, self._policy_slot, self.counts, sharding
    )

  def _set_weights(self, published: Published) -> None:
    """Adapts to a swap: what is not decoding yet starts again.

    A preempted answer goes on with the weights that it started with, as long as
    those are kept.
    """
    table, publication = self._table, published.publication
    prefilling = (table.serial != FREE) & ~table.is_decoding
    slots = table.oldest_first(np.flatnonzero(prefilling))[::-1].tolist()
    entering = [self._request_of(slot) for slot in slots]
    needed = table.decoding_publications() | {
      request.sampled.publication
      for request in (*entering, *self._waiting)
      if request.sampled is not None
    }
    self._weights.set_weights(published, needed)
    kept = self._weights.publications
    for slot, request in zip(slots, entering, strict=True):
      is_kept = request.sampled is not None and table.publication[slot] in kept
      if table.publication[slot] != publication and not is_kept:
        self._requeue(slot)
    table.mix(publication, kept)
    self._cache.set_weights(publication)

  def _schedule_waiting(self, publication: int) -> None:
    """Gives slots and pages to waiting requests, in order of arrival.

    Stops at the first one that there are too few pages for: later ones would
    take what it waits for.
    """
    postponed = []
    while self._waiting and not self._table.is_full:
      request = self._waiting[0]
      if not self._is_coming(request, publication):
        if not self._allocate(request, publication):
          break
      else:
        postponed.append(request)
      self._waiting.popleft()
    self._waiting.extendleft(reversed(postponed))
    self._cache.copy()

  def _is_coming(self, request: Request, publication: int) -> bool:
    """Returns whether a slot prefills much of a request's prompt right now."""
    if self._publication_of(request, publication) != publication:
      return False
    coming = self._table.num_coming(request, publication)
    if coming < self._config.min_copied_tokens:
      return False
    cached = self._cache.num_cached(request.tokens[: request.prefill_length])
    return coming >= cached + self._config.min_copied_tokens

  def _allocate(self, request: Request, publication: int) -> bool:
    """Returns whether a request got a slot and pages; only plans copies."""
    table, is_first = self._table, request.sampled is None
    own = self._publication_of(request, publication)
    size = request.prefill_length if own == publication else 0
    slot = table.least_recent()
    num_reused = self._cache.allocate(
      slot,
      request.tokens[:size],
      min(
        request.prefill_length + self._config.tokens_per_call,
        request.max_length,
      ),
      table.num_busy,
    )
    if num_reused is None:
      return False
    table.assign(request, Allocation(slot, num_reused, slot), own)
    if is_first:
      self._count_scheduled(request)
    return True

  def _publication_of(self, request: Request, newest: int) -> int:
    """Returns the publication of the weights that answer a request."""
    if request.sampled is None:
      return newest
    own = request.sampled.publication
    return own if own in self._weights.publications else newest

  def _fit_cache(self, publication: int) -> None:
    """Does nothing: each call has a page table of its own length."""
    del publication

  def _finish_prefill(self, slots: np.ndarray) -> None:
    """Lets other requests use the pages of prompts."""
    for slot in slots.tolist():
      self._keep(slot)

  def _decode(self) -> list[DecodeCall]:
    table = self._table
    needed = table.num_tokens_after(self._config.tokens_per_call)
    for slot in table.oldest_first(table.decodable()).tolist():
      while (
        table.serial[slot] != FREE  # it may have been preempted for another
        and not self._cache.reserve(slot, int(needed[slot]))
      ):
        self._preempt_youngest()
    return super()._decode()

  def _preempt_youngest(self) -> None:
    busy = np.flatnonzero(self._table.serial != FREE)
    assert len(busy) > 1, "a request that is alone has room in the pool"
    slot = int(self._table.oldest_first(busy)[-1])
    self.counts["preempted"] += 1
    self._requeue(slot)

  def _requeue(self, slot: int) -> None:
    """Takes slot and pages from a request, which keeps what it has sampled."""
    request = self._request_of(slot)
    if self._table.is_decoding[slot] and self._num_sampled(slot, request):
      request.sampled = self._sampled_by(slot, request)
    self._free(slot)
    place = sum(other.serial < request.serial for other in self._waiting)
    self._waiting.insert(place, request)

  def _sampled_by(self, slot: int, request: Request) -> Sampled:
    begin, number = len(request.prompt), self._num_sampled(slot, request)
    return Sampled(
      self._table.tokens[slot, begin : begin + number].copy(),
      self._sampled[slot, :number].copy(),
      self._decoder.shaping.rows(slot, number),
      int(self._table.publication[slot]),
    )

  def _start(self, slot: int) -> None:
    """Lets a slot decode, with what its request has sampled before."""
    request = self._request_of(slot)
    if request.sampled is not None:
      self._sampled[slot, : request.num_sampled] = request.sampled.row_N3
    super()._start(slot)

  def _free(self, slot: int) -> None:
    self._keep(slot)
    self._cache.free(slot)
    super()._free(slot)
    self._table.forget(slot)

  def _keep(self, slot: int) -> None:
    """Lets other requests use the pages of what a slot has computed."""
    table = self._table
    self._cache.keep(
      slot,
      table.tokens[slot, : table.num_computed[slot]],
      int(table.publication[slot]),
    )
