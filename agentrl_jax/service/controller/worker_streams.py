"""Requests to workers over gRPC streams that the workers opened.

A worker is identified by the id in its heartbeats, on any stream. When a stream
breaks, its requests wait:
- a worker that reconnects within `reconnect_s` sends its answers on the new
  stream, and one of our workers is sent again all requests that may not have
  arrived;
- a worker that does not reconnect in time is lost, and its requests fail.
"""

import asyncio
import collections
import contextlib
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.http_requests import SERVICE_LIMITS
from agentrl_jax.service.controller.access import Access, NotAllowed
from agentrl_jax.service.controller.registry import Refused
from agentrl_jax.service.protocol import grpc_wire, wire
from agentrl_jax.service.protocol.link import (
  MAX_VALUES,
  WorkerLink,
  WorkerLost,
  parse_beside,
  refusal,
)

_log = logging.getLogger(__name__)

WRITTEN_S = 1.0  # for a write to a stream that ends
_FRAME_BYTES = 8 << 20  # of an envelope beside its answer, and above its limit
MAX_WAITING = 4096  # requests that wait for a worker's stream

# Keepalive, which detects a broken connection that was never closed.
_ALIVE = (
  ("grpc.keepalive_time_ms", 10_000),
  ("grpc.keepalive_timeout_ms", 5_000),
)


class StreamLink(WorkerLink):
  """Link to one worker, over the stream that it opened last."""

  def __init__(self, address: str, *, reconnect_s: float, max_answer: int):
    self.address, self._max_answer = address, max_answer
    self._reconnect_s = reconnect_s
    self._context: Any = None  # the stream, while there is one
    self._writer: asyncio.Task[None] | None = None  # writes to the stream
    self._write: asyncio.Future[None] | None = None
    self._outbox: asyncio.Queue[Any] = asyncio.Queue(maxsize=MAX_WAITING)
    self._answers: dict[str, asyncio.Future[Any]] = {}
    self._sent: dict[str, Any] = {}  # requests that are not answered yet
    self._is_lost = False
    self._giving_up = self._give_up_later()

  async def ask(
    self, method: str, endpoint: str, body: Any, *, deadline_s: float
  ) -> Any:
    """See `WorkerLink.ask`."""
    if self._is_lost:
      raise self._lost()
    request = grpc_wire.request(method, endpoint, body)
    answer = asyncio.get_running_loop().create_future()
    self._answers[request.id] = answer
    try:
      async with asyncio.timeout(deadline_s):
        await self._outbox.put(request)
        return await self._read(endpoint, await answer)
    except TimeoutError as error:
      raise EnvironmentFault(
        f"worker {self.address} has not answered {endpoint} within "
        f"{deadline_s:g} s; see whether it is alive, and what its environment "
        "waits for"
      ) from error
    finally:
      del self._answers[request.id]
      self._sent.pop(request.id, None)
      if answer.done() and not answer.cancelled():
        answer.exception()  # marks it as retrieved: nobody awaits it

  def connected(self, context: Any, *, plays_once: bool) -> None:
    """Takes a stream, in place of an older one.

    Requests are sent again to a worker that `plays_once` those that come twice.
    """
    if self._context is context:
      return
    self._hang_up()
    self._giving_up.cancel()
    self._is_lost = False
    self._context = context
    self._writer = asyncio.create_task(
      self._write_requests(context, plays_once)
    )

  def disconnected(self, context: Any) -> bool:
    """Notes that a stream has ended; returns whether it was the current one."""
    if self._context is not context:
      return False
    self._hang_up()
    self._giving_up = self._give_up_later()
    return True

  async def written(self) -> None:
    """Waits for a pending write: a stream cannot end in the middle of one."""
    if self._write is not None:
      await asyncio.wait([self._write], timeout=WRITTEN_S)

  def answered(self, envelope: Any) -> bool:
    """Takes a response; returns whether a request waits for it."""
    answer = self._answers.get(envelope.id)
    if answer is None or answer.done():
      return False
    answer.set_result(envelope.response)
    return True

  async def acknowledge(self, envelope: Any) -> None:
    """Sends the acknowledgement of a notice."""
    await self._outbox.put(grpc_wire.response(envelope.id, wire.OK, None))

  async def _write_requests(self, context: Any, plays_once: bool) -> None:
    """Writes the outbox; no other task writes, as gRPC allows one at a time."""
    again = collections.deque(self._sent.values() if plays_once else ())
    while True:
      envelope = again.popleft() if again else await self._outbox.get()
      if envelope.type == grpc_wire.REQUEST:
        if envelope.id not in self._answers:
          continue  # its caller has gone
        self._sent[envelope.id] = envelope
      self._write = asyncio.ensure_future(context.write(envelope))
      self._write.add_done_callback(_ignore_failure)
      try:
        await asyncio.shield(self._write)
      except grpc_wire.BROKEN as error:
        _log.info("writing to %s: %s", self.address, grpc_wire.why(error))
        return  # the reader of the stream ends it

  def _hang_up(self) -> None:
    if self._writer is not None:
      self._writer.cancel()
    self._context = self._writer = None

  def _give_up_later(self) -> asyncio.TimerHandle:
    loop = asyncio.get_running_loop()
    return loop.call_later(self._reconnect_s, self._give_up)

  def _give_up(self) -> None:
    self._is_lost = True
    for answer in self._answers.values():
      if not answer.done():
        answer.set_exception(self._lost())

  async def _read(self, endpoint: str, response: Any) -> Any:
    if len(response.json) > self._max_answer:
      raise EnvironmentFault(
        f"worker {self.address} answers {endpoint} with {len(response.json)} "
        f"bytes; {self._max_answer} are the maximum"
      )
    if not 200 <= response.code < 300:
      detail = response.message or response.json.decode(errors="replace")
      raise refusal(
        response.code,
        f"worker {self.address} answers {endpoint} with {response.code}: "
        f"{detail[:1000]}",
      )
    try:
      return await parse_beside(response.json or b"null")
    except ValueError as error:
      raise EnvironmentFault(
        f"worker {self.address} answers {endpoint} with "
        f"{response.json[:300]!r}, which is not JSON"
      ) from error

  def _lost(self) -> WorkerLost:
    return WorkerLost(
      f"worker {self.address} has hung up and not dialled again within "
      f"{self._reconnect_s:g} s; see whether it has died"
    )


class WorkerStreams:
  """All streams of a controller.

  `on_heartbeat` gets announcements, `on_lost` the address of a worker whose
  stream broke, `on_freed` the id of a session that has ended and the address of
  the worker that says so, which is None before its first heartbeat.

  A stream is one worker's: one with an envelope that cannot be read, or with
  heartbeats of several workers, is ended.
  """

  def __init__(
    self,
    *,
    on_heartbeat: Callable[[Mapping[str, Any]], None],
    on_lost: Callable[[str], None],
    on_freed: Callable[[int, str | None], None],
    reconnect_s: float,
    access: Access = Access(),  # noqa: B008 - frozen
    max_answer: int = SERVICE_LIMITS.max_body,
  ):
    self._access, self._max_answer = access, max_answer
    self._on_heartbeat = on_heartbeat
    self._on_lost = on_lost
    self._on_freed = on_freed
    self._reconnect_s = reconnect_s
    # Weak: the link is dropped with its worker.
    self._links: weakref.WeakValueDictionary[str, StreamLink] = (
      weakref.WeakValueDictionary()
    )

  def link(self, address: str) -> StreamLink:
    """Returns the link to the worker with this address, grpc://<its id>."""
    link = self._links.get(address)
    if link is None:
      link = StreamLink(
        address, reconnect_s=self._reconnect_s, max_answer=self._max_answer
      )
      self._links[address] = link
    return link

  @contextlib.asynccontextmanager
  async def listening(self, bind: str, port: int) -> AsyncIterator[int]:
    """Accepts streams until the context is left; yields the port."""
    largest = self._max_answer + _FRAME_BYTES  # a larger one ends its stream
    server = grpc_wire.server(
      self._serve, [*_ALIVE, (grpc_wire.RECEIVED, largest)]
    )
    try:
      port = server.add_insecure_port(f"{bind}:{port}")
    except RuntimeError as error:
      raise ConfigError(
        f"cannot listen on {bind}:{port} ({error}); choose another --grpc-port"
      ) from error
    await server.start()
    try:
      yield port
    finally:
      await server.stop(grace=None)

  async def _serve(self, envelopes: Any, context: Any) -> None:
    """Serves one stream, for a worker with the token."""
    try:
      self._access.check("receive_heartbeat", grpc_wire.authorization(context))
    except NotAllowed as error:
      await grpc_wire.refuse(context, str(error))
    try:
      await self._converse(envelopes, context)
    except Refused as fault:
      await grpc_wire.end(context, str(fault))

  async def _converse(self, envelopes: Any, context: Any) -> None:
    """Takes envelopes until the stream ends. Raises `Refused` for a fault."""
    link: StreamLink | None = None
    try:
      async for envelope in envelopes:
        _require_valid(envelope, link)
        kind = envelope.WhichOneof("body")
        if kind == "heartbeat":
          announcement = grpc_wire.announcement_of(envelope)
          link = self.link(announcement["address"])
          link.connected(context, plays_once=envelope.heartbeat.plays_once)
          self._hear(announcement)
        elif kind == "cancel_notice":
          sender = None if link is None else link.address
          self._on_freed(envelope.cancel_notice.session_id, sender)
          if link is not None:
            await link.acknowledge(envelope)
        elif kind == "response" and not self._is_answered(envelope, link):
          _log.debug("no request waits for a response to %s", envelope.id)
    finally:
      if link is not None and link.disconnected(context):
        self._on_lost(link.address)
        await link.written()

  def _hear(self, announcement: Mapping[str, Any]) -> None:
    try:
      self._on_heartbeat(announcement)
    except Refused as reason:
      _log.warning("a heartbeat of %.99r: %s", announcement["address"], reason)

  def _is_answered(self, envelope: Any, link: StreamLink | None) -> bool:
    """Finds the request; on a new stream, before the first heartbeat too."""
    if link is not None:
      return link.answered(envelope)
    return any(each.answered(envelope) for each in self._links.values())


def _require_valid(envelope: Any, link: StreamLink | None) -> None:
  """Raises `Refused` for an envelope that ends its stream."""
  if fault := _fault(envelope, link):
    sender = link.address if link else "a worker without a heartbeat"
    _log.warning("the stream of %.99s is ended: %s", sender, fault)
    raise Refused(fault)


def _fault(envelope: Any, link: StreamLink | None) -> str:
  """Returns why an envelope ends its stream; "" for all others."""
  if envelope.type == grpc_wire.INVALID:
    return "it sent a frame that is no envelope of AgentRL's stream"
  if envelope.WhichOneof("body") != "heartbeat":
    return ""
  if not envelope.heartbeat.id:
    return "its heartbeat has no id, by which its worker would be known"
  if len(envelope.heartbeat.indices) > MAX_VALUES:
    return f"its heartbeat lists more than {MAX_VALUES} indices"
  address = grpc_wire.address_of(envelope)
  if link is not None and address != link.address:
    return f"it now has the heartbeat of another worker, {address!r:.99}"
  return ""


def _ignore_failure(write: asyncio.Future[None]) -> None:
  """Marks the failure of a write that outlives its stream as retrieved."""
  if not write.cancelled():
    write.exception()
