"""The streams that workers have dialled, and asking over them.

A worker is known by the id in its heartbeats, whichever stream it is on. When a
stream breaks, its requests wait: a worker that is back within `reconnect_s`
sends the answers on its next stream. One that is not has been lost, and with it
what it was asked.
"""

import asyncio
import contextlib
import json
import logging
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc.aio  # type: ignore[import-untyped]

from agentrl_jax.controller.registry import Refused
from agentrl_jax.env import grpc_wire, wire
from agentrl_jax.env.link import Link, WorkerLost, refusal
from agentrl_jax.errors import ConfigError, EnvironmentFault

_log = logging.getLogger(__name__)

# How soon it is found out that the way to a worker is cut, if nothing says so.
_ALIVE = (
  ("grpc.keepalive_time_ms", 10_000),
  ("grpc.keepalive_timeout_ms", 5_000),
)


class StreamLink(Link):
  """The way to one worker, over the stream that it has dialled last."""

  def __init__(self, address: str, *, reconnect_s: float):
    self._address = address
    self._reconnect_s = reconnect_s
    self._context: Any = None  # the stream, while there is one
    self._is_connected = asyncio.Event()
    self._broken_at = time.monotonic()
    self._write_lock = asyncio.Lock()  # a stream takes one envelope at a time
    self._answers: dict[str, asyncio.Future[Any]] = {}
    self._given_up: asyncio.TimerHandle | None = None

  async def ask(
    self, method: str, endpoint: str, body: Any, *, deadline_s: float
  ) -> Any:
    """As `Link.ask`."""
    request = grpc_wire.request(method, endpoint, body)
    answer = self._answers[request.id] = (
      asyncio.get_running_loop().create_future()
    )
    try:
      async with asyncio.timeout(deadline_s):
        await self._send(request)
        return self._read(endpoint, await answer)
    except TimeoutError as error:
      raise EnvironmentFault(
        f"worker {self._address} has not answered {endpoint} within "
        f"{deadline_s:g} s; see whether it is alive, and what its environment "
        "waits for"
      ) from error
    finally:
      del self._answers[request.id]
      answer.cancel()
      if not answer.cancelled():
        answer.exception()  # it was lost before it was waited for

  def connected(self, context: Any) -> None:
    """Takes a new stream in place of an older one."""
    self._context = context
    self._is_connected.set()
    if self._given_up is not None:
      self._given_up.cancel()

  def disconnected(self, context: Any) -> bool:
    """Notes that a stream has ended; whether it was the last."""
    if self._context is not context:
      return False
    self._context = None
    self._is_connected.clear()
    self._broken_at = time.monotonic()
    self._given_up = asyncio.get_running_loop().call_later(
      self._reconnect_s, self._give_up
    )
    return True

  def answered(self, envelope: Any) -> bool:
    """Takes a response; whether it was waited for."""
    answer = self._answers.get(envelope.id)
    if answer is None or answer.done():
      return False
    answer.set_result(envelope.response)
    return True

  async def write(self, context: Any, envelope: Any) -> None:
    """Sends an envelope on a stream, one at a time."""
    async with self._write_lock:
      await context.write(envelope)

  async def _send(self, request: Any) -> None:
    if not self._is_connected.is_set():
      silence_s = time.monotonic() - self._broken_at
      try:
        async with asyncio.timeout(max(self._reconnect_s - silence_s, 0)):
          await self._is_connected.wait()
      except TimeoutError as error:
        raise self._lost() from error
    try:
      await self.write(self._context, request)
    except (grpc.RpcError, asyncio.InvalidStateError, AttributeError) as error:
      raise self._lost() from error

  def _read(self, endpoint: str, response: Any) -> Any:
    if not 200 <= response.code < 300:
      detail = response.message or response.json.decode(errors="replace")
      raise refusal(
        response.code,
        f"worker {self._address} answers {endpoint} with {response.code}: "
        f"{detail[:1000]}",
      )
    try:
      return json.loads(response.json or b"null")
    except ValueError as error:
      raise EnvironmentFault(
        f"worker {self._address} answers {endpoint} with "
        f"{response.json[:300]!r}, which is no JSON"
      ) from error

  def _give_up(self) -> None:
    for answer in self._answers.values():
      if not answer.done():
        answer.set_exception(self._lost())

  def _lost(self) -> WorkerLost:
    return WorkerLost(
      f"worker {self._address} has hung up and not dialled again within "
      f"{self._reconnect_s:g} s; see whether it has died"
    )


class WorkerStreams:
  """All streams of a controller."""

  def __init__(
    self,
    *,
    heard: Callable[[Mapping[str, Any]], None],
    lost: Callable[[str], None],
    freed: Callable[[int], None],
    reconnect_s: float,
  ):
    self._heard = heard
    self._lost = lost
    self._freed = freed
    self._reconnect_s = reconnect_s
    # A worker that is forgotten takes its link along.
    self._links: weakref.WeakValueDictionary[str, StreamLink] = (
      weakref.WeakValueDictionary()
    )

  def link(self, address: str) -> StreamLink:
    """The way to the worker with this address, grpc://<its id>."""
    link = self._links.get(address)
    if link is None:
      link = StreamLink(address, reconnect_s=self._reconnect_s)
      self._links[address] = link
    return link

  @contextlib.asynccontextmanager
  async def listening(self, bind: str, port: int) -> AsyncIterator[int]:
    """Takes streams until the context is left; yields the port."""
    server = grpc.aio.server(options=(*grpc_wire.SIZES, *_ALIVE))
    server.add_generic_rpc_handlers((grpc_wire.service(self._serve),))
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
    """One stream, from its first heartbeat to its end."""
    link: StreamLink | None = None
    address = ""
    try:
      async for envelope in envelopes:
        if envelope.WhichOneof("body") == "heartbeat":
          announcement = grpc_wire.announcement_of(envelope)
          address = announcement["address"]
          link = self.link(address)
          link.connected(context)
          self._hear(announcement)
        elif envelope.WhichOneof("body") == "cancel_notice":
          await self._take_notice(envelope, context, link)
        elif envelope.type == grpc_wire.RESPONSE:
          self._take_response(envelope)
    finally:
      if link is not None and link.disconnected(context):
        self._lost(address)

  def _hear(self, announcement: Mapping[str, Any]) -> None:
    try:
      self._heard(announcement)
    except Refused as reason:
      _log.warning("a heartbeat of %s: %s", announcement["address"], reason)

  def _take_response(self, envelope: Any) -> None:
    """On a new stream a response may come before the heartbeat does."""
    if not any(link.answered(envelope) for link in self._links.values()):
      _log.info("a response to request %s is not waited for", envelope.id)

  async def _take_notice(
    self, envelope: Any, context: Any, link: StreamLink | None
  ) -> None:
    self._freed(envelope.cancel_notice.session_id)
    acknowledgement = grpc_wire.response(envelope.id, wire.OK, None)
    if link is None:
      await context.write(acknowledgement)
    else:
      await link.write(context, acknowledgement)
