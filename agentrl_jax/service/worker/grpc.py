"""Worker that dials its controller, and answers over the stream it opened.

The controller need not reach the worker, which may stand behind any NAT. Many
requests are played at once on the one stream. When the stream breaks, sessions
continue, and the worker dials again, sends its heartbeat, and repeats envelopes
that may be lost:

  - responses that were finished meanwhile, and the last ones before the break:
    a controller knows its requests by their ids, and drops duplicates;
  - cancel notices that the controller has not acknowledged.

Our controller repeats a request that was lost on its way. If it did arrive, the
worker has seen its id and plays it once.
"""

import asyncio
import collections
import contextlib
import functools
import json
import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any

from agentrl_jax.service.protocol import grpc_wire
from agentrl_jax.service.worker.api import Reply
from agentrl_jax.service.worker.heartbeat import PERIOD_S, Answer, Controller

_log = logging.getLogger(__name__)

PAUSE_S = 1.0  # before the next dialling of the controller
CONNECT_S = 20.0  # timeout of dialling
# A break is noticed within this time if data flows, and gRPC holds fewer bytes
# unread. Responses beyond either bound must have arrived.
RESEND_S = 30.0
RESEND_BYTES = 4 << 20
MAX_SEEN = 4096  # remembered ids of requests
MAX_WAITING = 4096  # envelopes waiting for the stream, before requests wait


class StreamingController(Controller):
  """The controller as a worker sees it, reached by gRPC."""

  def __init__(self, address: str, *, token: str = ""):
    self._address, self._token = address, token
    self._id = str(uuid.uuid4())  # of the worker, for life
    self._waiting: asyncio.Queue[Any] = asyncio.Queue(maxsize=MAX_WAITING)
    self._notices: dict[str, Any] = {}  # sent and not yet acknowledged
    self._sent: collections.deque[tuple[float, Any]] = collections.deque()
    self._num_sent_bytes = 0
    self._seen: collections.OrderedDict[str, None] = collections.OrderedDict()
    self._requests: set[asyncio.Task[None]] = set()

  async def keep_alive(
    self, announcement: Mapping[str, Any], answer: Answer
  ) -> None:
    """Dials, beats and answers until cancelled; dials again after a break.

    A cancellation closes the stream and drops requests that are being played;
    their host frees the sessions.
    """
    was_heard = True
    try:
      while True:
        is_heard = await self._converse(announcement, answer)
        if was_heard and not is_heard:
          _log.warning("controller grpc://%s cannot be reached", self._address)
        was_heard = is_heard
        await asyncio.sleep(PAUSE_S)
    finally:
      for request in self._requests:
        request.cancel()
      await asyncio.gather(*self._requests, return_exceptions=True)

  async def notice_cancelled(self, session: int) -> None:
    """Queues a notice that a session has been freed."""
    try:
      self._waiting.put_nowait(grpc_wire.cancel_notice(session))
    except asyncio.QueueFull:  # its next get_sessions shows it
      _log.warning(
        "the controller is not notified that session %d is free", session
      )

  async def _converse(
    self, announcement: Mapping[str, Any], answer: Answer
  ) -> bool:
    """Runs one stream until it breaks; False if there was none."""
    async with grpc_wire.channel(self._address) as channel:
      stream = grpc_wire.dial(channel, self._token)
      try:
        async with asyncio.timeout(CONNECT_S):
          await stream.wait_for_connection()
      except (*grpc_wire.BROKEN, TimeoutError) as error:
        reason = grpc_wire.why(error)
        _log.info("dialling grpc://%s failed: %s", self._address, reason)
        return False
      _log.info("connected to controller grpc://%s", self._address)
      await self._run(stream, announcement, answer)
      return True

  async def _run(
    self, stream: Any, announcement: Mapping[str, Any], answer: Answer
  ) -> None:
    """Reads and writes until either fails or the controller hangs up."""
    halves = [
      asyncio.create_task(self._listen(stream, answer), name="listen"),
      asyncio.create_task(self._speak(stream, announcement), name="speak"),
    ]
    try:
      await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
    finally:
      for half in halves:
        half.cancel()
      ends = await asyncio.gather(*halves, return_exceptions=True)
      stream.cancel()
    errors = [end for end in ends if isinstance(end, Exception)]
    _log.warning(
      "the stream to grpc://%s broke: %s",
      self._address,
      grpc_wire.why(errors[0]) if errors else "the controller hung up",
    )
    for error in errors:
      if not isinstance(error, grpc_wire.BROKEN):
        _log.error("a bug broke the stream; dialling again", exc_info=error)

  async def _speak(self, stream: Any, announcement: Mapping[str, Any]) -> None:
    """Sends the heartbeat, envelopes that may be lost, and then new ones.

    The only writer: a stream takes one envelope at a time.
    """
    await stream.write(grpc_wire.heartbeat(self._id, announcement))
    for envelope in [*self._recent(), *self._notices.values()]:
      await stream.write(envelope)
    beat_at = time.monotonic() + PERIOD_S
    while True:
      envelope = await self._next_waiting(beat_at - time.monotonic())
      if envelope is None:
        envelope = grpc_wire.heartbeat(self._id, announcement)
        beat_at = time.monotonic() + PERIOD_S
      else:
        self._remember(envelope)
      await stream.write(envelope)

  async def _next_waiting(self, within_s: float) -> Any | None:
    if within_s <= 0:
      return None
    try:
      async with asyncio.timeout(within_s):
        return await self._waiting.get()
    except TimeoutError:
      return None

  def _remember(self, envelope: Any) -> None:
    """Keeps an envelope that is about to be sent, in case it is lost."""
    if envelope.type == grpc_wire.RESPONSE:
      self._sent.append((time.monotonic(), envelope))
      self._num_sent_bytes += envelope.ByteSize()
      self._recent()
    else:
      self._notices[envelope.id] = envelope

  def _recent(self) -> list[Any]:
    """Returns the last responses; drops those that must have arrived."""
    oldest = time.monotonic() - RESEND_S
    while len(self._sent) > 1 and (
      self._sent[0][0] < oldest or self._num_sent_bytes > RESEND_BYTES
    ):
      _, arrived = self._sent.popleft()
      self._num_sent_bytes -= arrived.ByteSize()
    return [envelope for sent_at, envelope in self._sent if sent_at >= oldest]

  async def _listen(self, stream: Any, answer: Answer) -> None:
    async for envelope in stream:
      if envelope.type == grpc_wire.RESPONSE:
        self._notices.pop(envelope.id, None)
      elif envelope.WhichOneof("body") == "request" and self._is_new(envelope):
        request = asyncio.create_task(self._play(envelope, answer))
        self._requests.add(request)
        request.add_done_callback(functools.partial(self._finish, envelope.id))

  def _is_new(self, envelope: Any) -> bool:
    """Returns whether a request has not come before, on any stream."""
    if envelope.id in self._seen:
      return False
    self._seen[envelope.id] = None
    if len(self._seen) > MAX_SEEN:
      self._seen.popitem(last=False)
    return True

  def _finish(self, id: str, request: asyncio.Task[None]) -> None:
    """Logs a bug that ended a request, and answers as HTTP would."""
    self._requests.discard(request)
    if not request.cancelled() and (error := request.exception()) is not None:
      _log.error("answering a request failed", exc_info=error)
      failure = "Internal Server Error; see the worker's log"
      with contextlib.suppress(asyncio.QueueFull):
        self._waiting.put_nowait(
          grpc_wire.response(id, 500, None, message=failure)
        )

  async def _play(self, envelope: Any, answer: Answer) -> None:
    """Answers a request, on the stream that is open when it is done."""
    endpoint = envelope.request.endpoint.strip("/")
    try:
      body = json.loads(envelope.request.json or b"null")
    except ValueError as error:
      reply = Reply(400, {"detail": f"the body is no JSON: {error}"})
    else:
      reply = await answer(endpoint, body)
    message = "" if reply.is_ok else reply.body["detail"]
    await self._waiting.put(
      grpc_wire.response(envelope.id, reply.code, reply.body, message=message)
    )
