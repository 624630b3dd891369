"""A generator behind HTTP, for learners in other processes.

`POST /generate` takes a request in binary and gives an answer in binary;
`GET /health` tells in JSON what is served and how much there is to do. Who
hangs up has the lane freed that decodes for them. Errors are HTTP statuses and
a sentence; `rollout.http_generator` makes them errors again.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from aiohttp import web

from agentrl_jax.errors import (
  AgentRLError,
  ConfigError,
  DeadlineExceeded,
  GeneratorFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.rollout import wire
from agentrl_jax.rollout.client import Generator

# Seconds, of which a header takes whole ones only.
RETRY_AFTER_S = 1

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RolloutApi:
  """The HTTP face of a `Generator`."""

  def __init__(
    self,
    generator: Generator,
    status: Callable[[], wire.ServerStatus],
    *,
    context: int,
  ):
    self._generator, self._status = generator, status
    # Twice what fits, so that it is the engine that says how long is too long.
    self._max_bytes = 8 * context + 1024
    self._is_draining = False
    self._asked = 0
    self._emptied = asyncio.Event()
    self._emptied.set()
    # What broke the engine, once something has: no request will be answered.
    self.broken: asyncio.Future[GeneratorFault] = (
      asyncio.get_running_loop().create_future()
    )

  def application(self) -> web.Application:
    """The routes, ready to be run."""
    application = web.Application(
      middlewares=[_explain_errors], client_max_size=self._max_bytes
    )
    application.router.add_post(wire.GENERATE, self.generate)
    application.router.add_get(wire.HEALTH, self.health)
    return application

  async def generate(self, request: web.Request) -> web.Response:
    """Answers one request; cancelled when its client is gone."""
    prompt, spec = wire.decode_request(await self._body(request))
    self._refuse_unready(spec.slot)
    with self._counted():
      try:
        answer = await self._generator.generate(prompt, spec)
      except (PromptTooLong, ServerFull):
        raise
      except GeneratorFault as fault:
        if not self.broken.done():
          self.broken.set_result(fault)
        self._is_draining = True
        raise
    return web.Response(
      body=wire.encode_answer(answer), content_type=wire.CONTENT_TYPE
    )

  async def health(self, request: web.Request) -> web.Response:
    """What is served per version slot, how much there is to do, and trouble."""
    status = dataclasses.replace(self._status(), is_draining=self._is_draining)
    return web.json_response(status.to_json())

  async def drain(self, grace_s: float) -> None:
    """Takes nothing new, and waits for what is being answered.

    Raises `DeadlineExceeded` if that takes longer than `grace_s`.
    """
    self._is_draining = True
    try:
      async with asyncio.timeout(grace_s):
        await self._emptied.wait()
    except TimeoutError as error:
      raise DeadlineExceeded(
        f"{self._asked} answers were not finished within rollouts.grace_s="
        f"{grace_s:g} s of being told to stop; their clients ask another server"
      ) from error

  async def _body(self, request: web.Request) -> bytes:
    try:
      return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
      raise PromptTooLong(
        f"a request of more than {self._max_bytes} bytes came, which is beyond "
        "any prompt that fits in engine.context"
      ) from error

  def _refuse_unready(self, slot: int) -> None:
    status = self._status()
    if self._is_draining:
      raise wire.Draining("this server was told to stop; ask another one")
    if slot in range(len(status.slots)) and not status.answers(slot):
      raise wire.NotServing(
        f"this server waits for the first snapshot of version slot {slot}; it "
        f"has {status.slots}. {status.trouble}"
      )

  @contextlib.contextmanager
  def _counted(self) -> Iterator[None]:
    self._asked += 1
    self._emptied.clear()
    try:
      yield
    finally:
      self._asked -= 1
      if not self._asked:
        self._emptied.set()


@contextlib.asynccontextmanager
async def listening(
  api: RolloutApi, host: str, port: int
) -> AsyncIterator[int]:
  """Serves until it is left; the port, which is a free one for port 0."""
  runner = web.AppRunner(
    api.application(),
    handle_signals=False,
    access_log=None,
    handler_cancellation=True,  # who hangs up frees the lane
  )
  await runner.setup()
  try:
    try:
      await web.TCPSite(runner, host, port).start()
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
    status = wire.status_of(error)
    headers = {wire.ERROR_HEADER: wire.name_of(error)}
    if isinstance(error, ServerFull):
      headers["Retry-After"] = str(RETRY_AFTER_S)
    return web.Response(status=status, text=str(error), headers=headers)
