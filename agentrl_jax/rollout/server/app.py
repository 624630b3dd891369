"""A generator behind HTTP, for learners and agents in other processes.

`POST /generate` takes a request in binary and gives an answer in binary, `POST
/stream` the same while it is sampled; `GET /health` tells in JSON what is
served and how much there is to do, `GET /ready` whether it is any use to ask,
and `GET /metrics` what Prometheus wants to know. Who hangs up has the slot
freed that decodes for them. Errors are HTTP statuses and a sentence;
`rollout.remote.generator` makes them errors again.

Below `/v1` stands OpenAI's API, where there is one (`rollout.openai.routes`).
"""

import asyncio
import contextlib
import gc
from collections.abc import (
  AsyncIterator,
  Callable,
  Mapping,
  Sequence,
)
from typing import Protocol

import numpy as np
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from agentrl_jax.errors import (
  AgentRLError,
  ConfigError,
  DeadlineExceeded,
  GeneratorFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.http_requests import HttpLimits, RequestRefused
from agentrl_jax.rollout.api import Generator, SamplingSpec, answer_chunks
from agentrl_jax.rollout.remote import wire, wire_stream
from agentrl_jax.rollout.server.auth import refuse_strangers
from agentrl_jax.rollout.server.errors import (
  RETRY_AFTER_S,
  ApiError,
  explain_errors,
)
from agentrl_jax.rollout.server.metrics import METRICS
from agentrl_jax.rollout.server.state import ServerState
from agentrl_jax.rollout.server.streaming_response import StreamingResponse

READY = "/ready"
# Connections that may come while the loop is busy: a learner's attempts begin
# together, and one that is refused is a server that was lost.
_BACKLOG = 4096
# What a learner makes of a request that did not come as one.
_WIRE_ERRORS: Mapping[int, type[AgentRLError]] = {
  408: DeadlineExceeded,
  413: PromptTooLong,
  503: ServerFull,
}


class Routes(Protocol):
  """More routes of the same server, such as OpenAI's."""

  def add_to(self, application: web.Application) -> None:
    """Adds them."""


class RolloutApi:
  """The HTTP face of a `Generator`."""

  def __init__(
    self,
    generator: Generator,
    status: Callable[[], wire.ServerStatus],
    *,
    context: int,
    openai: Callable[[ServerState], Routes] | None = None,
    http: HttpLimits = HttpLimits(),  # noqa: B008 - frozen
    token: str | None = None,
    slots: Callable[[], Sequence[int]] | None = None,
    is_final: bool = True,
  ):
    self._generator, self._token = generator, token
    # Twice what fits, so that it is the engine that says how long is too long.
    self._max_bytes = 8 * context + 1024 + wire.MAX_GRAMMAR
    self.limits = http
    self._answering = ServerState(status, slots, is_final=is_final, http=http)
    self._openai = openai(self._answering) if openai else None

  @property
  def broken(self) -> asyncio.Future[GeneratorFault]:
    """What broke the engine, once something has."""
    return self._answering.broken

  @property
  def num_asked(self) -> int:
    """Calls that are being answered."""
    return self._answering.num_asked

  def application(self) -> web.Application:
    """The routes, ready to be run."""
    application = web.Application(
      middlewares=[
        self._answering.metrics.counting,
        _explain_errors,
        explain_errors,
        refuse_strangers(self._token),
      ]
    )
    application.router.add_post(wire.GENERATE, self.generate)
    application.router.add_post(wire_stream.STREAM, self.stream)
    application.router.add_get(wire.HEALTH, self.health)
    application.router.add_get(READY, self.ready)
    application.router.add_get(METRICS, self.metrics)
    if self._openai is not None:
      self._openai.add_to(application)
    return application

  async def generate(self, request: web.Request) -> web.Response:
    """Answers one request; cancelled when its client is gone."""
    prompt, spec = await self._read(request)
    self._answering.refuse_unready(spec.policy_slot)
    with self._answering.one():
      answer = await self._generator.generate(prompt, spec)
    self._note(prompt, spec, answer.num_reused, len(answer.sampled))
    return web.Response(
      body=wire.encode_answer(answer), content_type=wire.CONTENT_TYPE
    )

  async def stream(self, request: web.Request) -> web.StreamResponse:
    """Answers one request in pieces; who hangs up frees the slot."""
    prompt, spec = await self._read(request)
    self._answering.refuse_unready(spec.policy_slot)
    response = StreamingResponse(request)
    try:
      with self._answering.one():
        pieces = answer_chunks(self._generator, prompt, spec)
        async with contextlib.aclosing(pieces):
          async for piece in pieces:
            await response.send(piece)
        ended = await response.end()
    except ConnectionError:  # who has hung up needs no more
      return response.response
    except AgentRLError as error:
      if not response.has_begun:
        raise
      return await response.fail(error)
    self._note(prompt, spec, response.num_reused, response.num_sampled)
    return ended

  async def health(self, request: web.Request) -> web.Response:
    """What is served per policy slot, how much there is to do, and trouble."""
    return web.json_response(self._answering.status().to_json())

  async def ready(self, request: web.Request) -> web.Response:
    """200 while calls are answered; 503 without weights, and while draining."""
    self._answering.refuse_unready(0)
    return web.Response(text="ready")

  async def metrics(self, request: web.Request) -> web.Response:
    """Counts, as Prometheus reads them."""
    page = await asyncio.to_thread(self._answering.metrics.page)
    return web.Response(
      body=page, headers={"Content-Type": CONTENT_TYPE_LATEST}
    )

  async def drain(self, grace_s: float) -> None:
    """See `ServerState.drain`."""
    await self._answering.drain(grace_s)

  def _note(
    self, prompt: np.ndarray, spec: SamplingSpec, reused: int, sampled: int
  ) -> None:
    self._answering.metrics.answered(
      prompt=len(prompt),
      reused=reused,
      sampled=sampled,
      is_constrained=bool(spec.grammar),
    )

  async def _read(
    self, request: web.Request
  ) -> tuple[np.ndarray, SamplingSpec]:
    try:
      bodies = self._answering.bodies
      async with bodies.body(request, max_body=self._max_bytes) as body:
        return wire.decode_request(body)
    except RequestRefused as error:
      raise _WIRE_ERRORS.get(error.status, wire.WireError)(
        str(error)
      ) from error


def spare_collections() -> None:
  """Leaves all that lives now out of later garbage collections.

  For a process that serves and does nothing else, once it is ready: a full
  collection would look through jax and the model, too, and hold the event loop
  for 150 ms, whenever somebody's JSON happens to begin one.
  """
  gc.collect()
  gc.freeze()


@contextlib.asynccontextmanager
async def listening(
  api: RolloutApi, host: str, port: int
) -> AsyncIterator[int]:
  """Serves until it is left; the port, which is a free one for port 0."""
  runner = web.AppRunner(
    api.application(),
    handler_cancellation=True,  # who hangs up frees the slot
    **api.limits.runner_options(),
  )
  await runner.setup()
  try:
    try:
      await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
    except OSError as error:
      raise ConfigError(
        f"cannot listen on {host}:{port} ({error.strerror}); choose another "
        "--port or --host"
      ) from error
    yield int(runner.addresses[0][1])
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
