"""The lanes of one version slot: who sits where, and what runs next.

A block owns the slot's `LaneCache` and lane state on the device, and its
`LaneBook` on the host. One call of `step` drops what was cancelled, seats who
waits, feeds a bounded number of prompt tokens and launches a few decode steps;
`read` takes in the tokens of an earlier `step`. Neither is thread-safe: the
engine's lock is around both.
"""

import collections
import dataclasses

import jax
import numpy as np

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout import programs
from agentrl_jax.rollout.client import Answer
from agentrl_jax.rollout.in_flight import InFlight
from agentrl_jax.rollout.lane_book import LaneBook
from agentrl_jax.rollout.lane_cache import LaneCache, padded
from agentrl_jax.rollout.requests import Request
from agentrl_jax.rollout.settings import EngineConfig
from agentrl_jax.rollout.versions import Published

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
    self._prefill_sizes = config.lane_sizes(
      min(num_lanes, config.prefill_lanes)
    )
    self.counts: collections.Counter[str] = collections.Counter()
    self._cache = LaneCache(policy, config, num_lanes, self.counts, sharding)
    self._weights = InFlight(config.old_weights)
    self._state = programs.empty_state(num_lanes)
    self._patch = np.zeros((num_lanes, len(programs.STATE)), np.int32)
    self._patched = np.zeros(num_lanes, bool)
    self._book = self._empty_book()
    self._answer = np.zeros((num_lanes, config.context, 3), np.int32)
    self._pending: collections.deque[Request] = collections.deque()

  def forget(self) -> None:
    """Leaves every lane as new; none may be busy."""
    self._book = self._empty_book()
    self._cache.forget()

  def check(self) -> None:
    """Raises `AssertionError` if a lane or a block of the store was lost."""
    self._cache.check()
    self._book.check()

  @property
  def length(self) -> int:
    """Tokens that each lane has room for now."""
    return self._cache.length

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
    self._rest()
    return bool(lanes.size)

  def step(self, published: Published) -> list[Part]:
    """Launches the next piece of work; its tokens, where there will be any."""
    book, edition = self._book, published.edition
    self._weights.turn_to(published, book.editions_decoding())
    book.restart_stale(edition, self._weights.editions)
    self._cache.turn_to(edition)
    self._seat(edition)
    self._cache.fit(self._num_slots_needed(edition))
    self._prefill(published)
    return self._decode()

  def read(self, part: Part) -> list[tuple[Request, Answer]]:
    """Waits for nothing: `part.record` is a host array by now."""
    record = np.asarray(part.record)
    serial = np.append(self._book.serial, _NOBODY)[part.lane]
    owned = (serial == part.serial) & (serial != _NOBODY)
    active = (record[:, :, programs.ACTIVE] > 0) & owned
    self._take_in(record[active], part.lane[np.nonzero(active)[1]])
    self._tell(part.lane[active.any(axis=0)])
    done = (record[:, :, programs.DONE] > 0) & active
    found = [self._finish(int(lane)) for lane in part.lane[done.any(axis=0)]]
    self._rest()
    return found

  def _rest(self) -> None:
    """Holds on to no weights while there is nothing to do."""
    if not self._book.num_busy:
      self._weights.forget()

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
      if not self._find_seat(request, edition):
        waits.append(request)
    self._pending.extendleft(reversed(waits))
    self._move(edition)

  def _find_seat(self, request: Request, edition: int) -> bool:
    """Whether a request got a lane; what it reuses there is still to move."""
    book, cache = self._book, self._cache
    match = cache.find(request.prompt[: request.num_prefilled])
    seat = book.find_seat(request, edition, self._config.worth, match.size)
    if seat is None:
      return False
    overwritten = book.overwritten(seat, edition)
    if cache.has_to_move_first(seat, match, overwritten):
      self._move(edition)
      return self._find_seat(request, edition)
    reused = cache.plan(seat, match, overwritten)
    book.sit(request, dataclasses.replace(seat, reused=reused), edition)
    return True

  def _move(self, edition: int) -> None:
    """Moves what seats found elsewhere; what is lost is fed again."""
    for lane in self._cache.move(self._num_slots_needed(edition)):
      self._book.feed_again(lane)

  def _num_slots_needed(self, edition: int) -> int:
    return self._book.num_slots_needed(edition, self._config.steps_per_sync)

  def _prefill(self, published: Published) -> None:
    """Feeds prompts in chunks, until they are fed or the step's share is."""
    book, left = self._book, self._config.prefill_tokens
    while left > 0 and (unfilled := book.unfilled()).size:
      lane = unfilled[: self._config.prefill_lanes]
      missing = book.target[lane] - book.held[lane]
      chunk = self._config.prefill_chunk(int(missing.max()))
      length = np.minimum(missing, chunk)
      lane_P = padded(lane, self._prefill_sizes, self._num_lanes)
      token_PC = np.zeros((len(lane_P), chunk), np.int32)
      for row, (b, size) in enumerate(zip(lane, length, strict=True)):
        token_PC[row, :size] = book.token[b, book.held[b] :][:size]
      self._cache.arrays = programs.prefill(
        self._policy,
        published.params,
        self._cache.arrays,
        token_PC,
        _padded_to(book.held[lane], len(lane_P)),
        _padded_to(length, len(lane_P)),
        lane_P,
      )
      book.held[lane] += length
      self.counts["prefilled"] += int(length.sum())
      left -= token_PC.size

  def _decode(self) -> list[Part]:
    """A few tokens for every lane that can, each under its own weights."""
    book = self._book
    lane = book.filled()
    for begins in lane[~book.decoding[lane]]:
      self._begin(begins)
    reach = book.reach[lane] + self._config.steps_per_sync
    book.reach[lane] = np.minimum(reach, book.end[lane])
    at_hand = self._weights.editions
    edition = np.where(
      np.isin(book.edition[lane], at_hand), book.edition[lane], at_hand[-1]
    )
    return [
      self._decode_under(self._weights.of(one), lane[edition == one], len(lane))
      for one in at_hand
      if (edition == one).any()
    ]

  def _decode_under(
    self, published: Published, lane: np.ndarray, num_filled: int
  ) -> Part:
    """Decodes these lanes of all that are filled."""
    size = self._config.decode_size(self._num_lanes, len(lane))
    whole = size == self._num_lanes and len(lane) == num_filled
    lane_P = (
      np.arange(size) if whole else padded(lane, (size,), self._num_lanes)
    )
    self._cache.arrays, self._state, record = programs.decode(
      self._policy,
      published.params,
      self._cache.arrays,
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
    self._patch[lane] = programs.first_state(
      int(request.prompt[-1]), request.num_prefilled, request.spec
    )
    self._patched[lane] = True
    self._book.decoding[lane] = True

  def _empty_book(self) -> LaneBook:
    c = self._config
    return LaneBook(self._num_lanes, c.context, reuse=c.reuse)


def _padded_to(row: np.ndarray, size: int) -> np.ndarray:
  padded = np.zeros(size, row.dtype)
  padded[: len(row)] = row
  return padded
