"""Plays any model that speaks OpenAI's chat API, for its scores.

  player = EndpointPlayer(
    environments=environments, max_turns=20, waits=waits,
    endpoint=ChatEndpoint(url="http://host:8000/v1", model="qwen"),
  )

Nothing is recorded as tokens, so such episodes cannot be trained on. What a
reply of the endpoint costs:

- A busy endpoint is asked again by the `openai` package, for less than a
  minute and within `answer_timeout_s`; then, as after a reply that cannot be
  read, the episode has a `GeneratorFault`.
- A full context, in the words of any server, ends the episode as such.
- A refusal of the key, or before the endpoint has answered anything, is a
  `ConfigError`: every task would be refused.
- Thoughts are kept in the fields that had them, and sent back in these.
- A later refusal is the policy's doing if it wrote something that some servers
  do not accept in a conversation, and else a fault of the episode.
"""

import asyncio
import dataclasses
import functools
import json
import re
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import openai

from agentrl_jax.bearer_token import HEADER
from agentrl_jax.controller.evaluation import TaskScore
from agentrl_jax.controller.player import Answerer, TextPlayer
from agentrl_jax.data.forms.content import THOUGHT_FIELDS, thoughts_of
from agentrl_jax.data.records import (
  EpisodeSpec,
  Message,
  Status,
  Tool,
  ToolCall,
  message_from_json,
  message_to_json,
  tool_to_json,
)
from agentrl_jax.data.tool_calls import parse_portable
from agentrl_jax.env.interface import Environment, Step
from agentrl_jax.errors import ConfigError, GeneratorFault
from launch.serving.refusals import is_filtered, is_full_context

TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
MALFORMED = "malformed_arguments"  # argument that has text that is no object
NOT_PLAYED = "Not played."  # reply to a call that the environment ignored
_MAY_PASS = {408, 409, 429}  # as 500 and above
_ABOUT_THE_REQUEST, _ABOUT_THE_KEY = {400, 422}, {401, 402}
_SHOWN = 500  # characters of a reply
# Flags that leave a parameter out.
_LEFT_OUT = {
  "temperature": "--noendpoint_temperature",
  "seed": "--noendpoint_seed",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatEndpoint:
  """A model at an address, and the settings of its answers."""

  url: str  # up to /v1
  model: str
  key: str = ""  # sent as a bearer token; "" sends none
  temperature: float | None = 0.0  # None sends none
  max_tokens: int = 1024  # of an answer
  token_limit: str = TOKEN_LIMITS[0]  # the parameter that has `max_tokens`
  answer_timeout_s: float = 600.0  # for an answer, repeated requests included
  max_retries: int = 10  # of a request
  sends_seed: bool = True  # some endpoints refuse one

  def __post_init__(self) -> None:
    if not _is_address(self.url):
      raise ConfigError(
        f"--endpoint={self.url} must be an address such as http://host:8000/v1"
      )
    if self.token_limit not in TOKEN_LIMITS:
      raise ConfigError(
        f"--endpoint_tokens={self.token_limit} must be one of "
        f"{', '.join(TOKEN_LIMITS)}"
      )

  def body(
    self, messages: Sequence[Message], tools: Sequence[Tool], seed: int
  ) -> dict[str, Any]:
    """Returns a request for the next message."""
    body: dict[str, Any] = {
      "model": self.model,
      "messages": history(messages),
      self.token_limit: self.max_tokens,
    }
    if self.temperature is not None:
      body["temperature"] = self.temperature
    if tools:
      body["tools"] = [tool_to_json(tool) for tool in tools]
    if self.sends_seed:
      body["seed"] = seed % 2**31
    return body


class EndpointClient:
  """Asks an endpoint, and keeps what its replies tell about it."""

  def __init__(self, endpoint: ChatEndpoint):
    self._endpoint = endpoint
    self._tls = ssl.create_default_context()  # takes long, so made once
    self.has_answered = False
    self.last_fault = ""

  async def ask(
    self, messages: Sequence[Message], tools: Sequence[Tool], *, seed: int
  ) -> Message | Status:
    """Returns the next message, or how the episode ends without one.

    Raises `GeneratorFault` for this episode, and `ConfigError` where each would
    fail likewise.
    """
    limit_s = self._endpoint.answer_timeout_s
    try:
      async with asyncio.timeout(limit_s), self._client() as client:
        reply = await client.chat.completions.with_raw_response.create(
          **self._endpoint.body(messages, tools, seed),
          extra_headers=None if self._endpoint.key else {HEADER: openai.Omit()},
        )
    except openai.APIStatusError as error:
      return self._refused(error.status_code, error.response.text, messages)
    except (openai.APIConnectionError, TimeoutError) as error:
      raise self._fault(
        f"gave no answer within {limit_s:g} s (waits.answer_timeout_s): "
        f"{error!r} {error.__cause__ or ''}"
      ) from error
    found = read_reply(reply.text, number=len(messages))
    if found is None:
      raise self._fault(
        "gave a reply that is not in the form of OpenAI's chat API: "
        f"{reply.text[:_SHOWN]}"
      )
    self.has_answered = True
    return found

  def _client(self) -> openai.AsyncOpenAI:
    # Connections belong to an event loop, so each request has its own client.
    # With no key at all it would send that of OPENAI_API_KEY.
    return openai.AsyncOpenAI(
      base_url=self._endpoint.url,
      api_key=self._endpoint.key or "none",
      max_retries=self._endpoint.max_retries,
      timeout=self._endpoint.answer_timeout_s,
      http_client=openai.DefaultAsyncHttpxClient(verify=self._tls),
    )

  def _refused(
    self, status: int, text: str, messages: Sequence[Message]
  ) -> Status:
    said = f"HTTP {status} {text[:_SHOWN]}"
    if is_full_context(status, text[:20_000]):
      self.last_fault = f"{self._endpoint.url} said {said}"
      return Status.AGENT_CONTEXT_LIMIT
    may_pass = status in _MAY_PASS or status >= 500
    is_about_all = status not in _ABOUT_THE_REQUEST | _ABOUT_THE_KEY
    if (may_pass and "insufficient_quota" not in text) or (
      self.has_answered and is_about_all
    ):
      raise self._fault(f"gives no answer: {said}")
    is_about_it = status in _ABOUT_THE_REQUEST
    if is_about_it and (self.has_answered or is_filtered(text)):
      if any(is_unusual(message) for message in messages):
        return Status.AGENT_VALIDATION_FAILED
      raise self._fault(f"refuses a request: {said}")
    raise ConfigError(
      f"{self._endpoint.url} refuses the request of model "
      f"{self._endpoint.model!r}: {said}{_remedy(self._endpoint, text)}"
    )

  def _fault(self, problem: str) -> GeneratorFault:
    self.last_fault = f"{self._endpoint.url} {problem}"
    return GeneratorFault(self.last_fault)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndpointPlayer(TextPlayer):
  """Plays the model behind an endpoint."""

  endpoint: ChatEndpoint

  @functools.cached_property
  def client(self) -> EndpointClient:
    """The client of all episodes, which share what it learned."""
    return EndpointClient(self.endpoint)

  def require_answers(self, scores: Mapping[str, TaskScore]) -> None:
    """Raises `ConfigError` if no task has a score that the model earned.

    Faults lost every task, or no task's first request fits the context.
    """
    num_lost = sum(score.num_lost for score in scores.values())
    num_scored = sum(score.num_tasks for score in scores.values())
    is_any_played = num_scored and self.client.has_answered
    if self.client.last_fault and not is_any_played:
      raise ConfigError(
        f"none of {num_lost + num_scored} episodes could be played, since "
        f"{self.client.last_fault}. Check --endpoint and --model, and its "
        "context if a request is too long"
      )

  def _answerer(self, environment: Environment, spec: EpisodeSpec) -> Answerer:
    del environment

    async def answer(
      messages: Sequence[Message], step: Step, tools: Sequence[Tool]
    ) -> Message | Status:
      del step
      return await self.client.ask(messages, tools, seed=spec.seed)

    return answer


def _remedy(endpoint: ChatEndpoint, text: str) -> str:
  """Returns a sentence about the parameter that a refusal names, or ""."""
  (other,) = set(TOKEN_LIMITS) - {endpoint.token_limit}
  flags = {**_LEFT_OUT, endpoint.token_limit: f"--endpoint_tokens={other}"}
  for word, flag in flags.items():
    if re.search(rf"\b{word}\b", text):
      return f". If it knows no {word}, try {flag}"
  return ""


def history(messages: Sequence[Message]) -> list[dict[str, Any]]:
  """Returns the messages in a form that servers accept.

  Servers refuse a whole conversation for one call that its model wrote badly,
  or that has no reply. So, whatever the policy wrote:

  - arguments that are no JSON object are sent as an object, in which
    `malformed_arguments` has their text;
  - characters that a function's name cannot have are sent as underscores;
  - each call has one reply, before any other message: a call that the
    environment ignored is replied to by `NOT_PLAYED`.
  """
  sent: list[dict[str, Any]] = []
  rest: list[Message] = []
  answer: Message | None = None
  for message in messages:
    if message.role == "assistant":
      sent += _exchange(answer, rest)
      answer, rest = message, []
    else:
      rest.append(message)
  return sent + _exchange(answer, rest)


def _exchange(
  answer: Message | None, rest: Sequence[Message]
) -> list[dict[str, Any]]:
  """Returns an answer and what the environment said to it."""
  calls = () if answer is None else answer.tool_calls
  ids = {call.id for call in calls}
  replies: dict[str | None, str] = {}
  others = []
  for message in rest:
    if message.role == "tool" and message.tool_call_id in ids:
      before = replies.get(message.tool_call_id)
      text = (
        message.content if before is None else f"{before}\n{message.content}"
      )
      replies[message.tool_call_id] = text
    else:
      role = "user" if message.role == "tool" else message.role
      others.append(Message(role, message.content))
  whole = [
    *(() if answer is None else (_portable(answer),)),
    *(
      Message("tool", replies.get(call.id, NOT_PLAYED), tool_call_id=call.id)
      for call in calls
    ),
    *others,
  ]
  return [message_to_json(message) for message in whole]


def _portable(answer: Message) -> Message:
  """Returns an answer whose calls every server can read."""
  return dataclasses.replace(
    answer,
    tool_calls=tuple(
      ToolCall(
        re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64] or "_",
        call.arguments
        if _is_object(call.arguments)
        else json.dumps({MALFORMED: call.arguments}),
        call.id,
      )
      for call in answer.tool_calls
    ),
  )


def _is_object(arguments: str) -> bool:
  try:
    return isinstance(parse_portable(arguments), dict)
  except (ValueError, RecursionError):
    return False


def is_unusual(message: Message) -> bool:
  """Says if a message is an answer that some server may not accept."""
  if message.role != "assistant":
    return False
  return _is_empty(message) or _portable(message) != message


def _is_empty(answer: Message) -> bool:
  return not answer.tool_calls and not answer.content.strip()


def read_reply(text: str, *, number: int) -> Message | Status | None:
  """Reads the body of a success; None if it has no answer in OpenAI's form.

  A server may write an error in it, such as that the context is full. `number`
  makes ids of calls that have none of their own.
  """
  try:
    body = json.loads(text)
    if "choices" not in body or body.get("error"):
      return _status_of(text)
    choice = body["choices"][0]
    reason, message = choice.get("finish_reason"), choice["message"]
    if choice.get("error") or reason == "model_context_window_exceeded":
      return _status_of(text)
    return _read_message(message, number)
  except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
    return None


def _status_of(text: str) -> Status | None:
  is_full = is_full_context(200, text[:20_000])
  return Status.AGENT_CONTEXT_LIMIT if is_full else None


def _read_message(message: Mapping[str, Any], number: int) -> Message:
  """Reads a message; raises as `message_from_json` does."""
  calls: list[Any] = []
  ids: set[str] = set()
  given = message.get("tool_calls") or ()
  if not given and message.get("function_call"):  # of before 2024
    given = ({"type": "function", "function": message["function_call"]},)
  for n, call in enumerate(given):
    id = call.get("id")
    if not isinstance(id, str) or not id or id in ids:
      id = f"call_{number}_{n}"
    ids.add(id)
    calls.append({**call, "id": id})
  content = message.get("content") or message.get("refusal")
  body = {**message, "role": "assistant", "content": content}
  answer = message_from_json(body | {"tool_calls": calls})
  names = [*THOUGHT_FIELDS, *thoughts_of(body)]
  thoughts = {name: body[name] for name in names if body.get(name)}
  return dataclasses.replace(answer, thoughts=thoughts)


def _is_address(url: str) -> bool:
  try:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme in ("http", "https") and bool(
      parts.hostname and (parts.port is None or parts.port > 0)
    )
  except ValueError:
    return False
