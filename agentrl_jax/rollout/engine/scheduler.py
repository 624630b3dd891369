"""The scheduler of one policy slot: gives slots to requests, launches work.

It owns the `SlotTable` on the host, and the `KVCacheManager` and `Decoder` on
the device. Each `step`, in this order:

- adapts to a swap of the weights;
- gives free slots to waiting requests, and launches their cache copies;
- prefills a bounded number of prompt tokens, so that decoding does not stall;
- launches decode calls for all slots that can decode.

`read` stores the tokens of an earlier step. Not thread-safe: the engine calls
both under its lock.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from agentrl_jax.model.policy import Policy
from agentrl_jax.model.sharding import only_device
from agentrl_jax.rollout.api import Completion, EngineConfig, Request
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.cache.kv_cache import (
  FREE,
  KVCacheManager,
  SlotTable,
  padded,
)
from agentrl_jax.rollout.engine.decoder import (
  DecodeCall,
  Decoder,
  Published,
  WeightVersions,
)


class Scheduler:
  """Schedules the requests of one policy slot."""

  def __init__(
    self,
    policy_slot: int,
    policy: Policy,
    config: EngineConfig,
    sharding: jax.sharding.Sharding | None = None,
    *,
    cancel: Callable[[Request], None],
  ):
    """`cancel` is called for requests whose grammar raises."""
    self._policy_slot, self._policy, self._config = policy_slot, policy, config
    self._num_slots = num_slots = config.slots[policy_slot]
    self._prefill_sizes = config.slot_sizes(
      min(num_slots, config.prefill_slots)
    )
    self.counts: collections.Counter[str] = collections.Counter()
    self.wait_s = 0.0  # of all requests, from their arrival to their slots
    self._cache = self._make_cache(only_device(policy.mesh) or sharding)
    self._weights = WeightVersions(config.old_weights)
    self._decoder = Decoder(policy_slot, policy, config, self._cache, cancel)
    self._table = self._empty_table()
    # Behavior and raw log-probability (as bits) and version of sampled tokens.
    self._sampled = np.zeros((num_slots, config.context, 3), np.int32)
    self._waiting: collections.deque[Request] = collections.deque()

  def reset(self) -> None:
    """Restores the initial state of all slots; none may have a request."""
    self._table = self._empty_table()
    self._cache.reset()
    self._decoder.reset()

  def check(self) -> None:
    """Raises `AssertionError` if a slot or a cached block was lost."""
    self._cache.check()
    self._table.check()
    self._decoder.check(self._table)

  @property
  def cache_length(self) -> int:
    """Tokens that each slot has room for now, or in the last call."""
    return self._cache.length

  @property
  def num_busy(self) -> int:
    """Slots that have a request."""
    return self._table.num_busy

  @property
  def num_waiting(self) -> int:
    """Requests that wait for a slot."""
    return len(self._waiting)

  def admit(self, request: Request) -> None:
    """Adds a request; it gets a slot in one of the next steps."""
    self._waiting.append(request)

  def cancel(self, request: Request) -> bool:
    """Frees the slot of a request; returns False if it had left already."""
    if request in self._waiting:
      self._waiting.remove(request)
      return True
    slots = np.flatnonzero(self._table.serial == request.serial)
    for slot in slots.tolist():
      self._free(slot)
    self._release_weights_if_idle()
    return bool(slots.size)

  def step(self, published: Published) -> list[DecodeCall]:
    """Launches the next piece of work; returns its decode calls."""
    table, publication = self._table, published.publication
    self._set_weights(published)
    self._schedule_waiting(publication)
    self.counts["slot_steps"] += table.num_busy
    self._fit_cache(publication)
    self._prefill()
    return self._decode()

  def read(self, call: DecodeCall) -> list[tuple[Request, Completion]]:
    """Stores the tokens of a call, whose arrays have to be on the host.

    Returns the requests that are finished, with their answers. Rows of requests
    that have left their slot meanwhile are dropped.
    """
    record = np.asarray(call.record)
    assignment = np.append(self._table.assignment, FREE)[call.slot]
    is_current = (assignment == call.assignment) & (assignment != FREE)
    active = (record[:, :, programs.ACTIVE] > 0) & is_current
    self._count_drafts(call, active)
    launched = is_current & call.is_launched
    self._table.give_back(
      call.slot[launched], call.num_tokens - active.sum(axis=0)[launched]
    )
    self._store_tokens(record[active], call.slot[np.nonzero(active)[1]])
    done = (record[:, :, programs.DONE] > 0) & active
    ended = call.slot[done.any(axis=0)].tolist()
    experts = {slot: self._experts(slot) for slot in ended}
    self._stream(call.slot[active.any(axis=0)], experts)
    self._advance_grammars(record, call.slot, active & ~done)
    finished = [self._finish(slot, experts[slot]) for slot in ended]
    self._release_weights_if_idle()
    return finished

  def _count_drafts(self, call: DecodeCall, active_NP: np.ndarray) -> None:
    """Counts the draft tokens of a call; each step samples one token more."""
    if call.drafted is None:
      return
    drafted = call.drafted
    active = active_NP.reshape(len(drafted), -1, active_NP.shape[1])
    is_step = active.any(axis=1)
    self.counts["drafted"] += int(drafted[is_step].sum())
    self.counts["accepted"] += int(active.sum() - is_step.sum())

  def _set_weights(self, published: Published) -> None:
    """Adapts slots and cache to a swap of the weights, if there was one."""
    table, publication = self._table, published.publication
    self._weights.set_weights(published, table.decoding_publications())
    table.set_weights(publication, self._weights.publications)
    self._cache.set_weights(publication)

  def _schedule_waiting(self, publication: int) -> None:
    """Gives slots to waiting requests, in order of arrival."""
    postponed: collections.deque[Request] = collections.deque()
    while self._waiting and not self._table.is_full:
      request = self._waiting.popleft()
      if not self._allocate(request, publication):
        postponed.append(request)
    self._waiting.extendleft(reversed(postponed))
    self._copy_cached(publication)

  def _allocate(self, request: Request, publication: int) -> bool:
    """Returns whether a request got a slot; only plans its cache copies."""
    table, cache = self._table, self._cache
    match = cache.match_prefix(request.prompt[: request.prefill_length])
    allocation = table.allocate(
      request, publication, self._config.min_copied_tokens, match.size
    )
    if allocation is None:
      return False
    overwritten = table.overwritten_tokens(allocation, publication)
    if cache.must_copy_first(allocation, match, overwritten):
      self._copy_cached(publication)
      return self._allocate(request, publication)
    num_reused = cache.plan(allocation, match, overwritten)
    allocation = dataclasses.replace(allocation, num_reused=num_reused)
    table.assign(request, allocation, publication)
    self._count_scheduled(request)
    return True

  def _count_scheduled(self, request: Request) -> None:
    self.counts["scheduled"] += 1
    self.wait_s += time.monotonic() - request.arrived_at

  def _copy_cached(self, publication: int) -> None:
    """Launches planned copies; slots that lose theirs prefill everything."""
    for slot in self._cache.copy(self._cache_length_needed(publication)):
      self._table.restart_prefill(slot)

  def _fit_cache(self, publication: int) -> None:
    self._cache.fit(self._cache_length_needed(publication))

  def _cache_length_needed(self, publication: int) -> int:
    return self._table.cache_length_needed(
      publication, self._config.tokens_per_call
    )

  def _prefill(self) -> None:
    """Prefills in chunks, until prompts or the budget of the step end."""
    table, budget = self._table, self._config.prefill_tokens
    while budget > 0 and (prefilling := table.prefilling()).size:
      publication = table.publication[prefilling]
      slots = prefilling[publication == publication[0]]
      slots = slots[: self._config.prefill_slots]
      start = table.num_computed[slots]
      missing = table.prefill_length[slots] - start
      chunk = self._config.prefill_chunk(int(missing.max()))
      length = np.minimum(missing, chunk)
      slot_P = padded(slots, self._prefill_sizes, self._num_slots)
      token_PC = np.zeros((len(slot_P), chunk), np.int32)
      for row, (slot, size) in enumerate(zip(slots, length, strict=True)):
        token_PC[row, :size] = table.tokens[slot, start[row] :][:size]
      self._cache.arrays = programs.prefill(
        self._policy,
        self._weights.get(int(publication[0])).params,
        self._cache.arrays,
        token_PC,
        padded(start, (len(slot_P),), 0),
        padded(length, (len(slot_P),), 0),
        slot_P,
        self._cache.table_of(slot_P),
      )
      table.num_computed[slots] += length
      self.counts["prefilled"] += int(length.sum())
      budget -= token_PC.size
      self._finish_prefill(
        slots[table.num_computed[slots] == table.prefill_length[slots]]
      )

  def _finish_prefill(self, slots: np.ndarray) -> None:
    """Does nothing: rows of slots are found by their tokens."""

  def _decode(self) -> list[DecodeCall]:
    table = self._table
    slots = table.decodable()
    for slot in slots[~table.is_decoding[slots]].tolist():
      self._start(slot)
    return self._decoder.decode(table, self._weights)

  def _start(self, slot: int) -> None:
    """Lets a slot decode whose prompt is prefilled."""
    self._decoder.start(slot, self._request_of(slot))
    self._table.is_decoding[slot] = True

  def _store_tokens(self, row_NR: np.ndarray, slot_N: np.ndarray) -> None:
    """Stores records, earliest first, under their slots."""
    table, count_N = self._table, row_NR[:, programs.COUNT]
    position_N = table.prompt_length[slot_N] - 1 + count_N
    table.tokens[slot_N, position_N] = row_NR[:, programs.TOKEN]
    # The next step computes the last sampled token, so it is not cached yet.
    # Records are in order, and of equal indices the last assignment stays.
    table.num_computed[slot_N] = position_N
    size = len(programs.RECORD)
    self._sampled[slot_N, count_N - 1] = row_NR[:, programs.BEHAVIOR : size]
    if row_NR.shape[1] > size:
      self._decoder.shaping.add_alternatives(slot_N, count_N, row_NR[:, size:])
    is_constrained_N = self._decoder.masks.is_constrained[slot_N]
    self.counts["sampled"] += len(row_NR)
    self.counts["constrained"] += int(is_constrained_N.sum())

  def _advance_grammars(
    self, record: np.ndarray, slot_P: np.ndarray, unfinished: np.ndarray
  ) -> None:
    """Advances the grammars of slots that go on by their sampled tokens."""
    masks = self._decoder.masks
    is_constrained_P = np.append(masks.is_constrained, False)[slot_P]
    for n, p in zip(*np.nonzero(unfinished & is_constrained_P), strict=True):
      slot, token = int(slot_P[p]), int(record[n, p, programs.TOKEN])
      masks.advance(slot, self._request_of(slot), token)

  def _stream(
    self, slots: np.ndarray, experts: Mapping[int, np.ndarray | None]
  ) -> None:
    """Calls the listeners of slots with their new tokens."""
    for slot in slots.tolist():
      request = self._request_of(slot)
      if request.listener is not None:
        begin, ended = request.num_streamed, experts.get(slot)
        request.listener(self._answer(slot, request, begin, ended))
        request.num_streamed = self._num_sampled(slot, request)

  def _experts(self, slot: int) -> np.ndarray | None:
    """Returns the experts of a slot's computed tokens, if they are kept.

    Waits for the calls that were launched before.
    """
    if not self._config.router_replay:
      return None
    slot_1 = np.array([slot], np.int32)
    expert_SLK = programs.read_experts(
      self._cache.arrays, slot_1[0], self._cache.table_of(slot_1)
    )
    return np.asarray(expert_SLK)[: self._table.num_computed[slot]].copy()

  def _answer(
    self,
    slot: int,
    request: Request,
    begin: int,
    experts: np.ndarray | None = None,
  ) -> Completion:
    """Returns the tokens sampled for a request, from number `begin` on."""
    end = self._num_sampled(slot, request)
    prompt_size = len(request.prompt)
    behavior, raw, version = self._sampled[slot, begin:end].T.copy()
    return Completion(
      sampled=self._table.tokens[
        slot, prompt_size + begin : prompt_size + end
      ].copy(),
      behavior_logprob=behavior.view(np.float32),
      raw_logprob=raw.view(np.float32),
      version=version,
      policy_slot=self._policy_slot,
      num_reused=request.num_reused,
      experts=experts,
      **self._decoder.shaping.alternatives(slot, request, begin, end),
    )

  def _num_sampled(self, slot: int, request: Request) -> int:
    return int(self._table.num_computed[slot]) + 1 - len(request.prompt)

  def _finish(
    self, slot: int, experts: np.ndarray | None
  ) -> tuple[Request, Completion]:
    request = self._request_of(slot)
    answer = self._answer(slot, request, 0, experts)
    self.counts["reused"] += request.num_reused
    self._free(slot)
    return request, answer

  def _request_of(self, slot: int) -> Request:
    request = self._table.request[slot]
    assert request is not None, f"slot {slot} has no request"
    return request

  def _free(self, slot: int) -> None:
    self._table.free(slot)
    self._decoder.free(slot)

  def _release_weights_if_idle(self) -> None:
    """Drops references to weights, so that an idle engine keeps none alive."""
    if not self._table.num_busy and not self._waiting:
      self._weights.clear()

  def _make_cache(self, sharding: jax.sharding.Sharding | None) -> Any:
    return KVCacheManager(
      self._policy, self._config, self._num_slots, self.counts, sharding
    )

  def _empty_table(self) -> SlotTable:
    c = self._config
    return SlotTable(self._num_slots, c.context, reuse=c.reuse)
