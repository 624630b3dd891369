"""A generator behind HTTP, for learners and agents in other processes.

`POST /generate` and `POST /stream` take a request of `rollout.remote.wire` and
return an answer, whole or in chunks; `GET /health`, `/ready` and `/metrics`
report on the server. Hanging up frees the slot that decodes the answer. Errors
are HTTP statuses and a sentence; `rollout.remote.generator` restores them.
OpenAI's API is below `/v1` (`rollout.openai.routes`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from agentrl_jax.errors import (
  AgentRLError,
  DeadlineExceeded,
  GeneratorFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.http_requests import (
  HttpLimits,
  RequestRefused,
  listen,
  read_body,
)
from agentrl_jax.rollout.api import (
  Completion,
  Generator,
  SamplingParams,
  answer_chunks,
)
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.server.auth import refuse_strangers
from agentrl_jax.rollout.server.errors import (
  RETRY_AFTER_S,
  ApiError,
  explain_errors,
)
from agentrl_jax.rollout.server.metrics import METRICS
from agentrl_jax.rollout.server.state import ServerState

READY = "/ready"
# Connections that may wait while the loop is busy: a learner's episodes begin
# together, and the learner takes a refused connection for a lost server.
_BACKLOG = 4096
_WRITE_TIMEOUT_S = 60.0  # for a client to read a chunk of its answer
# Errors of requests whose body did not arrive, by HTTP status.
_WIRE_ERRORS: Mapping[int, type[AgentRLError]] = {
  408: DeadlineExceeded,
  413: PromptTooLong,
  503: ServerFull,
}


class Routes(Protocol):
  """Other routes of the same server, such as OpenAI's."""

  def add_to(self, application: web.Application) -> None:
    """Adds the routes."""

  def admits(self, request: web.Request) -> bool:
    """Returns whether a request needs no token."""


class RolloutApi:
  """The HTTP routes of a `Generator`."""

  def __init__(
    self,
    generator: Generator,
    status: Callable[[], wire.ServerStatus],
    *,
    context: int,
    openai: Callable[[ServerState], Routes] | None = None,
    http: HttpLimits,
    token: str | None = None,
    slots: Callable[[], Sequence[int]] | None = None,
    is_final: bool = True,
  ):
    self._generator, self._token = generator, token
    # Twice what fits, so that the engine refuses prompts that are too long.
    self._max_bytes = 8 * context + 1024 + wire.MAX_GRAMMAR
    self.limits = http
    self._state = ServerState(status, slots, is_final=is_final, http=http)
    self._openai = openai(self._state) if openai else None

  @property
  def broken(self) -> asyncio.Future[GeneratorFault]:
    """The error that broke the engine, once there is one."""
    return self._state.broken

  @property
  def num_calls(self) -> int:
    """Number of calls that are being answered."""
    return self._state.num_calls

  def application(self) -> web.Application:
    """Returns the application with all routes."""
    application = web.Application(
      middlewares=[
        self._state.metrics.counting,
        _explain_errors,
        explain_errors,
        refuse_strangers(
          self._token, *([self._openai.admits] if self._openai else [])
        ),
      ]
    )
    application.router.add_post(wire.GENERATE, self.generate)
    application.router.add_post(wire.STREAM, self.stream)
    application.router.add_get(wire.HEALTH, self.health)
    application.router.add_get(READY, self.ready)
    application.router.add_get(METRICS, self.metrics)
    if self._openai is not None:
      self._openai.add_to(application)
    return application

  async def generate(self, request: web.Request) -> web.Response:
    """Answers one request; cancelled when its client hangs up."""
    prompt, sampling = await self._read(request)
    self._state.refuse_unready(sampling.policy_slot)
    with self._state.call():
      answer = await self._generator.generate(prompt, sampling)
    self._note(prompt, sampling, answer.num_reused, len(answer.sampled))
    return web.Response(
      body=wire.encode_answer(answer), content_type=wire.CONTENT_TYPE
    )

  async def stream(self, request: web.Request) -> web.StreamResponse:
    """Answers one request in chunks; hanging up frees the slot."""
    prompt, sampling = await self._read(request)
    self._state.refuse_unready(sampling.policy_slot)
    response = _StreamingResponse(request)
    try:
      with self._state.call():
        chunks = answer_chunks(self._generator, prompt, sampling)
        async with contextlib.aclosing(chunks):
          async for chunk in chunks:
            await response.send(chunk)
        finished = await response.end()
    except ConnectionError:  # the client has hung up
      return response.response
    except AgentRLError as error:
      if not response.has_begun:
        raise
      return await response.fail(error)
    self._note(prompt, sampling, response.num_reused, response.num_sampled)
    return finished

  async def health(self, request: web.Request) -> web.Response:
    """Reports the served versions, the load and problems."""
    return web.json_response(self._state.status().to_json())

  async def ready(self, request: web.Request) -> web.Response:
    """Reports whether calls are answered; 503 without weights or draining."""
    self._state.refuse_unready(0)
    return web.Response(text="ready")

  async def metrics(self, request: web.Request) -> web.Response:
    """Returns the metrics in the format of Prometheus."""
    page = await asyncio.to_thread(self._state.metrics.page)
    return web.Response(
      body=page, headers={"Content-Type": CONTENT_TYPE_LATEST}
    )

  async def drain(self, grace_s: float) -> None:
    """See `ServerState.drain`."""
    await self._state.drain(grace_s)

  def _note(
    self,
    prompt: np.ndarray,
    sampling: SamplingParams,
    reused: int,
    sampled: int,
  ) -> None:
    self._state.metrics.answered(
      prompt=len(prompt),
      reused=reused,
      sampled=sampled,
      is_constrained=bool(sampling.grammar),
    )

  async def _read(
    self, request: web.Request
  ) -> tuple[np.ndarray, SamplingParams]:
    try:
      body = await read_body(
        request, self._state.http, max_body=self._max_bytes
      )
      return wire.decode_request(body)
    except RequestRefused as error:
      raise _WIRE_ERRORS.get(error.status, wire.WireError)(
        str(error)
      ) from error


class _StreamingResponse:
  """The response of one call, sent as frames while the answer is sampled.

  Nothing is sent before the first chunk, so that earlier errors have a status.
  """

  def __init__(self, request: web.Request):
    self._request = request
    self.response = web.StreamResponse()
    self.response.content_type = wire.CONTENT_TYPE
    self.num_sampled = self.num_reused = 0

  @property
  def has_begun(self) -> bool:
    """True once the status has been sent."""
    return self.response.prepared

  async def send(self, chunk: Completion) -> None:
    """Waits until the client can read more. Raises `ConnectionError`."""
    self.num_sampled += len(chunk.sampled)
    self.num_reused = chunk.num_reused
    await self._write(wire.encode_chunk(chunk))

  async def end(self) -> web.StreamResponse:
    """Ends the response after the last chunk."""
    return await self._finish(wire.encode_end())

  async def fail(self, error: AgentRLError) -> web.StreamResponse:
    """Ends the response with an error."""
    return await self._finish(wire.encode_fault(error))

  async def _finish(self, frame: bytes) -> web.StreamResponse:
    await self._write(frame)
    await self.response.write_eof()
    return self.response

  async def _write(self, frame: bytes) -> None:
    try:
      async with asyncio.timeout(_WRITE_TIMEOUT_S):
        if not self.has_begun:
          await self.response.prepare(self._request)
        await self.response.write(frame)
    except TimeoutError as error:
      if self._request.transport is not None:
        self._request.transport.abort()  # aiohttp would wait for it again
      raise ConnectionAbortedError(
        f"a client read nothing of its answer for {_WRITE_TIMEOUT_S:g} s"
      ) from error


@contextlib.asynccontextmanager
async def listening(
  api: RolloutApi, host: str, port: int, flags: str = "--port or --host"
) -> AsyncIterator[int]:
  """Serves within the context; yields the port, a free one for port 0."""
  runner = web.AppRunner(
    api.application(),
    handler_cancellation=True,  # hanging up frees the slot
    **api.limits.runner_options(),
  )
  await runner.setup()
  try:
    yield await listen(runner, host, port, flags=flags, backlog=_BACKLOG)
  finally:
    await runner.cleanup()


@web.middleware
async def _explain_errors(
  request: web.Request, handler: Handler
) -> web.StreamResponse:
  try:
    return await handler(request)
  except AgentRLError as error:
    is_refusal = isinstance(error, ApiError | RequestRefused)
    refused = error.status if is_refusal else None
    status = refused or wire.status_of(error)
    headers = {wire.ERROR_HEADER: wire.name_of(error)}
    if isinstance(error, ServerFull):
      headers["Retry-After"] = str(RETRY_AFTER_S)
    text = str(error).encode(errors="backslashreplace")
    return web.Response(
      status=status, body=text, headers=headers, content_type="text/plain"
    )
