"""Replays the asynchronous pipeline in virtual time: waiting and staleness.

Formulas give rates; waiting depends on the order of events: batches are taken
as a whole, groups end with their slowest attempt, and admission holds groups
back. So the pipeline is replayed with the controller's own `Admission` and
`select_groups`, at rates that are given.

- Every episode in flight advances at the same speed, so that together they
  end as `RolloutRate.episodes_per_s` says. The work of an episode is
  log-normal with mean 1.
- The learner takes a batch as soon as it is there, trains, and publishes.
- A group that is in the queue beyond its limit keeps its place in flight.

No group is lost, no episode fails, and no server is lost.
"""

import collections
import dataclasses
import heapq
import math
import random
import statistics
from collections.abc import Callable

from agentrl_jax.controller.groups.admission import Admission, AdmissionLimits
from agentrl_jax.controller.groups.group_queue import (
  ANY_AGE,
  QueueLimits,
  select_groups,
)

_EVENTS = 150_000  # episodes of a replay, about
_LEAST_STEPS, _MOST_STEPS = 40, 400  # that are measured
_WARM_UP = 0.25  # of the steps, before these


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow:
  """Measurements of a replay, over all of its steps after the warm-up."""

  step_s: float  # from taking a batch to taking the next
  wait_s: float  # of these, in which the learner waits for groups
  staleness_mean: float  # versions
  staleness_max: int
  episodes_in_flight: float  # mean over time
  busy_slots: float  # mean over time

  @property
  def wait_share(self) -> float:
    """Share of time in which the learner waits for groups."""
    return self.wait_s / self.step_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
  """Rates of both sides, and the shape of their work."""

  learner_s: float  # of a step, without waiting
  lag_s: float  # from a new version to answers of it
  # By episodes in flight:
  episodes_per_s: Callable[[float], float]
  busy_slots: Callable[[float], float]
  group_size: int
  spread: float  # standard deviation of an episode's work over its mean


def replay(
  admission: AdmissionLimits,
  queue: QueueLimits,
  pace: Pace,
  *,
  seed: int = 0,
  num_steps: int | None = None,
) -> Flow:
  """Replays a run from an empty pipeline; the same seed gives the same flow."""
  per_step = admission.groups_per_step * pace.group_size
  steps = num_steps or min(max(_EVENTS // per_step, _LEAST_STEPS), _MOST_STEPS)
  pipeline = _Pipeline(admission, queue, pace, random.Random(seed))
  for _ in range(math.ceil(_WARM_UP * steps)):
    pipeline.step()
  pipeline.forget()
  for _ in range(steps):
    pipeline.step()
  return pipeline.flow(steps)


class _Pipeline:
  """Groups in flight and finished, and the learner, by a virtual clock."""

  def __init__(
    self,
    limits: AdmissionLimits,
    queue: QueueLimits,
    pace: Pace,
    dice: random.Random,
  ) -> None:
    self._limits, self._queue, self._pace, self._dice = (
      limits,
      queue,
      pace,
      dice,
    )
    self._admission = Admission(limits)
    variance = math.log1p(pace.spread**2)
    self._log = (-variance / 2, math.sqrt(variance))
    # Progress per second, and busy slots, by episodes in flight.
    self._rates: dict[int, tuple[float, float]] = {0: (0.0, 0.0)}
    self._now_s = self._progress = 0.0
    # Progress at which each episode ends, and its group.
    self._episodes: list[tuple[float, int]] = []
    self._left: dict[int, int] = {}  # episodes of each group in flight
    self._since: dict[int, int] = {}  # version at the start, until taken
    self._sampled: dict[int, int] = {}  # version of the first answers
    self._finished: dict[int, None] = {}
    self._over: dict[int, None] = {}  # finished, beyond the queue's limit
    self._num_groups = 0
    self._served = 0  # version that servers answer with
    self._arriving: collections.deque[tuple[float, int]] = collections.deque()
    self.forget()
    self._start_groups()

  def forget(self) -> None:
    """Forgets what was measured, and goes on."""
    self._began_s, self._wait_s = self._now_s, 0.0
    self._in_flight_s = self._busy_s = 0.0  # episodes and slots, times seconds
    self._ages: list[int] = []

  def flow(self, num_steps: int) -> Flow:
    """Returns what was measured since `forget`."""
    elapsed_s = self._now_s - self._began_s
    return Flow(
      step_s=elapsed_s / num_steps,
      wait_s=self._wait_s / num_steps,
      staleness_mean=statistics.fmean(self._ages),
      staleness_max=max(self._ages),
      episodes_in_flight=self._in_flight_s / elapsed_s,
      busy_slots=self._busy_s / elapsed_s,
    )

  def step(self) -> None:
    """Waits for a batch, trains on it and publishes."""
    asked_s = self._now_s
    while (taken := self._choose()) is None:
      self._play_one()
    self._wait_s += self._now_s - asked_s
    for group in taken:
      self._ages.append(self._admission.version - self._sampled.pop(group))
      del self._finished[group], self._since[group]
      if group in self._over:
        del self._over[group]
        self._admission.end()
    self._make_room()
    self._start_groups()
    self._play_until(self._now_s + self._pace.learner_s)
    version = self._admission.version + self._limits.versions_per_step
    self._arriving.append((self._now_s + self._pace.lag_s, version))
    self._admission.advance(version)
    self._start_groups()

  def _choose(self) -> list[int] | None:
    """Returns the groups to take, as `GroupQueue` does; None to wait."""
    number = self._limits.groups_per_step
    if len(self._finished) < number:
      return None
    if self._queue.order == "started":
      first = sorted(self._since)[:number]
      return first if all(g in self._finished for g in first) else None
    if self._queue.max_age == ANY_AGE:
      return list(self._finished)[:number]
    return select_groups(
      self._finished,
      self._since,
      num_groups=number,
      version=self._admission.version,
      max_age=self._queue.max_age,
      versions_per_step=self._limits.versions_per_step,
    )

  def _start_groups(self) -> None:
    while self._arriving and self._arriving[0][0] <= self._now_s:
      _, self._served = self._arriving.popleft()
    while self._admission.refusal() is None:
      group, self._num_groups = self._num_groups, self._num_groups + 1
      self._admission.start()
      self._since[group] = self._admission.version
      self._sampled[group] = self._served
      self._left[group] = self._pace.group_size
      for _ in range(self._pace.group_size):
        work = self._dice.lognormvariate(*self._log)
        heapq.heappush(self._episodes, (self._progress + work, group))

  def _rate(self) -> tuple[float, float]:
    """Returns progress per second of each episode, and the busy slots."""
    number = len(self._episodes)
    if number not in self._rates:
      self._rates[number] = (
        self._pace.episodes_per_s(number) / number,
        self._pace.busy_slots(number),
      )
    return self._rates[number]

  def _play_one(self) -> None:
    """Plays until the next episode ends."""
    end, group = self._episodes[0]
    self._pass((end - self._progress) / self._rate()[0], end)
    heapq.heappop(self._episodes)
    self._left[group] -= 1
    if not self._left[group]:
      del self._left[group]
      self._finished[group] = self._over[group] = None
      self._make_room()
      self._start_groups()

  def _play_until(self, end_s: float) -> None:
    while self._episodes:
      next_s = (self._episodes[0][0] - self._progress) / self._rate()[0]
      if self._now_s + next_s > end_s:
        break
      self._play_one()
    left_s = end_s - self._now_s
    self._pass(left_s, self._progress + left_s * self._rate()[0])
    self._now_s = end_s

  def _pass(self, seconds: float, progress: float) -> None:
    self._in_flight_s += len(self._episodes) * seconds
    self._busy_s += self._rate()[1] * seconds
    self._now_s += seconds
    self._progress = progress

  def _make_room(self) -> None:
    """Ends groups that get a place in the queue."""
    num_free = self._queue.max_groups - len(self._finished) + len(self._over)
    for group in list(self._over)[: max(0, num_free)]:
      del self._over[group]
      self._admission.end()
