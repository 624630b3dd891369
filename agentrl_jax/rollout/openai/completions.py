"""`/v1/completions`: prompts as text or as token ids, answers as both."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec, num_bytes_of
from agentrl_jax.data.chat.marked_text import IN_TEXT
from agentrl_jax.rollout.api import Completion
from agentrl_jax.rollout.openai.choices import (
  Choice,
  Delta,
  Envelope,
  alternatives_of,
  logprobs_of,
  sampling_params,
  token_fields,
)
from agentrl_jax.rollout.openai.conversation_cache import CallContext
from agentrl_jax.rollout.openai.detokenizer import Detokenizer
from agentrl_jax.rollout.openai.schema import (
  ServingLimits,
  TextCompletionRequest,
)
from agentrl_jax.rollout.server.errors import ApiError


class CompletionCall:
  """One call of `/v1/completions`; without `codec`, of token ids only."""

  def __init__(
    self,
    request: TextCompletionRequest,
    limits: ServingLimits,
    codec: ChatCodec | None,
    context: CallContext,
  ):
    num_choices = len(request.prompt) * request.n
    if num_choices > limits.max_choices:
      raise ApiError(
        f"{len(request.prompt)} prompts and n={request.n} make {num_choices} "
        f"choices, and {limits.max_choices} are allowed: ask in several calls",
        param="n",
      )
    if codec is None and request.stop:
      raise _no_tokenizer("stop", "stop")
    self.request, self._codec, self._context = request, codec, context
    for prompt in request.prompt:  # all of them, before one is tokenized
      if isinstance(prompt, str) and codec is not None:
        codec.require_room(num_bytes_of(prompt), limits.context)
    self.prompts: Sequence[np.ndarray] = [
      _tokens(prompt, codec, alone=request.add_special_tokens)
      for prompt in request.prompt
    ]
    context.check(request, self.prompts)
    self.envelope = Envelope("text_completion", "cmpl", request.model)
    self._offsets: dict[int, int] = {}  # of text, by choice

  def choices(self, policy_slot: int) -> list[Choice]:
    """Returns the choices to be sampled, `n` for each prompt."""
    request = self._context.fill_in(self.request)
    prompts = [prompt for prompt in self.prompts for _ in range(request.n)]
    return [
      Choice(
        index,
        prompt,
        sampling_params(
          request,
          policy_slot=policy_slot,
          max_tokens=self._context.answer_budget(prompt, request, "max_tokens"),
          template_stops=self._codec.stop_tokens if self._codec else (),
          number=index,
        ),
        Detokenizer(
          functools.partial(self._decode, after=int(prompt[-1])), request.stop
        ),
      )
      for index, prompt in enumerate(prompts)
    ]

  def finish(self, choice: Choice) -> None:
    """Records a complete answer in the call's context."""
    self._context.record(choice)

  def choice_json(self, choice: Choice) -> dict[str, Any]:
    """Returns a choice of the whole answer."""
    delta = Delta(choice.answer, choice.text, is_last=True)
    return {**self._choice(choice, delta, 0), **self._prompt_ids(choice)}

  def chunks_json(
    self, choice: Choice, delta: Delta
  ) -> Iterator[dict[str, Any]]:
    """Yields the choice of the chunk that a delta makes."""
    offset = self._offsets.get(choice.index)
    prompt_ids = {} if offset is not None else self._prompt_ids(choice)
    body = self._choice(choice, delta, offset or 0)
    # Counts all tokens, whose text may be released later.
    size = sum(len(self._decode([id])) for id in delta.chunk.sampled.tolist())
    self._offsets[choice.index] = (offset or 0) + size
    yield {**body, **prompt_ids}

  def extra_json(self) -> dict[str, Any]:
    """Returns the fields of the answer beside its choices."""
    if not self.request.return_token_ids or len(self.prompts) > 1:
      return {}
    return {"prompt_token_ids": self.prompts[0].tolist()}

  def _choice(
    self, choice: Choice, delta: Delta, offset: int
  ) -> dict[str, Any]:
    return {
      "index": choice.index,
      "text": delta.text,
      "logprobs": self._logprobs(delta.chunk, offset),
      "finish_reason": choice.finish_reason if delta.is_last else None,
      "stop_reason": choice.stop_reason if delta.is_last else None,
      **token_fields(self.request, delta.chunk),
    }

  def _logprobs(self, chunk: Completion, offset: int) -> dict[str, Any] | None:
    """Returns the log-probabilities; `offset` is of the first token's text."""
    if self.request.logprobs is None:
      return None
    texts = [self._decode([id]) for id in chunk.sampled.tolist()]
    sizes = [0, *map(len, texts)][: len(texts)]
    return {
      "tokens": texts,
      "token_logprobs": logprobs_of(self.request, chunk),
      "top_logprobs": self._alternatives(chunk),
      "text_offset": (offset + np.cumsum(sizes)).tolist(),
    }

  def _alternatives(self, chunk: Completion) -> list[dict[str, float]] | None:
    """Returns alternatives by text, the sampled token's included.

    Of tokens with the same text, the likeliest counts.
    """
    if not self.request.num_top:
      return None
    sampled = zip(
      chunk.sampled.tolist(), logprobs_of(self.request, chunk), strict=True
    )
    rows = []
    for token, top in zip(sampled, alternatives_of(chunk), strict=True):
      by_text: dict[str, float] = {}
      for id, logprob in [*top, token]:
        by_text.setdefault(self._decode([id]), logprob)
      rows.append(by_text)
    return rows

  def _prompt_ids(self, choice: Choice) -> dict[str, Any]:
    if not self.request.return_token_ids:
      return {}
    return {"prompt_token_ids": choice.prompt.tolist()}

  def _decode(self, ids: Sequence[int], after: int = IN_TEXT) -> str:
    return self._codec.decode(ids, after=after) if self._codec else ""


def _tokens(
  prompt: str | list[int], codec: ChatCodec | None, *, alone: bool
) -> np.ndarray:
  if not isinstance(prompt, str):
    ids = np.asarray(prompt, np.int32)
  elif codec is not None:
    ids = codec.encode_alone(prompt) if alone else codec.encode(prompt)
  else:
    raise _no_tokenizer("prompt as text", "prompt")
  if not len(ids):
    raise ApiError(
      "prompt is empty; a prompt is at least one token", param="prompt"
    )
  return ids


def _no_tokenizer(subject: str, param: str) -> ApiError:
  return ApiError(
    f"{subject} needs a tokenizer, and this server was started without one: "
    "give it the run's folder, or send token ids",
    param=param,
  )
