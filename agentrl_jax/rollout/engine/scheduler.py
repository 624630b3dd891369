"""The scheduler of one policy slot: gives slots to requests, launches work.

It owns the `SlotTable` on the host, and the `KVCacheManager` and `Decoder` on
the device. Each `step`, in this order:

- adapts to a swap of the weights;
- gives free slots and pages to waiting requests, and launches copies of pages;
- prefills a bounded number of prompt tokens, so that decoding does not stall;
- launches decode calls for all slots that can decode.

`read` stores the tokens of an earlier step. Not thread-safe: the engine calls
both under its lock. Invariants:

- A request enters when the pages of its prompt are free, and one more for each
  running request that may grow. Requests enter in the order of their arrival.
- Before a call is launched, each of its slots has pages for all tokens that it
  may sample. If there are too few, the youngest request is preempted: it gives
  up its slot and pages, keeps what it has sampled, and waits again, before
  those that came after it. Its tokens are prefilled when it enters again, and
  it goes on with the same tokens, since their keys depend on seed and position.
- The oldest request is never preempted for another one, and no request is
  larger than the pool (`RolloutEngine.check`). So the oldest one always ends.
"""

import collections
import time
from collections.abc import Callable, Mapping

import jax
import numpy as np

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import Completion, EngineConfig, Request, Sampled
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.cache.kv_cache import KVCacheManager
from agentrl_jax.rollout.engine.cache.slot_table import FREE, SlotTable, padded
from agentrl_jax.rollout.engine.decoder import DecodeCall, Decoder, Published
from agentrl_jax.rollout.engine.placement import only_device


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
    self._cache = KVCacheManager(
      policy,
      config,
      policy_slot,
      self.counts,
      only_device(policy.mesh) or sharding,
    )
    self._decoder = Decoder(policy_slot, policy, config, self._cache, cancel)
    self._table = SlotTable(num_slots, config.context)
    # Behavior and raw log-probability (as bits) and version of sampled tokens.
    self._sampled = np.zeros((num_slots, config.context, 3), np.int32)
    self._waiting: collections.deque[Request] = collections.deque()

  def reset(self) -> None:
    """Restores the initial state of all slots; none may have a request."""
    self._table = SlotTable(self._num_slots, self._config.context)
    self._cache.reset()
    self._decoder.reset()

  def check(self) -> None:
    """Raises `AssertionError` if a slot or a page was lost."""
    self._table.check()
    self._cache.check(self._table)
    self._decoder.check(self._table)

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
    return bool(slots.size)

  def step(self, published: Published) -> list[DecodeCall]:
    """Launches the next piece of work; returns its decode calls."""
    if published.publication != self._cache.publication:
      self._swap_weights(published.publication)
    self._schedule_waiting()
    self.counts["slot_steps"] += self._table.num_busy
    self._prefill(published)
    return self._decode(published)

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
    self._table.give_back(
      call.slot[is_current], call.num_tokens - active.sum(axis=0)[is_current]
    )
    self._store_tokens(record[active], call.slot[np.nonzero(active)[1]])
    done = (record[:, :, programs.DONE] > 0) & active
    ended = call.slot[done.any(axis=0)].tolist()
    experts = {slot: self._experts(slot) for slot in ended}
    self._stream(call.slot[active.any(axis=0)], experts)
    self._advance_grammars(record, call.slot, active & ~done)
    return [self._finish(slot, experts[slot]) for slot in ended]

  def _count_drafts(self, call: DecodeCall, active_NP: np.ndarray) -> None:
    """Counts the draft tokens of a call; each step samples one token more."""
    if call.drafted is None:
      return
    drafted = call.drafted
    active = active_NP.reshape(len(drafted), -1, active_NP.shape[1])
    is_step = active.any(axis=1)
    self.counts["drafted"] += int(drafted[is_step].sum())
    self.counts["accepted"] += int(active.sum() - is_step.sum())

  def _swap_weights(self, publication: int) -> None:
    """Decoding slots go on with the new weights; others start again."""
    table = self._table
    prefilling = np.flatnonzero((table.serial != FREE) & ~table.is_decoding)
    for slot in prefilling.tolist():
      self._requeue(slot)
    table.is_mixed[:] = True
    self._cache.set_weights(publication)

  def _schedule_waiting(self) -> None:
    """Gives slots and pages to waiting requests, in order of arrival.

    Stops at the first one that there are too few pages for: later ones would
    take what it waits for.
    """
    self._cache.copy_states()  # of sequences that others may begin from
    postponed = []
    while self._waiting and not self._table.is_full:
      request = self._waiting[0]
      if self._is_coming(request):
        postponed.append(request)
      elif not self._allocate(request):
        break
      self._waiting.popleft()
    self._waiting.extendleft(reversed(postponed))
    self._cache.copy()

  def _is_coming(self, request: Request) -> bool:
    """Returns whether a slot prefills much of a request's prompt right now."""
    # A state is shared after a whole prompt.
    coming = self._table.num_coming(request, whole=self._cache.has_states)
    if coming < self._config.min_copied_tokens:
      return False
    cached = self._cache.num_cached(request.tokens[: request.prefill_length])
    return coming >= cached + self._config.min_copied_tokens

  def _allocate(self, request: Request) -> bool:
    """Returns whether a request got a slot and pages; only plans copies."""
    table, size = self._table, request.prefill_length
    slot = table.free_slot()
    num_reused = self._cache.allocate(
      slot,
      request.tokens[:size],
      min(size + self._config.tokens_per_call, request.max_length),
      self._cache.num_growing(table),
    )
    if num_reused is None:
      return False
    table.assign(slot, request, num_reused)
    if request.sampled is None:
      self.counts["scheduled"] += 1
      self.wait_s += time.monotonic() - request.arrived_at
    return True

  def _prefill(self, published: Published) -> None:
    """Prefills in chunks, until prompts or the budget of the step end."""
    table, budget = self._table, self._config.prefill_tokens
    while budget > 0 and (prefilling := table.prefilling()).size:
      slots = prefilling[: self._config.prefill_slots]
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
        published.params,
        self._cache.arrays,
        token_PC,
        padded(start, (len(slot_P),), 0),
        padded(length, (len(slot_P),), 0),
        self._cache.table_of(slot_P),
        self._cache.states_of(slot_P),
      )
      table.num_computed[slots] += length
      self.counts["prefilled"] += int(length.sum())
      budget -= token_PC.size
      for slot in slots.tolist():
        if table.num_computed[slot] == table.prefill_length[slot]:
          self._keep(slot, is_exact=True)
    self._cache.copy_states()  # before they are written

  def _decode(self, published: Published) -> list[DecodeCall]:
    table = self._table
    needed = table.num_tokens_after(self._config.tokens_per_call)
    for slot in table.oldest_first(table.decodable()).tolist():
      while (
        table.serial[slot] != FREE  # it may have been preempted for another
        and not self._cache.reserve(slot, int(needed[slot]))
      ):
        self._preempt_youngest()
    slots = table.decodable()
    for slot in slots[~table.is_decoding[slots]].tolist():
      self._start(slot)
    return self._decoder.decode(table, published)

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
    )

  def _start(self, slot: int) -> None:
    """Lets a slot decode, with what its request has sampled before."""
    request = self._request_of(slot)
    if request.sampled is not None:
      self._sampled[slot, : request.num_sampled] = request.sampled.row_N3
    self._decoder.start(slot, request)
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
      self._cache.arrays, self._cache.table_of(slot_1)
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
    self._free(slot, is_exact=True)
    return request, answer

  def _request_of(self, slot: int) -> Request:
    request = self._table.request[slot]
    assert request is not None, f"slot {slot} has no request"
    return request

  def _free(self, slot: int, *, is_exact: bool = False) -> None:
    """Frees a slot; `is_exact` if no launched step computes more tokens."""
    self._keep(slot, is_exact=is_exact)
    self._cache.free(slot)
    self._table.free(slot)
    self._decoder.free(slot)

  def _keep(self, slot: int, *, is_exact: bool) -> None:
    """Lets other requests use the pages of what a slot has computed."""
    table = self._table
    if not table.is_mixed[slot]:
      tokens = table.tokens[slot, : table.num_computed[slot]]
      self._cache.keep(slot, tokens, is_exact=is_exact)
