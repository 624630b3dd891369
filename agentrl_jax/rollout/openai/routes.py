"""Routes of OpenAI's and Anthropic's APIs, by whose wires agents call."""

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.errors import AgentRLError, DeadlineExceeded, ServerFull
from agentrl_jax.http_requests import read_body
from agentrl_jax.rollout.api import Generator
from agentrl_jax.rollout.openai.chat import ChatCall
from agentrl_jax.rollout.openai.choices import Choice, Delta, all_deltas
from agentrl_jax.rollout.openai.completions import CompletionCall
from agentrl_jax.rollout.openai.conversation_cache import (
  CallContext,
  ConversationCache,
)
from agentrl_jax.rollout.openai.episodes.offers import (
  EpisodeApi,
  Episodes,
  identity_of,
)
from agentrl_jax.rollout.openai.models import Names, unknown_model
from agentrl_jax.rollout.openai.schema import (
  ChatCompletionRequest,
  CompletionRequest,
  ServingLimits,
  TextCompletionRequest,
)
from agentrl_jax.rollout.openai.validation import parse_object
from agentrl_jax.rollout.openai.wires.messages import MESSAGES, read_count
from agentrl_jax.rollout.openai.wires.responses import RESPONSES
from agentrl_jax.rollout.openai.wires.wire import (
  CHAT,
  COMPLETIONS,
  Call,
  Event,
  Wire,
  WireReply,
)
from agentrl_jax.rollout.server.errors import EPISODE_PREFIX, PREFIX, ApiError
from agentrl_jax.rollout.server.state import ServerState

_LONG_BODY = 1 << 16  # bytes, which take about fifty milliseconds

# Prefixes of all calls; with an episode's id it is recorded there.
_PREFIXES = (PREFIX, f"{EPISODE_PREFIX}/{{episode}}{PREFIX}")
_WIRES = (COMPLETIONS, CHAT, MESSAGES, RESPONSES)


class OpenAIModel:
  """One model by its names; `codec` returns None without a tokenizer.

  Every model has a conversation cache of its own, since tokens differ.
  """

  def __init__(
    self,
    names: Names,
    limits: ServingLimits,
    codec: Callable[[], ChatCodec | None],
  ):
    self.names, self.limits, self.codec = names, limits, codec
    self.no_context = CallContext(limits)
    self.conversations = ConversationCache(limits)


class CallReader:
  """Reads calls in threads: parsing, tokenizing and grammars can take long.

  Calls with structured output wait for a grammar to be validated, and long ones
  for each other: both have threads of their own, so that short ones wait for
  neither.
  """

  def __init__(self, max_values: int):
    self._max_values = max_values
    self._plain, self._structured = (
      concurrent.futures.ThreadPoolExecutor(2, f"calls-{name}")
      for name in ("plain", "structured")
    )
    self._long = concurrent.futures.ThreadPoolExecutor(1, "calls-long")

  async def validate(
    self, body: bytes, read: Callable[[Mapping[str, Any]], CompletionRequest]
  ) -> CompletionRequest:
    """Validates a request. Raises `ApiError` or `RequestRefused`."""
    return await asyncio.get_running_loop().run_in_executor(
      self._long if len(body) > _LONG_BODY else self._plain,
      lambda: read(parse_object(body, max_values=self._max_values)),
    )

  async def tokenize(
    self,
    request: CompletionRequest,
    model: OpenAIModel,
    context: CallContext,
    *,
    num_bytes: int,
  ) -> Call:
    """Tokenizes the prompts and compiles grammars. Raises `AgentRLError`.

    `num_bytes` are those of the call's body.
    """
    executor = self._plain
    if num_bytes > _LONG_BODY:
      executor = self._long
    elif request.wants_structured_output or context.calls != "free":
      executor = self._structured
    return await asyncio.get_running_loop().run_in_executor(
      executor, functools.partial(self._tokenize, request, model, context)
    )

  def _tokenize(
    self, request: CompletionRequest, model: OpenAIModel, context: CallContext
  ) -> Call:
    limits, codec = model.limits, model.codec()
    if isinstance(request, ChatCompletionRequest):
      return ChatCall(request, limits, codec, context)
    assert isinstance(request, TextCompletionRequest)
    return CompletionCall(request, limits, codec, context)


class OpenAIApi:
  """The endpoints; `model` of a call selects one of the models."""

  def __init__(
    self,
    generator: Generator,
    state: ServerState,
    models: Sequence[OpenAIModel],
    episodes: Episodes | None = None,
  ):
    self._generator, self._state = generator, state
    self._models = tuple(models)
    self._max_calls = max(model.limits.max_calls for model in models)
    self._reader = CallReader(max(m.limits.max_values for m in models))
    self._episodes = EpisodeApi(episodes, state.http)

  def add_to(self, application: web.Application) -> None:
    """Adds the routes."""
    self._episodes.add_to(application)
    router = application.router
    for prefix in _PREFIXES:
      for wire in _WIRES:
        answer = functools.partial(self._answer, wire=wire)
        router.add_post(f"{prefix}{wire.path}", answer)
      router.add_post(f"{prefix}/messages/count_tokens", self.count_tokens)
      router.add_get(f"{prefix}/models", self.models)
      router.add_get(f"{prefix}/models/{{model:.+}}", self.model)

  def admits(self, request: web.Request) -> bool:
    """Returns whether a call's key is the id of its episode."""
    return self._episodes.has_key(request)

  async def models(self, request: web.Request) -> web.Response:
    """Lists the versions that are served."""
    return web.json_response({"object": "list", "data": self._listed()})

  async def model(self, request: web.Request) -> web.Response:
    """Describes one version."""
    name = request.match_info["model"]
    names = self._model_of(name).names
    names.policy_slot_of(name)
    for entry in names.listed():
      if entry["id"] == name:
        return web.json_response(entry)
    raise ApiError(f"{name} has no weights yet", status=404, param="model")

  async def count_tokens(self, request: web.Request) -> web.Response:
    """Counts the tokens of a prompt, and samples nothing."""
    body = await read_body(request, self._state.http)
    call = await self._reader.validate(body, read_count)
    model = self._model_of(call.model)
    tokenized = await self._reader.tokenize(
      call, model, model.conversations, num_bytes=len(body)
    )
    return web.json_response({"input_tokens": len(tokenized.prompts[0])})

  def _listed(self) -> list[dict[str, Any]]:
    return [entry for model in self._models for entry in model.names.listed()]

  def _model_of(self, name: str) -> OpenAIModel:
    """Returns the model that a call names; a single one checks it itself.

    Raises `ApiError` if none of several has the name.
    """
    if len(self._models) == 1:
      return self._models[0]
    for model in self._models:
      if model.names.knows(name):
        return model
    raise unknown_model(name, [entry["id"] for entry in self._listed()])

  async def _answer(
    self, http_request: web.Request, wire: Wire
  ) -> web.StreamResponse:
    episode = self._episodes.episode_of(http_request)
    async with contextlib.AsyncExitStack() as stack:
      generator = self._generator
      body = await read_body(http_request, self._state.http)
      self._refuse_more()
      stack.enter_context(self._state.call())
      request = await self._reader.validate(body, wire.read)
      model = self._model_of(request.model)
      is_chat = isinstance(request, ChatCompletionRequest)
      context = model.conversations if is_chat else model.no_context
      if episode is not None:
        role = self._episodes.role_of(http_request)
        key, is_new = identity_of(http_request)
        calling = episode.calling(body, role, key, is_new=is_new)
        episode_call = stack.enter_context(calling)
        repeated = episode_call.repeated()
        context, generator = repeated or episode_call, repeated or generator
      call = await self._reader.tokenize(
        request, model, context, num_bytes=len(body)
      )
      reply = wire.reply(call)
      return await self._respond(
        http_request, call, reply, model, context, generator
      )

  def _refuse_more(self) -> None:
    if self._state.num_calls >= self._max_calls:
      raise ServerFull(
        f"{self._state.num_calls} calls are being answered, which is all that "
        "may be at once; ask again later"
      )

  async def _respond(
    self,
    http_request: web.Request,
    call: Call,
    reply: WireReply,
    model: OpenAIModel,
    context: CallContext,
    generator: Generator,
  ) -> web.StreamResponse:
    request = call.request
    self._state.metrics.ignored.count(request.ignored)
    policy_slot = context.policy_slot(model.names.policy_slot_of(request.model))
    self._state.refuse_unready(policy_slot)
    choices = call.choices(policy_slot)
    deltas = all_deltas(choices, generator, stream=request.stream)
    async with contextlib.aclosing(deltas):
      if request.stream:
        return await self._stream(
          http_request, call, reply, choices, deltas, model.limits.write_s
        )
      async for choice, delta in deltas:
        self._note(call, choice, delta)
    return web.json_response(reply.whole(choices))

  def _note(self, call: Call, choice: Choice, delta: Delta) -> None:
    if delta.is_last:
      call.finish(choice)
      self._state.metrics.answered(
        prompt=len(choice.prompt),
        reused=choice.num_reused,
        sampled=choice.num_sampled,
        is_constrained=bool(choice.sampling.grammar),
      )

  async def _stream(
    self,
    http_request: web.Request,
    call: Call,
    reply: WireReply,
    choices: list[Choice],
    deltas: AsyncIterator[tuple[Choice, Delta]],
    write_s: float,
  ) -> web.StreamResponse:
    """Sends server-sent events; errors before the first token have a status."""
    events = Events(http_request, write_s)
    try:
      async for choice, delta in deltas:
        self._note(call, choice, delta)
        if not events.has_begun:
          self._state.metrics.first_token(events.age_s)
        for event in reply.events(choice, delta):
          await events.send(event)
      for event in reply.last_events(choices):
        await events.send(event)
    except ConnectionError:  # the client has hung up
      return events.response
    except AgentRLError as error:
      if not events.has_begun:
        raise
      self._state.failed(error)
      await events.send(reply.failure(error))
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
    """True once the status has been sent."""
    return self.response.prepared

  @property
  def age_s(self) -> float:
    """Seconds since the call."""
    return time.monotonic() - self._begun

  async def send(self, event: Event) -> None:
    """Waits until the client can accept more, up to `write_s`."""
    name, data = event
    head = f"event: {name}\n" if name else ""
    text = data if isinstance(data, str) else json.dumps(data)
    await self._write(f"{head}data: {text}\n\n")

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
        f"a client read nothing of its stream for "
        f"{time.monotonic() - begun:.0f} s; the stream is ended"
      ) from error
