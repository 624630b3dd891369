"""Prometheus metrics of a server."""

import logging
import time
from collections.abc import Callable, Sequence, Set

import prometheus_client as prometheus
from aiohttp import web
from aiohttp.typedefs import Handler

from agentrl_jax.rollout.remote import wire

METRICS = "/metrics"
MAX_IGNORED = 32  # names of ignored fields with a count of their own
OTHER_FIELD = "(other)"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

_logger = logging.getLogger(__name__)


class IgnoredFields:
  """Counts ignored fields of messages by name, and logs each name once.

  Clients choose the names, so only the first `MAX_IGNORED` are counted by name;
  all others share one count.
  """

  def __init__(self, registry: prometheus.CollectorRegistry):
    self._count = prometheus.Counter(
      "agentrl_ignored_message_fields",
      "Calls with a field or tool that is accepted and has no effect.",
      ("field",),
      registry=registry,
    )
    self._names: set[str] = set()

  def count(self, names: Set[str]) -> None:
    """Counts the names of one call, each of them once."""
    for label in {self._label(name) for name in sorted(names)}:
      self._count.labels(label).inc()

  def _label(self, name: str) -> str:
    if name in self._names:
      return name
    is_plain = len(name) <= 64 and name.isascii() and name.isidentifier()
    if not is_plain or len(self._names) >= MAX_IGNORED:
      return OTHER_FIELD
    self._names.add(name)
    _logger.warning(
      "a call has %s, a field or tool that this server cannot carry out: it is "
      "ignored, and counted in agentrl_ignored_message_fields_total",
      name,
    )
    return name


class ServerMetrics:
  """Metrics of one server, in a registry of its own.

  `slots` returns the busy slots per policy slot; it may wait for the engine, so
  it is called only when the metrics are requested.
  """

  def __init__(
    self,
    status: Callable[[], wire.ServerStatus],
    slots: Callable[[], Sequence[int]] | None = None,
  ):
    self._status, self.slots = status, slots
    self.registry = registry = prometheus.CollectorRegistry()
    self._calls = prometheus.Counter(
      "agentrl_calls",
      "Calls that were answered, by HTTP status.",
      ("endpoint", "status"),
      registry=registry,
    )
    self._tokens = prometheus.Counter(
      "agentrl_tokens",
      "Tokens: of prompts, of these with cached keys and values, sampled, of "
      "these under a grammar.",
      ("kind",),
      registry=registry,
    )
    self._seconds = prometheus.Histogram(
      "agentrl_call_seconds",
      "From a call to the end of its answer.",
      ("endpoint",),
      buckets=_SECONDS,
      registry=registry,
    )
    self.ignored = IgnoredFields(registry)
    self._first = prometheus.Histogram(
      "agentrl_first_token_seconds",
      "From a call to the first token of its stream.",
      buckets=_SECONDS,
      registry=registry,
    )
    self._swaps = prometheus.Counter(
      "agentrl_swaps",
      "Observed changes of the weights that a policy slot serves.",
      ("policy_slot",),
      registry=registry,
    )
    self._now = {
      name: prometheus.Gauge(f"agentrl_{name}", text, labels, registry=registry)
      for name, text, labels in (
        ("requests_inside", "Requests in the engine.", ()),
        ("requests_waiting", "Requests that wait for a slot.", ()),
        ("slots_busy", "Slots in prefill or decode.", ("policy_slot",)),
        (
          "version_step",
          "Updates behind a policy slot's weights.",
          ("policy_slot",),
        ),
      )
    }
    self._served: dict[int, wire.ServedPolicySlot] = {}

  def answered(
    self, *, prompt: int, reused: int, sampled: int, is_constrained: bool
  ) -> None:
    """Counts the tokens of a complete answer."""
    for kind, number in (
      ("prompt", prompt),
      ("reused", reused),
      ("sampled", sampled),
      ("constrained", sampled * is_constrained),
    ):
      self._tokens.labels(kind).inc(number)

  def first_token(self, seconds: float) -> None:
    """Observes the time to the first token of a stream."""
    self._first.observe(seconds)

  @web.middleware
  async def counting(
    self, request: web.Request, handler: Handler
  ) -> web.StreamResponse:
    """Counts and times calls; those whose client hung up have status 499."""
    resource = request.match_info.route.resource
    endpoint = resource.canonical if resource else "unknown"
    begun, status = time.monotonic(), 499
    try:
      response = await handler(request)
      status = response.status
      return response
    finally:
      self._calls.labels(endpoint, str(status)).inc()
      self._seconds.labels(endpoint).observe(time.monotonic() - begun)
      self.update()

  def update(self) -> None:
    """Updates the gauges, and counts changes of the served versions."""
    status = self._status()
    self._now["requests_inside"].set(status.num_inside)
    self._now["requests_waiting"].set(status.num_waiting)
    for policy_slot, served in enumerate(status.policy_slots):
      if served is not None:
        before = self._served.get(policy_slot)
        self._swaps.labels(policy_slot).inc(before not in (None, served))
        self._served[policy_slot] = served
        self._now["version_step"].labels(policy_slot).set(served.version)

  def page(self) -> bytes:
    """Returns all metrics in Prometheus' format. May wait for the engine."""
    self.update()
    for policy_slot, busy in enumerate(self.slots() if self.slots else ()):
      self._now["slots_busy"].labels(policy_slot).set(busy)
    return bytes(prometheus.generate_latest(self.registry))
