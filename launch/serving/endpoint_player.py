"""Plays any model that speaks OpenAI's chat API, for its scores.

  player = EndpointPlayer(
    environments=environments, max_turns=20, waits=waits,
    endpoint=ChatEndpoint(url="http://host:8000/v1", model="qwen"),
  )

Nothing is recorded as tokens, so such episodes cannot be trained on.
"""

import asyncio
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from agentrl_jax.controller.player import Answerer, TextPlayer
from agentrl_jax.data.records import (
  EpisodeSpec,
  Message,
  Tool,
  message_from_json,
  message_to_json,
  tool_to_json,
)
from agentrl_jax.env.interface import Environment, Step
from agentrl_jax.errors import ConfigError, GeneratorFault

_PATH = "/chat/completions"
_BUSY = {408, 429, 500, 502, 503, 504}  # may pass
_TOO_LONG = ("context_length_exceeded", "maximum context length")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_CONNECT_S = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatEndpoint:
  """A model at an address, and the settings of its answers."""

  url: str  # up to /v1
  model: str
  key: str = ""  # sent as a bearer token; "" sends none
  temperature: float = 0.0
  max_tokens: int = 1024  # of an answer
  answer_timeout_s: float = 600.0  # for an answer, repeated requests included
  sends_seed: bool = True  # some endpoints refuse one

  def __post_init__(self) -> None:
    if not self.url.startswith(("http://", "https://")):
      raise ConfigError(
        f"--endpoint={self.url} must be an address such as http://host:8000/v1"
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndpointPlayer(TextPlayer):
  """Plays the model behind an endpoint."""

  endpoint: ChatEndpoint

  def _answerer(self, environment: Environment, spec: EpisodeSpec) -> Answerer:
    del environment

    async def answer(
      messages: Sequence[Message], step: Step, tools: Sequence[Tool]
    ) -> Message | None:
      del step
      return await ask(self.endpoint, messages, tools, seed=spec.seed)

    return answer


async def ask(
  endpoint: ChatEndpoint,
  messages: Sequence[Message],
  tools: Sequence[Tool],
  *,
  seed: int,
) -> Message | None:
  """Returns the next message; None if the conversation is too long.

  Waits and asks again while the endpoint is busy or cannot be reached, up to
  `answer_timeout_s`; then raises `GeneratorFault`. Raises `ConfigError` for a
  request that it refuses.
  """
  body: dict[str, Any] = {
    "model": endpoint.model,
    "messages": [message_to_json(message) for message in messages],
    "temperature": endpoint.temperature,
    "max_tokens": endpoint.max_tokens,
  }
  if tools:
    body["tools"] = [tool_to_json(tool) for tool in tools]
  if endpoint.sends_seed:
    body["seed"] = seed % 2**31
  deadline = time.monotonic() + endpoint.answer_timeout_s
  pause_s = _FIRST_PAUSE_S
  while True:
    left_s = deadline - time.monotonic()
    status, text, wait_s = await _post(endpoint, body, max(left_s, 1.0))
    if status == 200:
      return _read(endpoint, text)
    if any(word in text for word in _TOO_LONG):
      return None
    if status and status not in _BUSY:
      raise ConfigError(
        f"{endpoint.url}{_PATH} refuses the request of model "
        f"{endpoint.model!r}: HTTP {status} {text[:500]}"
      )
    wait_s = max(wait_s, pause_s)
    if time.monotonic() + wait_s > deadline:
      raise GeneratorFault(
        f"{endpoint.url}{_PATH} gave no answer within "
        f"{endpoint.answer_timeout_s:g} s (waits.answer_timeout_s); the last "
        f"was HTTP {status or 'none'}: {text[:500]}"
      )
    await asyncio.sleep(wait_s)
    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _post(
  endpoint: ChatEndpoint, body: Mapping[str, Any], timeout_s: float
) -> tuple[int, str, float]:
  """Returns status, text and the wait asked for; status 0: no answer."""
  headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
  timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
  try:
    async with (
      aiohttp.ClientSession(headers=headers, timeout=timeout) as http,
      http.post(f"{endpoint.url.rstrip('/')}{_PATH}", json=body) as response,
    ):
      text = await response.text(errors="replace")
      asked = response.headers.get("Retry-After", "")
      return response.status, text, float(asked) if asked.isdigit() else 0.0
  except (aiohttp.ClientError, TimeoutError, OSError) as error:
    return 0, f"{type(error).__name__}: {error}", 0.0


def _read(endpoint: ChatEndpoint, text: str) -> Message:
  try:
    message = json.loads(text)["choices"][0]["message"]
    return message_from_json({"role": "assistant", **message})
  except (ValueError, LookupError, TypeError, AttributeError) as error:
    raise ConfigError(
      f"{endpoint.url}{_PATH} does not answer in the form of OpenAI's chat "
      f"API: {text[:500]}"
    ) from error
