"""The form of an API's calls and answers; OpenAI's completions and chat."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from agentrl_jax.errors import AgentRLError
from agentrl_jax.rollout.openai.chat import ChatCall
from agentrl_jax.rollout.openai.choices import Choice, Delta, usage_of
from agentrl_jax.rollout.openai.completions import CompletionCall
from agentrl_jax.rollout.openai.schema import (
  ChatCompletionRequest,
  CompletionRequest,
  TextCompletionRequest,
)
from agentrl_jax.rollout.openai.validation import read
from agentrl_jax.rollout.server.errors import error_body

Call = ChatCall | CompletionCall
Event = tuple[str, dict[str, Any] | str]  # its name, if it has one, and data


class WireReply(Protocol):
  """The response to one call, whole or as a stream of events."""

  def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
    """Returns the response, once all choices are complete."""

  def events(self, choice: Choice, delta: Delta) -> Iterator[Event]:
    """Yields the events that a delta makes."""

  def last_events(self, choices: Sequence[Choice]) -> Iterator[Event]:
    """Yields the events after those of all deltas."""

  def failure(self, error: AgentRLError) -> Event:
    """Returns the event of an error after the first one."""


@dataclasses.dataclass(frozen=True)
class Wire:
  """One API: how its calls are read, and how they are replied to.

  `read` raises `ApiError`; `reply` takes what the call was read as.
  """

  path: str  # behind the prefix of the API's version
  read: Callable[[Mapping[str, Any]], CompletionRequest]
  reply: Callable[[Any], WireReply]


class ChunkReply:
  """Replies of OpenAI's completions and chat completions."""

  def __init__(self, call: Call):
    self._call = call
    self._usage = {"usage": None} if call.request.include_usage else {}
    self._extra = call.extra_json()

  def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
    """See `WireReply`."""
    call = self._call
    body = call.envelope.around([call.choice_json(c) for c in choices])
    return body | self._extra | {"usage": usage_of(call.prompts, choices)}

  def events(self, choice: Choice, delta: Delta) -> Iterator[Event]:
    """See `WireReply`."""
    for choice_json in self._call.chunks_json(choice, delta):
      body = self._call.envelope.around([choice_json], chunk=True)
      yield "", body | self._extra | self._usage
      self._extra = {}

  def last_events(self, choices: Sequence[Choice]) -> Iterator[Event]:
    """See `WireReply`."""
    if self._call.request.include_usage:
      body = self._call.envelope.around([], chunk=True)
      yield "", body | {"usage": usage_of(self._call.prompts, choices)}
    yield "", "[DONE]"

  def failure(self, error: AgentRLError) -> Event:
    """See `WireReply`."""
    return "", error_body(error)


COMPLETIONS = Wire(
  "/completions", lambda fields: read(TextCompletionRequest, fields), ChunkReply
)
CHAT = Wire(
  "/chat/completions",
  lambda fields: read(ChatCompletionRequest, fields),
  ChunkReply,
)
