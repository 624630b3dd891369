"""The lanes of one version slot: who sits where, and what runs next.

A block owns the slot's cache and lane state on the device, and its `LaneBook`
on the host. One call of `step` drops what was cancelled, seats who waits,
feeds a bounded number of prompt tokens and launches a few decode steps;
`read` takes in the tokens of an earlier `step`. Neither is thread-safe: the
engine's lock is around both.
"""

import collections
import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout import programs
from agentrl_jax.rollout.client import MAX_STOPS, Answer
from agentrl_jax.rollout.lane_book import LaneBook, Seat
from agentrl_jax.rollout.requests import Request
from agentrl_jax.rollout.settings import EngineConfig
from agentrl_jax.rollout.versions import Published

_STEPS_UNTIL_SHRINKING = 200
_NO_STOP = -1  # no token has this id
_NOBODY = -1  # serial of a row that is padding


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
  """The tokens of one slot's step, which may still be on their way."""

  slot: int
  record: jax.Array  # int32 [num_steps, P, len(RECORD)]
  lane: np.ndarray  # [P]; entries past the last lane are padding
  serial: np.ndarray  # [P], of the request that each row belongs to


class LaneBlock:
  """Lanes that share one version's weights."""

  def __init__(
    self,
    slot: int,
    policy: Policy,
    config: EngineConfig,
    sharding: jax.sharding.Sharding | None = None,
  ):
    self._slot, self._policy, self._config = slot, policy, config
    self._num_lanes = num_lanes = config.lanes[slot]
    self._sizes = config.lane_sizes(num_lanes)
    self._prefill_sizes = config.lane_sizes(
      min(num_lanes, config.prefill_lanes)
    )
    self.length = config.length(1)  # of the cache now, in tokens
    self._roomy = 0  # steps since a shorter cache would not have done
    self._cache = policy.empty_cache(num_lanes, self.length)
    if sharding is not None:
      self._cache = jax.device_put(self._cache, sharding)
    self._state = programs.empty_state(num_lanes)
    self._patch = np.zeros((num_lanes, len(programs.STATE)), np.int32)
    self._patched = np.zeros(num_lanes, bool)
    self._book = LaneBook(num_lanes, config.context)
    self._answer = np.zeros((num_lanes, config.context, 3), np.int32)
    self._pending: collections.deque[Request] = collections.deque()
    self._copies: dict[int, Seat] = {}  # by target lane
    self.counts: collections.Counter[str] = collections.Counter()

  def forget(self) -> None:
    """Leaves every lane as new; none may be busy."""
    self._book = LaneBook(self._num_lanes, self._config.context)
    self._roomy = 0
    if self.length != self._config.length(1):
      self.length = self._config.length(1)
      self._cache = programs.resize(self._cache, num_slots=self.length)

  @property
  def num_busy(self) -> int:
    """Lanes that a request owns."""
    return self._book.num_busy

  @property
  def num_pending(self) -> int:
    """Requests that wait for a lane."""
    return len(self._pending)

  def admit(self, request: Request) -> None:
    """Takes a request in; it gets a lane in one of the next steps."""
    self._pending.append(request)

  def cancel(self, request: Request) -> bool:
    """Frees what a request has; False if it had left already."""
    if request in self._pending:
      self._pending.remove(request)
      return True
    lanes = np.flatnonzero(self._book.serial == request.serial)
    for lane in lanes:
      self._book.leave(lane)
      self._patch[lane] = 0
      self._patched[lane] = True
    return bool(lanes.size)

  def step(self, published: Published) -> Part | None:
    """Launches the next piece of work; None if there are no tokens to read."""
    self._book.restart_stale(published.edition)
    self._seat(published.edition)
    self._fit(published.edition)
    self._prefill(published)
    return self._decode(published)

  def read(self, part: Part) -> list[tuple[Request, Answer]]:
    """Waits for nothing: `part.record` is a host array by now."""
    record = np.asarray(part.record)
    serial = np.append(self._book.serial, _NOBODY)[part.lane]
    owned = (serial == part.serial) & (serial != _NOBODY)
    active = (record[:, :, programs.ACTIVE] > 0) & owned
    self._take_in(record[active], part.lane[np.nonzero(active)[1]])
    self._tell(part.lane[active.any(axis=0)])
    done = (record[:, :, programs.DONE] > 0) & active
    return [self._finish(int(lane)) for lane in part.lane[done.any(axis=0)]]

  def _take_in(self, row: np.ndarray, lane: np.ndarray) -> None:
    """Stores the records of tokens, earliest first, under their lanes."""
    book, count = self._book, row[:, programs.COUNT]
    position = book.target[lane] + count
    book.token[lane, position] = row[:, programs.TOKEN]
    # The last token sampled is fed by the next step: it is not held yet.
    # Steps come in order, and of equal indices the last assignment stays.
    book.held[lane] = position
    self._answer[lane, count - 1] = row[:, programs.BEHAVIOR :]
    self.counts["sampled"] += len(row)

  def _tell(self, lanes: np.ndarray) -> None:
    """Lets those who listen know what their lanes have sampled."""
    for lane in map(int, lanes):
      request = self._book.owner[lane]
      if request is not None and request.listener is not None:
        request.listener(self._sampled(lane, request, request.num_told))
        request.num_told = int(self._book.held[lane]) + 1 - len(request.prompt)

  def _sampled(self, lane: int, request: Request, begin: int) -> Answer:
    """What a lane has sampled for its request, from a token on."""
    end = int(self._book.held[lane]) + 1
    token = self._book.token[lane, len(request.prompt) : end]
    behavior, raw, step = self._answer[lane, begin : len(token)].T.copy()
    return Answer(
      sampled=token[begin:].copy(),
      behavior_logprob=behavior.view(np.float32),
      raw_logprob=raw.view(np.float32),
      version=step,
      slot=self._slot,
      num_reused=request.num_reused,
    )

  def _finish(self, lane: int) -> tuple[Request, Answer]:
    request = self._book.owner[lane]
    assert request is not None, f"lane {lane} finished for nobody"
    answer = self._sampled(lane, request, 0)
    self.counts["reused"] += request.num_reused
    self._book.leave(lane)
    return request, answer

  def _seat(self, edition: int) -> None:
    """Gives lanes to those who wait, in order, as far as there are any."""
    waits: collections.deque[Request] = collections.deque()
    while self._pending and not self._book.is_full:
      request = self._pending.popleft()
      seat = self._book.find_seat(
        request, edition, self._config.prefill_chunks[0]
      )
      if seat is None:
        waits.append(request)
        continue
      if seat.source in self._copies:
        self._copy()
      if seat.reused and seat.source != seat.lane:
        self._copies[seat.lane] = seat
        self.counts["copied"] += seat.reused
      self._book.sit(request, seat, edition)
    self._pending.extendleft(reversed(waits))
    self._copy()

  def _copy(self) -> None:
    """Copies what seats found in other lanes; all are read before any write."""
    if not self._copies:
      return
    seats = list(self._copies.values())
    self._copies.clear()
    self._cache = programs.copy(
      self._cache,
      self._padded([seat.source for seat in seats], self._sizes),
      self._padded([seat.lane for seat in seats], self._sizes),
    )

  def _fit(self, edition: int) -> None:
    """Makes the cache as long as what it holds, and is about to, needs.

    It grows at once and shrinks when that would have done for a while.
    """
    num_tokens = self._book.num_slots_needed(
      edition, self._config.steps_per_sync
    )
    length = self._config.length(num_tokens)
    self._roomy = self._roomy + 1 if length < self.length else 0
    if length > self.length or self._roomy > _STEPS_UNTIL_SHRINKING:
      self._cache = programs.resize(self._cache, num_slots=length)
      self.length, self._roomy = length, 0

  def _prefill(self, published: Published) -> None:
    """Feeds prompts in chunks, until they are fed or the step's share is."""
    book, left = self._book, self._config.prefill_tokens
    while left > 0 and (unfilled := book.unfilled()).size:
      lane = unfilled[: self._config.prefill_lanes]
      missing = book.target[lane] - book.held[lane]
      chunk = self._config.prefill_chunk(int(missing.max()))
      length = np.minimum(missing, chunk)
      lane_P = self._padded(lane, self._prefill_sizes)
      token_PC = np.zeros((len(lane_P), chunk), np.int32)
      for row, (b, size) in enumerate(zip(lane, length, strict=True)):
        token_PC[row, :size] = book.token[b, book.held[b] :][:size]
      self._cache = programs.prefill(
        self._policy,
        published.params,
        self._cache,
        token_PC,
        _padded_to(book.held[lane], len(lane_P)),
        _padded_to(length, len(lane_P)),
        lane_P,
      )
      book.held[lane] += length
      self.counts["prefilled"] += int(length.sum())
      left -= token_PC.size

  def _decode(self, published: Published) -> Part | None:
    lane = self._book.filled()
    if not lane.size:
      return None
    for begins in lane[~self._book.decoding[lane]]:
      self._begin(begins)
    reach = self._book.reach[lane] + self._config.steps_per_sync
    self._book.reach[lane] = np.minimum(reach, self._book.end[lane])
    size = self._config.decode_size(self._num_lanes, len(lane))
    whole = size == self._num_lanes
    lane_P = np.arange(size) if whole else self._padded(lane, (size,))
    self._cache, self._state, record = programs.decode(
      self._policy,
      published.params,
      self._cache,
      self._state,
      self._patch.copy(),
      self._patched.copy(),
      None if whole else lane_P,
      np.int32(published.step),
      num_steps=self._config.steps_per_sync,
    )
    self._patched[:] = False
    serial = np.append(self._book.serial, _NOBODY)[lane_P]
    return Part(self._slot, record, lane_P, serial)

  def _begin(self, lane: int) -> None:
    """Sets the lane's state on the device, with the next decode step."""
    request = self._book.owner[lane]
    assert request is not None, f"lane {lane} is filled for nobody"
    spec = request.spec
    seed = spec.seed % 2**64
    self._patch[lane] = np.array(
      [
        request.prompt[-1],
        request.num_prefilled,
        0,
        spec.max_tokens,
        1,
        programs.float_bits(spec.temperature),
        spec.top_k,
        programs.float_bits(spec.top_p),
        programs.float_bits(spec.min_p),
        *spec.stop_tokens,
        *[_NO_STOP] * (MAX_STOPS - len(spec.stop_tokens)),
        np.uint32(seed >> 32).view(np.int32),
        np.uint32(seed % 2**32).view(np.int32),
      ],
      np.int32,
    )
    self._patched[lane] = True
    self._book.decoding[lane] = True

  def _padded(
    self, lanes: Sequence[int] | np.ndarray, sizes: tuple[int, ...]
  ) -> np.ndarray:
    """Lanes in a compiled size; padding names a lane that does not exist."""
    size = next(size for size in sizes if size >= len(lanes))
    padded = np.full(size, self._num_lanes, np.int32)
    padded[: len(lanes)] = lanes
    return padded


def _padded_to(row: np.ndarray, size: int) -> np.ndarray:
  padded = np.zeros(size, row.dtype)
  padded[: len(row)] = row
  return padded
