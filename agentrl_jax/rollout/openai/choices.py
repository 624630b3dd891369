"""Choices of a call: their sampling, and the JSON common to both endpoints.

With `return_token_ids` every choice has, in equally long lists, `token_ids`,
`token_versions` (updates behind the weights that drew each token),
`raw_logprobs` (at temperature 1) and `behavior_logprobs` (under the
distribution drawn from), and the `policy_slot` that answered. The stop token is
one of the tokens.
"""

import asyncio
import contextlib
import dataclasses
import math
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np

from agentrl_jax.rollout.api import (
  MAX_STOPS,
  Completion,
  Generator,
  SamplingParams,
  answer_chunks,
)
from agentrl_jax.rollout.openai.detokenizer import Detokenizer
from agentrl_jax.rollout.openai.schema import CompletionRequest
from agentrl_jax.rollout.server.errors import ApiError

# Between the seeds of the answers to one call: 2^64 over the golden ratio.
_SEED_STRIDE = 0x9E3779B97F4A7C15


@dataclasses.dataclass(frozen=True, eq=False)
class Delta:
  """The tokens and the text that were added to a choice."""

  chunk: Completion
  text: str  # that is final; more or less than the text of the chunk's tokens
  is_last: bool = False


class Choice:
  """One choice of a call; `answer` and `finish_reason` are valid at its end.

  Tokens after the one that completes a stop string are dropped and their slot
  is freed.
  """

  def __init__(
    self,
    index: int,
    prompt: np.ndarray,
    sampling: SamplingParams,
    detokenizer: Detokenizer,
  ):
    self.index, self.prompt, self.sampling = index, prompt, sampling
    self._detokenizer = detokenizer
    self._chunks: list[Completion] = []

  async def deltas(
    self, generator: Generator, *, stream: bool
  ) -> AsyncGenerator[Delta, None]:
    """Samples the answer; yields one delta unless it is to `stream`."""
    async with contextlib.aclosing(self._sample(generator, stream)) as chunks:
      async for chunk in chunks:
        chunk = self._add(chunk)
        if self._is_over(chunk):
          self._detokenizer.end()
          yield Delta(chunk, self._detokenizer.release(), is_last=True)
          return
        if stream:
          yield Delta(chunk, self._detokenizer.release())

  async def _sample(
    self, generator: Generator, stream: bool
  ) -> AsyncGenerator[Completion, None]:
    if not stream and not self._detokenizer.stops:
      yield await generator.generate(self.prompt, self.sampling)
      return
    chunks = answer_chunks(generator, self.prompt, self.sampling)
    async with contextlib.aclosing(chunks):
      async for chunk in chunks:
        yield chunk

  @property
  def answer(self) -> Completion:
    """All sampled tokens."""
    return Completion.joined(self._chunks)

  @property
  def num_sampled(self) -> int:
    """Number of tokens sampled so far."""
    return sum(len(chunk.sampled) for chunk in self._chunks)

  @property
  def num_reused(self) -> int:
    """Prompt tokens whose keys and values were cached."""
    return self._chunks[-1].num_reused if self._chunks else 0

  @property
  def text(self) -> str:
    """The text up to the stop string or stop token."""
    return self._detokenizer.text

  @property
  def finish_reason(self) -> str:
    """`stop` if a stop string or token ended the answer, else `length`."""
    is_stopped = self.stop_reason is not None or self.ended_by is not None
    return "stop" if is_stopped else "length"

  @property
  def stop_reason(self) -> str | None:
    """The stop string that ended the answer, if one did."""
    return self._detokenizer.stopped_by

  @property
  def ended_by(self) -> int | None:
    """The stop token that ended the answer, if one did."""
    last = int(self._chunks[-1].sampled[-1]) if self._chunks else -1
    return last if last in self.sampling.stop_tokens else None

  def _add(self, chunk: Completion) -> Completion:
    ids = chunk.sampled.tolist()
    body = ids[:-1] if ids[-1] in self.sampling.stop_tokens else ids
    num_used = self._detokenizer.add(body)
    if self.stop_reason is not None:
      chunk = chunk.span(0, num_used)
    self._chunks.append(chunk)
    return chunk

  def _is_over(self, chunk: Completion) -> bool:
    return (
      self.stop_reason is not None
      or int(chunk.sampled[-1]) in self.sampling.stop_tokens
      or self.num_sampled >= self.sampling.max_tokens
    )


async def all_deltas(
  choices: Sequence[Choice], generator: Generator, *, stream: bool
) -> AsyncGenerator[tuple[Choice, Delta], None]:
  """Yields the deltas of several choices as they come.

  Closing the generator cancels all of them.
  """
  queue: asyncio.Queue[tuple[Choice, Delta] | None] = asyncio.Queue()

  async def follow(choice: Choice) -> None:
    try:
      deltas = choice.deltas(generator, stream=stream)
      async with contextlib.aclosing(deltas):
        async for delta in deltas:
          queue.put_nowait((choice, delta))
    finally:
      queue.put_nowait(None)

  tasks = [asyncio.create_task(follow(choice)) for choice in choices]
  num_open = len(tasks)
  try:
    while num_open:
      if (item := await queue.get()) is not None:
        yield item
        continue
      num_open -= 1
      for task in tasks:
        if task.done() and not task.cancelled():
          task.result()  # the first that failed fails the call
  finally:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def sampling_params(
  request: CompletionRequest,
  *,
  policy_slot: int,
  max_tokens: int,
  template_stops: Sequence[int],
  number: int,
  grammar: str = "",
) -> SamplingParams:
  """Returns how choice `number` of a call is sampled.

  Raises `ApiError` for more stop tokens than the engine supports.
  """
  stops = dict.fromkeys(request.stop_token_ids)
  if not request.ignore_eos:
    stops |= dict.fromkeys(template_stops)
  if len(stops) > MAX_STOPS:
    raise ApiError(
      f"stop_token_ids={request.stop_token_ids} and the chat template's own "
      f"{tuple(template_stops)} are more than the {MAX_STOPS} that can end an "
      "answer: give fewer, or ignore_eos=true",
      param="stop_token_ids",
    )
  assert request.seed is not None, "the call's context chooses a seed"
  return SamplingParams(
    policy_slot=policy_slot,
    temperature=1.0 if request.temperature is None else request.temperature,
    top_k=max(request.top_k, 0),
    top_p=request.top_p,
    min_p=request.min_p,
    max_tokens=max_tokens,
    stop_tokens=tuple(stops),
    seed=(request.seed + number * _SEED_STRIDE) % 2**64,
    grammar=grammar,
    frequency_penalty=request.frequency_penalty,
    presence_penalty=request.presence_penalty,
    logit_bias=request.logit_bias,
    num_top=request.num_top,
    top_is_raw=request.raw_logprobs,
  )


class Envelope:
  """The fields that every object of one call begins with."""

  def __init__(self, kind: str, prefix: str, model: str):
    self.id = f"{prefix}-{uuid.uuid4().hex}"
    self._kind, self._model = kind, model
    self._created = int(time.time())

  def around(
    self, choices: Sequence[dict[str, Any]], *, chunk: bool = False
  ) -> dict[str, Any]:
    """Returns the object with these choices."""
    is_chat = self._kind == "chat.completion"
    kind = f"{self._kind}.chunk" if chunk and is_chat else self._kind
    return {
      "id": self.id,
      "object": kind,
      "created": self._created,
      "model": self._model,
      "choices": list(choices),
    }


def usage_of(prompts: Sequence[np.ndarray], choices: Sequence[Choice]) -> Any:
  """Counts tokens; a prompt counts once, however many choices it has."""
  num_prompt = sum(len(prompt) for prompt in prompts)
  num_sampled = sum(choice.num_sampled for choice in choices)
  choices_per_prompt = len(choices) // len(prompts)
  return {
    "prompt_tokens": num_prompt,
    "completion_tokens": num_sampled,
    "total_tokens": num_prompt + num_sampled,
    "prompt_tokens_details": {
      "cached_tokens": sum(
        choice.num_reused for choice in choices[::choices_per_prompt]
      )
    },
  }


def token_fields(
  request: CompletionRequest, chunk: Completion
) -> dict[str, Any]:
  """Returns the fields that `return_token_ids` adds to a choice."""
  if not request.return_token_ids:
    return {}
  return {
    "token_ids": chunk.sampled.tolist(),
    "token_versions": chunk.version.tolist(),
    "raw_logprobs": chunk.raw_logprob.tolist(),
    "behavior_logprobs": chunk.behavior_logprob.tolist(),
    "policy_slot": chunk.policy_slot,
  }


def logprobs_of(request: CompletionRequest, chunk: Completion) -> list[float]:
  """Returns the sampled tokens' log-probabilities, in nats, per request."""
  logprob = (
    chunk.raw_logprob if request.raw_logprobs else chunk.behavior_logprob
  )
  return [float(x) for x in logprob]


def alternatives_of(chunk: Completion) -> list[list[tuple[int, float]]]:
  """Returns the likeliest tokens of each place, without impossible ones."""
  if chunk.top_token is None or chunk.top_logprob is None:
    return [[] for _ in chunk.sampled]
  rows = zip(chunk.top_token.tolist(), chunk.top_logprob.tolist(), strict=True)
  return [
    [(id, x) for id, x in zip(*row, strict=True) if x > -math.inf]
    for row in rows
  ]
