"""Devices that decode together, simulated on a virtual clock.

A decode step reads the weights once, whatever the number of sequences, and the
cache of each sequence. With n of C places taken a step takes

  a + b n,  written as  fixed + (1 - fixed) n / C  of a step of full devices

`fixed` is the part that fewer sequences do not save: bytes of the weights over
bytes of weights and full cache, plus whatever an environment's latency adds.
With 1 every sequence has a speed of its own, and idle places are lost; with 0 a
single sequence gets the speed of all, which no device has.
"""

import asyncio
import heapq
import itertools

from agentrl_jax.errors import ConfigError


class Devices:
  """`places` for sequences, which load balancing spreads evenly.

  Invariants:
  - all active sequences advance at the same speed, `self._speed()`;
  - `self._progress_s` is what one that was active all the time has advanced by,
    in seconds of a full device, as of `self._at_s`;
  - a timer is set for the next sequence to end, if one is active.
  """

  def __init__(self, places: int, fixed: float) -> None:
    """Raises `ConfigError` for a share that is none."""
    if not 0 <= fixed <= 1:
      raise ConfigError(f"fixed is {fixed}; it is a share, from 0 to 1")
    self.places = asyncio.Semaphore(places)  # an episode holds one
    self._num_places, self._fixed = places, fixed
    self._active = 0
    self._progress_s = self._at_s = 0.0
    # (progress at the end, tie-break, who waits for it)
    self._ends: list[tuple[float, int, asyncio.Future[None]]] = []
    self._numbers = itertools.count()
    self._timer: asyncio.TimerHandle | None = None
    self._is_due = False  # to set the timer anew

  async def decode(self, length_s: float) -> None:
    """Decodes for `length_s` seconds of full devices; faster on emptier ones.

    Cancelling frees the devices at once.
    """
    self._advance()
    end = asyncio.get_running_loop().create_future()
    ends_at_s = self._progress_s + length_s
    heapq.heappush(self._ends, (ends_at_s, next(self._numbers), end))
    self._active += 1
    self._changed()
    try:
      await end
    finally:
      if end.cancelled():  # else `_end_next` has counted it out
        self._advance()
        self._active -= 1
        self._changed()

  def _speed(self) -> float:
    return 1 / (
      self._fixed + (1 - self._fixed) * self._active / self._num_places
    )

  def _advance(self) -> None:
    now_s = asyncio.get_running_loop().time()
    if self._active:
      self._progress_s += (now_s - self._at_s) * self._speed()
    self._at_s = now_s

  def _changed(self) -> None:
    """Sets the timer anew, once for all that changes at one instant."""
    if not self._is_due:
      self._is_due = True
      asyncio.get_running_loop().call_soon(self._set_timer)

  def _set_timer(self) -> None:
    self._is_due = False
    if self._timer is not None:
      self._timer.cancel()
    while self._ends and self._ends[0][2].cancelled():
      heapq.heappop(self._ends)
    if self._ends:
      left_s = (self._ends[0][0] - self._progress_s) / self._speed()
      loop = asyncio.get_running_loop()
      self._timer = loop.call_at(self._at_s + left_s, self._end_next)

  def _end_next(self) -> None:
    """Ends the sequence that the timer was for, and all that end with it."""
    self._at_s = asyncio.get_running_loop().time()
    self._progress_s = self._ends[0][0]  # exactly, whatever was rounded
    while self._ends and self._ends[0][0] <= self._progress_s:
      end = heapq.heappop(self._ends)[2]
      if not end.cancelled():
        self._active -= 1
        end.set_result(None)
    self._set_timer()
