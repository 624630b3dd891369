"""Prometheus metrics of a controller.

Gauges are read from the tables when they are asked for, so that they cannot
differ from them. Names in labels are of tasks, which workers announce, and of
AgentRL's statuses: no request of a client makes a new one.
"""

import collections
import dataclasses
import functools
import sys
import time
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

import prometheus_client as prometheus
from aiohttp import web
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from agentrl_jax.data.records import Status
from agentrl_jax.service.controller.dispatcher import RUNNING, Dispatcher
from agentrl_jax.service.controller.registry import TaskEntry

PATH = "/metrics"
OTHER_STATUS = "(other)"
_SECONDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_REFUSED = range(400, 499)  # 499: the client hung up
_STATUSES = frozenset(status.value for status in Status)
_PREFIX = "agentrl_controller_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestCounts:
  """Counts of a controller since it started."""

  turns: int  # that were played
  refused: int  # requests that were wrong, or without a place
  ended: Mapping[str, Mapping[str, int]]  # sessions by task and status


class ControllerMetrics:
  """Metrics of one controller, in a registry of its own."""

  def __init__(self, dispatcher: Dispatcher):
    self.registry = registry = prometheus.CollectorRegistry()
    registry.register(_Tables(dispatcher))
    self._requests = prometheus.Counter(
      f"{_PREFIX}requests",
      "Requests that were answered, by HTTP status; 499: the client hung up.",
      ("endpoint", "status"),
      registry=registry,
    )
    self._seconds = prometheus.Histogram(
      f"{_PREFIX}request_seconds",
      "From a request to its answer, with start_sample's wait for a place.",
      ("endpoint",),
      buckets=_SECONDS,
      registry=registry,
    )
    # Looking a label up takes as long as counting does.
    self._answered = functools.cache(self._requests.labels)
    self._lasted = functools.cache(self._seconds.labels)
    self._ended = prometheus.Counter(
      f"{_PREFIX}sessions_ended",
      "Sessions whose last report came, by AgentRL's status.",
      ("task", "status"),
      registry=registry,
    )
    self._reward = prometheus.Counter(
      f"{_PREFIX}reward",
      "Sum of the rewards above 0 of ended sessions.",
      ("task",),
      registry=registry,
    )

  async def observe(
    self, endpoint: str, answering: Awaitable[web.StreamResponse]
  ) -> web.StreamResponse:
    """Awaits an answer; counts and times it."""
    begun, status = time.monotonic(), 499
    try:
      response = await answering
      status = response.status
      return response
    finally:
      self._answered(endpoint, status).inc()
      self._lasted(endpoint).observe(time.monotonic() - begun)

  def count_report(self, task: str, report: Mapping[str, Any]) -> None:
    """Counts a session whose report says that it is over."""
    status = report.get("status", RUNNING)
    if status == RUNNING:
      return
    is_known = isinstance(status, str) and status in _STATUSES
    self._ended.labels(task, status if is_known else OTHER_STATUS).inc()
    reward = report.get("reward")
    if isinstance(reward, int | float) and 0 < reward <= sys.float_info.max:
      self._reward.labels(task).inc(reward)

  def counts(self) -> RequestCounts:
    """Returns the counts since the controller started."""
    turns = refused = 0
    ended: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for sample in _samples(self._requests):
      endpoint, status = sample.labels["endpoint"], sample.labels["status"]
      if int(status) in _REFUSED:
        refused += int(sample.value)
      elif endpoint == "interact" and int(status) < 400:
        turns += int(sample.value)
    for sample in _samples(self._ended):
      ended[sample.labels["task"]][sample.labels["status"]] = int(sample.value)
    return RequestCounts(turns=turns, refused=refused, ended=ended)

  def page(self) -> bytes:
    """Returns all metrics in Prometheus' format."""
    return bytes(prometheus.generate_latest(self.registry))


def _samples(counter: prometheus.Counter) -> Iterator[Sample]:
  """Yields the values of a counter, without the times of their creation."""
  for family in counter.collect():
    yield from (s for s in family.samples if s.name.endswith("_total"))


class _Tables(Collector):
  """Reads the dispatcher's tables at every request for the metrics."""

  def __init__(self, dispatcher: Dispatcher):
    self._dispatcher = dispatcher

  def collect(self) -> Iterator[GaugeMetricFamily]:
    workers = _gauge("workers", "Workers, by health.", "task", "health")
    places = _gauge("places", "Sessions that live workers may hold.", "task")
    sessions = _gauge("sessions", "Open sessions.", "task")
    waiting = _gauge("waiting", "Requests that wait for a place.", "task")
    for name, entry in self._dispatcher.registry.tasks.items():
      for health, number in _by_health(entry).items():
        workers.add_metric([name, health], number)
      places.add_metric([name], _num_places(entry))
      sessions.add_metric(
        [name], sum(worker.num_sessions for worker in entry.workers.values())
      )
      waiting.add_metric([name], self._dispatcher.places.num_waiting(name))
    yield from (workers, places, sessions, waiting)
    yield from _load(places, sessions, waiting)


def _load(
  places: GaugeMetricFamily,
  sessions: GaugeMetricFamily,
  waiting: GaugeMetricFamily,
) -> Iterator[GaugeMetricFamily]:
  """Yields the load of the busiest task; nothing without places.

  One number, which an autoscaler can hold at a target without a query: more
  machines lower it in proportion, and it exceeds 1 where requests wait.
  """
  shares = [
    (held.value + queued.value) / room.value
    for room, held, queued in zip(
      places.samples, sessions.samples, waiting.samples, strict=True
    )
    if room.value
  ]
  if shares:
    load = _gauge("load", "Sessions and waiting requests per place, at most.")
    load.add_metric([], max(shares))
    yield load


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
  return GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=labels)


def _by_health(entry: TaskEntry) -> Mapping[str, int]:
  return collections.Counter(
    "STALE" if worker.is_stale else worker.health.value
    for worker in entry.workers.values()
  )


def _num_places(entry: TaskEntry) -> int:
  return sum(
    worker.capacity
    for worker in entry.workers.values()
    if worker.health.value == "ALIVE" and not worker.is_stale
  )
