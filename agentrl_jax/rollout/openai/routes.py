"""OpenAI's API before a `Generator`: routes, streams, and what they count.

POST /v1/completions   GET /v1/models
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import time
from collections.abc import (
  AsyncIterator,
  Callable,
  Iterator,
  Sequence,
  Set,
)
from typing import Any, Protocol

import numpy as np
from aiohttp import web

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.errors import AgentRLError, DeadlineExceeded, ServerFull
from agentrl_jax.rollout.api import Generator
from agentrl_jax.rollout.engine.grammar_compiler import GrammarValidator
from agentrl_jax.rollout.openai.chat import ChatCall
from agentrl_jax.rollout.openai.choices import Choice, Delta, all_deltas
from agentrl_jax.rollout.openai.completions import CompletionCall
from agentrl_jax.rollout.openai.conversation_cache import (
  CallContext,
  ConversationCache,
)
from agentrl_jax.rollout.openai.episode_routes import EpisodeApi
from agentrl_jax.rollout.openai.episodes import Episodes
from agentrl_jax.rollout.openai.fields import Fields
from agentrl_jax.rollout.openai.models import Names, unknown
from agentrl_jax.rollout.openai.requests import CompletionRequest, ServingLimits
from agentrl_jax.rollout.openai.responses import Envelope, usage_of
from agentrl_jax.rollout.openai.structured_output import has_structured_output
from agentrl_jax.rollout.server.errors import (
  PREFIX,
  ApiError,
  error_body,
)
from agentrl_jax.rollout.server.state import ServerState


class Call(Protocol):
  """One call of either endpoint, read and checked."""

  request: CompletionRequest
  envelope: Envelope
  ignored: Set[str]  # names of fields that nobody reads

  @property
  def prompts(self) -> Sequence[np.ndarray]:
    """What the answers follow upon, as tokens."""
    ...

  def draws(self, policy_slot: int) -> list[Choice]:
    """The answers to be drawn from a policy slot."""
    ...

  def settled(self, draw: Choice) -> None:
    """An answer is whole."""
    ...

  def whole(self, draw: Choice) -> dict[str, Any]:
    """A choice of the whole answer."""
    ...

  def chunks(self, draw: Choice, delta: Delta) -> Iterator[dict[str, Any]]:
    """The choices of the chunks that a delta makes."""
    ...

  def extra(self) -> dict[str, Any]:
    """What stands beside the choices."""
    ...


Kind = Callable[[Fields, ServingLimits, ChatCodec | None, CallContext], Call]


class OpenAIModel:
  """One model, by its names; `codec` says None while there is no tokenizer.

  What was said to it is kept in its own tokens, which no other model reads.
  """

  def __init__(
    self,
    names: Names,
    limits: ServingLimits,
    codec: Callable[[], ChatCodec | None],
  ):
    self.names, self.limits, self.codec = names, limits, codec
    self.alone, self.memory = CallContext(limits), ConversationCache(limits)


class CallReader:
  """Reads calls in threads: parsing, tokenising and forms can take a while.

  Calls whose answers keep to a form may wait for a grammar to be checked, so
  they have threads of their own.
  """

  def __init__(self, max_values: int, validator: GrammarValidator):
    self._max_values, self._validator = max_values, validator
    self._plain, self._formed = (
      concurrent.futures.ThreadPoolExecutor(2, f"calls-{name}")
      for name in ("plain", "formed")
    )

  async def parse(self, body: bytes) -> Fields:
    """Raises `ApiError` or `RequestRefused` for what is no JSON object."""
    return await asyncio.get_running_loop().run_in_executor(
      self._plain, functools.partial(Fields, body, max_values=self._max_values)
    )

  async def read(
    self, fields: Fields, kind: Kind, model: OpenAIModel, context: CallContext
  ) -> Call:
    """The call that the fields are. Raises `AgentRLError`."""
    threads = self._formed if has_structured_output(fields) else self._plain
    return await asyncio.get_running_loop().run_in_executor(
      threads, self._read, fields, kind, model, context
    )

  def _read(
    self, fields: Fields, kind: Kind, model: OpenAIModel, context: CallContext
  ) -> Call:
    with self._validator.validating():
      return kind(fields, model.limits, model.codec(), context)


class OpenAIApi:
  """The endpoints; a call's `model` says which of the models answers."""

  def __init__(
    self,
    generator: Generator,
    answering: ServerState,
    models: Sequence[OpenAIModel],
    episodes: Episodes | None = None,
  ):
    self._generator, self._answering = generator, answering
    self._models = tuple(models)
    self._max_calls = max(model.limits.max_calls for model in models)
    self._reader = CallReader(
      max(model.limits.max_values for model in models),
      GrammarValidator(answering.bodies.limits.compile_timeout_s),
    )
    self._episodes = EpisodeApi(episodes, answering.bodies)

  def add_to(self, application: web.Application) -> None:
    """Adds the routes."""
    self._episodes.add_to(application)
    router = application.router
    router.add_post(f"{PREFIX}/completions", self.completions)
    router.add_post(f"{PREFIX}/chat/completions", self.chat)
    router.add_get(f"{PREFIX}/models", self.models)
    router.add_get(f"{PREFIX}/models/{{model:.+}}", self.model)

  async def models(self, request: web.Request) -> web.Response:
    """The versions that are served."""
    return web.json_response({"object": "list", "data": self._listed()})

  async def model(self, request: web.Request) -> web.Response:
    """One of them."""
    name = request.match_info["model"]
    names = self._called_by(name).names
    names.policy_slot_of(name)
    found = [e for e in names.listed() if e["id"] == name]
    if not found:
      raise ApiError(f"{name} has no weights yet", status=404, param="model")
    return web.json_response(found[0])

  async def completions(self, request: web.Request) -> web.StreamResponse:
    """Goes on with prompts."""
    return await self._answered(
      request, CompletionCall, lambda model: model.alone
    )

  async def chat(self, request: web.Request) -> web.StreamResponse:
    """Answers a conversation."""
    return await self._answered(request, ChatCall, lambda model: model.memory)

  def _listed(self) -> list[dict[str, Any]]:
    return [entry for model in self._models for entry in model.names.listed()]

  def _called_by(self, name: Any) -> OpenAIModel:
    """The model that a call names. Where there is one, it says what is wrong.

    Raises `ApiError` if none of several has the name.
    """
    if len(self._models) == 1 or not isinstance(name, str):
      return self._models[0]
    for model in self._models:
      if model.names.knows(name):
        return model
    raise unknown(name, [entry["id"] for entry in self._listed()])

  async def _answered(
    self,
    request: web.Request,
    kind: Kind,
    talk_of: Callable[[OpenAIModel], CallContext],
  ) -> web.StreamResponse:
    episode = self._episodes.called_under(request)
    async with contextlib.AsyncExitStack() as stack:
      generator = self._generator
      async with self._answering.bodies.body(request) as body:
        self._refuse_more()
        stack.enter_context(self._answering.one())
        fields = await self._reader.parse(body)
        model = self._called_by(fields.peek("model"))
        context = talk_of(model)
        if episode is not None:
          stack.enter_context(episode.calling())
          again = episode.repeated(body)
          context, generator = again or episode, again or generator
        call = await self._reader.read(fields, kind, model, context)
      return await self._called(request, call, model, context, generator)

  def _refuse_more(self) -> None:
    if self._answering.num_asked >= self._max_calls:
      raise ServerFull(
        f"{self._answering.num_asked} calls are being answered, which is all "
        "that may at once; ask again later"
      )

  async def _called(
    self,
    request: web.Request,
    call: Call,
    model: OpenAIModel,
    context: CallContext,
    generator: Generator,
  ) -> web.StreamResponse:
    self._answering.metrics.ignored.count(call.ignored)
    policy_slot = context.policy_slot(
      model.names.policy_slot_of(call.request.model)
    )
    self._answering.refuse_unready(policy_slot)
    draws = call.draws(policy_slot)
    deltas = all_deltas(draws, generator, whole=not call.request.stream)
    async with contextlib.aclosing(deltas):
      if call.request.stream:
        return await self._stream(
          request, call, draws, deltas, model.limits.write_s
        )
      async for draw, delta in deltas:
        self._note(call, draw, delta)
    body_json = call.envelope.around([call.whole(draw) for draw in draws])
    usage = usage_of(call.prompts, draws)
    return web.json_response(body_json | call.extra() | {"usage": usage})

  def _note(self, call: Call, draw: Choice, delta: Delta) -> None:
    if delta.is_last:
      call.settled(draw)
      self._answering.metrics.answered(
        prompt=len(draw.prompt),
        reused=draw.num_reused,
        sampled=draw.num_sampled,
        is_constrained=bool(draw.spec.grammar),
      )

  async def _stream(
    self,
    request: web.Request,
    call: Call,
    draws: list[Choice],
    deltas: AsyncIterator[tuple[Choice, Delta]],
    write_s: float,
  ) -> web.StreamResponse:
    """Server-sent events; errors before the first token are plain ones."""
    events = Events(request, write_s)
    usage = {"usage": None} if call.request.include_usage else {}
    beside = call.extra()
    try:
      async for draw, delta in deltas:
        self._note(call, draw, delta)
        if not events.has_begun:
          self._answering.metrics.first_token(events.age_s)
        for choice in call.chunks(draw, delta):
          body = call.envelope.around([choice], chunk=True)
          await events.send(body | beside | usage)
          beside = {}
      if call.request.include_usage:
        body = call.envelope.around([], chunk=True)
        await events.send(body | {"usage": usage_of(call.prompts, draws)})
      await events.done()
    except ConnectionError:  # who has hung up needs no more
      return events.response
    except AgentRLError as error:
      if not events.has_begun:
        raise
      self._answering.failed(error)
      await events.send(error_body(error))
    return await events.close()


class Events:
  """Server-sent events to one client, which may be slow or gone."""

  def __init__(self, request: web.Request, write_s: float):
    self._request, self._write_s = request, write_s
    self._begun = time.monotonic()
    self.response = web.StreamResponse(
      headers={
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
      }
    )

  @property
  def has_begun(self) -> bool:
    """Whether the status has been sent."""
    return self.response.prepared

  @property
  def age_s(self) -> float:
    """Since the call."""
    return time.monotonic() - self._begun

  async def send(self, body: dict[str, Any]) -> None:
    """Waits until the client can take more, up to `write_s`."""
    await self._write(f"data: {json.dumps(body)}\n\n")

  async def done(self) -> None:
    """Says that nothing follows."""
    await self._write("data: [DONE]\n\n")

  async def close(self) -> web.StreamResponse:
    """Ends the response."""
    await self.response.write_eof()
    return self.response

  async def _write(self, text: str) -> None:
    begun = time.monotonic()
    try:
      async with asyncio.timeout(self._write_s):
        if not self.has_begun:
          await self.response.prepare(self._request)
        await self.response.write(text.encode())
    except TimeoutError as error:
      raise DeadlineExceeded(
        f"a client took nothing of its stream for "
        f"{time.monotonic() - begun:.0f} s; it is given up"
      ) from error
