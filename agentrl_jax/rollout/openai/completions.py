"""`/v1/completions`: prompts as text or as token ids, answers as both."""

from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.rollout.openai.choices import Choice, Delta
from agentrl_jax.rollout.openai.conversation_cache import CallContext
from agentrl_jax.rollout.openai.detokenizer import Detokenizer
from agentrl_jax.rollout.openai.fields import Fields, wrong
from agentrl_jax.rollout.openai.requests import (
  CompletionRequest,
  ServingLimits,
  read_completion_request,
  refuse_long,
)
from agentrl_jax.rollout.openai.responses import (
  Envelope,
  completion_logprobs,
  token_fields,
)
from agentrl_jax.rollout.server.errors import ApiError

_MAX_TOKENS = 16  # of a call that gives none, by OpenAI's own reference
_MAX_LOGPROBS = 5  # alternatives per token, likewise
_PROMPT = "text, a list of token ids, or a list of either"


class CompletionCall:
  """One call, read and checked. `codec` None: only token ids are understood."""

  ignored: Set[str] = frozenset()  # there are no messages

  def __init__(
    self,
    fields: Fields,
    limits: ServingLimits,
    codec: ChatCodec | None,
    context: CallContext,
  ):
    found = fields.required("prompt")
    top = fields.integer("logprobs", None, low=0, high=_MAX_LOGPROBS)
    self._wants_logprobs = top is not None
    self.request: CompletionRequest = read_completion_request(
      fields, limits, max_tokens=_MAX_TOKENS, num_top=top or 0
    )
    fields.close()
    self._codec, self._limits, self._talk = codec, limits, context
    self.prompts: Sequence[np.ndarray] = _prompts(found, limits, codec)
    context.check(self.request, self.prompts)
    self.envelope = Envelope("text_completion", "cmpl", self.request.model)
    self._offsets: dict[int, int] = {}  # of text, by choice
    if codec is None and self.request.stops:
      raise ApiError(_without("stop"), param="stop")

  def draws(self, policy_slot: int) -> list[Choice]:
    """The answers to be drawn, `n` for each prompt."""
    if len(self.prompts) * self.request.n > self._limits.max_choices:
      raise ApiError(
        f"{len(self.prompts)} prompts and n={self.request.n} make more than "
        f"{self._limits.max_choices} answers: ask in several calls",
        param="n",
      )
    return [
      self._draw(index, prompt, policy_slot)
      for index, prompt in enumerate(
        prompt for prompt in self.prompts for _ in range(self.request.n)
      )
    ]

  def settled(self, draw: Choice) -> None:
    """Has it recorded, where that is asked for."""
    self._talk.heard(draw)

  def whole(self, draw: Choice) -> dict[str, Any]:
    """One choice, complete."""
    return {
      **self._choice(draw, Delta(draw.answer, draw.text, is_last=True), 0),
      **self._prompt_ids(draw),
    }

  def chunks(self, draw: Choice, delta: Delta) -> Iterator[dict[str, Any]]:
    """What a delta of one choice adds."""
    offset = self._offsets.get(draw.index)
    first = {} if offset is not None else self._prompt_ids(draw)
    choice = self._choice(draw, delta, offset or 0)
    self._offsets[draw.index] = (offset or 0) + self._size(delta)
    yield {**choice, **first}

  def extra(self) -> dict[str, Any]:
    """What the whole answer says beside its choices."""
    if not self.request.return_token_ids or len(self.prompts) > 1:
      return {}
    return {"prompt_token_ids": self.prompts[0].tolist()}

  def _draw(self, index: int, prompt: np.ndarray, policy_slot: int) -> Choice:
    request = self._talk.complete(self.request)
    size = self._talk.room(prompt, request, "max_tokens")
    stops = self._codec.stop_tokens if self._codec else ()
    spec = request.spec(
      policy_slot=policy_slot,
      max_tokens=size,
      template_stops=stops,
      number=index,
    )
    return Choice(
      index, prompt, spec, Detokenizer(self._text, self.request.stops)
    )

  def _choice(self, draw: Choice, delta: Delta, offset: int) -> dict[str, Any]:
    last = delta.is_last
    return {
      "index": draw.index,
      "text": delta.text,
      "logprobs": completion_logprobs(
        self.request, delta.piece, self._text, offset
      )
      if self._wants_logprobs
      else None,
      "finish_reason": draw.finish_reason if last else None,
      "stop_reason": draw.stop_reason if last else None,
      **token_fields(self.request, delta.piece),
    }

  def _size(self, delta: Delta) -> int:
    """Characters of the tokens, some of which may be let out later."""
    return sum(len(self._text([id])) for id in delta.piece.sampled.tolist())

  def _prompt_ids(self, draw: Choice) -> dict[str, Any]:
    if not self.request.return_token_ids:
      return {}
    return {"prompt_token_ids": draw.prompt.tolist()}

  def _text(self, ids: Any) -> str:
    return self._codec.decode(ids) if self._codec else ""


def _prompts(
  found: Any, limits: ServingLimits, codec: ChatCodec | None
) -> list[np.ndarray]:
  several = isinstance(found, list) and not (found and type(found[0]) is int)
  prompts = found if several else [found]
  if not prompts:
    raise wrong("prompt", found, _PROMPT)
  if len(prompts) > limits.max_choices:
    raise ApiError(
      f"{len(prompts)} prompts make more than {limits.max_choices} answers: "
      "ask in several calls",
      param="prompt",
    )
  for prompt in prompts:
    if isinstance(prompt, str) and codec is not None:
      refuse_long(limits, codec, len(prompt.encode()))
  return [_prompt(prompt, codec) for prompt in prompts]


def _prompt(found: Any, codec: ChatCodec | None) -> np.ndarray:
  if isinstance(found, str):
    if codec is None:
      raise ApiError(_without("prompt as text"), param="prompt")
    ids = codec.encode(found)
  elif isinstance(found, list) and all(
    type(id) is int and 0 <= id < 2**31 for id in found
  ):
    ids = np.asarray(found, np.int32)
  else:
    raise wrong("prompt", found, _PROMPT)
  if not len(ids):
    raise ApiError(
      "prompt is empty; a prompt is at least one token", param="prompt"
    )
  return ids


def _without(what: str) -> str:
  return (
    f"{what} needs a tokenizer, and this server was started without one: give "
    "it the run's folder, or send token ids"
  )
