"""Answers as the JSON that OpenAI's clients read, and vLLM's token ids in it.

With `return_token_ids` every choice has, in equally long lists, `token_ids`,
`token_versions` (updates behind the weights that drew each token),
`raw_logprobs` (at temperature 1) and `behavior_logprobs` (under the
distribution that was drawn from), and the `policy_slot` that answered. The stop
token is one of them.
"""

import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.messages import Message, message_to_json
from agentrl_jax.rollout.api import Answer
from agentrl_jax.rollout.openai.choices import Choice
from agentrl_jax.rollout.openai.requests import CompletionRequest

Decode = Callable[[Sequence[int]], str]


class Envelope:
  """What every object of one call begins with."""

  def __init__(self, kind: str, prefix: str, model: str):
    self.id = f"{prefix}-{uuid.uuid4().hex}"
    self._kind, self._model = kind, model
    self._created = int(time.time())

  def around(
    self, choices: Sequence[dict[str, Any]], *, chunk: bool = False
  ) -> dict[str, Any]:
    """The object with these choices."""
    is_chat = self._kind == "chat.completion"
    kind = f"{self._kind}.chunk" if chunk and is_chat else self._kind
    return {
      "id": self.id,
      "object": kind,
      "created": self._created,
      "model": self._model,
      "choices": list(choices),
    }


def usage_of(prompts: Sequence[np.ndarray], draws: Sequence[Choice]) -> Any:
  """Tokens in and out; a prompt counts once, however many answers it has."""
  num_prompt = sum(len(prompt) for prompt in prompts)
  num_sampled = sum(draw.num_sampled for draw in draws)
  each = len(draws) // len(prompts)
  return {
    "prompt_tokens": num_prompt,
    "completion_tokens": num_sampled,
    "total_tokens": num_prompt + num_sampled,
    "prompt_tokens_details": {
      "cached_tokens": sum(draw.num_reused for draw in draws[::each])
    },
  }


def token_fields(request: CompletionRequest, piece: Answer) -> dict[str, Any]:
  """The tokens themselves, for who asked to see them."""
  if not request.return_token_ids:
    return {}
  return {
    "token_ids": piece.sampled.tolist(),
    "token_versions": piece.version.tolist(),
    "raw_logprobs": piece.raw_logprob.tolist(),
    "behavior_logprobs": piece.behavior_logprob.tolist(),
    "policy_slot": piece.policy_slot,
  }


def logprobs_of(request: CompletionRequest, piece: Answer) -> list[float]:
  """Of the chosen tokens, in nats, of the kind that was asked for."""
  found = piece.raw_logprob if request.raw_logprobs else piece.behavior_logprob
  return [float(x) for x in found]


def completion_logprobs(
  request: CompletionRequest, piece: Answer, decode: Decode, offset: int
) -> dict[str, Any]:
  """As `/v1/completions` has them; `offset` is of the first token's text."""
  texts = [decode([id]) for id in piece.sampled.tolist()]
  sizes = [0, *map(len, texts)][: len(texts)]
  return {
    "tokens": texts,
    "token_logprobs": logprobs_of(request, piece),
    "top_logprobs": _completion_top(request, piece, decode),
    "text_offset": (offset + np.cumsum(sizes)).tolist(),
  }


def chat_logprobs(
  request: CompletionRequest, piece: Answer, decode: Decode
) -> dict[str, Any]:
  """As `/v1/chat/completions` has them."""
  texts = [decode([id]) for id in piece.sampled.tolist()]
  chosen = zip(texts, logprobs_of(request, piece), top_of(piece), strict=True)
  return {
    "content": [
      {
        **_chat_token(text, logprob),
        "top_logprobs": [_chat_token(decode([id]), x) for id, x in top],
      }
      for text, logprob, top in chosen
    ],
    "refusal": None,
  }


def _chat_token(text: str, logprob: float) -> dict[str, Any]:
  # Of a part of a character nobody here knows the bytes.
  size = None if "\ufffd" in text else list(text.encode())
  return {"token": text, "logprob": logprob, "bytes": size}


def top_of(piece: Answer) -> list[list[tuple[int, float]]]:
  """The likeliest tokens of each place; those without probability are none."""
  if piece.top_token is None or piece.top_logprob is None:
    return [[] for _ in piece.sampled]
  rows = zip(piece.top_token.tolist(), piece.top_logprob.tolist(), strict=True)
  return [
    [(id, x) for id, x in zip(*row, strict=True) if x > -math.inf]
    for row in rows
  ]


def _completion_top(
  request: CompletionRequest, piece: Answer, decode: Decode
) -> list[dict[str, float]] | None:
  """By text, the chosen token's included; of texts alike the likeliest's."""
  if not request.num_top:
    return None
  chosen = zip(piece.sampled.tolist(), logprobs_of(request, piece), strict=True)
  found = []
  for one, top in zip(chosen, top_of(piece), strict=True):
    by_text: dict[str, float] = {}
    for id, logprob in [*top, one]:
      by_text.setdefault(decode([id]), logprob)
    found.append(by_text)
  return found


def message_json(message: Message) -> dict[str, Any]:
  """An assistant's message; without text its content is null."""
  body = message_to_json(message) | {"refusal": None}
  if message.tool_calls and not message.content:
    body["content"] = None
  return body
