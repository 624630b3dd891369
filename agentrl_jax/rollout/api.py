"""The interface of a policy that answers prompts: tokens in, tokens out.

Needs neither jax nor an engine, so that the controller can import it.
"""

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from agentrl_jax.data import records
from agentrl_jax.data.grammar.grammars import GrammarState
from agentrl_jax.errors import ConfigError, GeneratorFault

MAX_STOPS = records.MAX_STOPS  # stop tokens of one request
MAX_BIASES = 1024  # entries of `logit_bias` of one request
MAX_TOP = 20  # alternatives returned per token


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
  """Sampling parameters of one answer."""

  policy_slot: int = 0  # whose weights answer; 0 follows the learner
  temperature: float = 1.0  # 0 is greedy
  top_k: int = 0  # 0 keeps all tokens
  top_p: float = 1.0  # 1 keeps all tokens
  min_p: float = 0.0  # least share of the likeliest token's probability
  max_tokens: int = 128  # of the answer, including its stop token
  # Each ends the answer and is part of it; at most `MAX_STOPS`.
  stop_tokens: tuple[int, ...] = ()
  seed: int = 0  # decides every draw, together with the token's position
  # Prompts with the same number have a common prefix, so one server should
  # answer them all and reuse its cache; 0: unknown. Does not change any draw.
  conversation: int = 0
  # Grammar that the answer follows, as `data.grammar` reads it; "": none.
  grammar: str = ""
  # Subtracted from a token's logit per occurrence in this answer, and once if
  # there is any; from -2 to 2, as in OpenAI's API.
  frequency_penalty: float = 0.0
  presence_penalty: float = 0.0
  # (token, value added to its logit), from -100 to 100; at most `MAX_BIASES`.
  logit_bias: tuple[tuple[int, float], ...] = ()
  # Likeliest tokens to return at each position, at most `MAX_TOP`: those of the
  # policy at temperature 1, or else of the distribution drawn from.
  num_top: int = 0
  top_is_raw: bool = True

  def __post_init__(self) -> None:
    if (
      len(self.stop_tokens) > MAX_STOPS or min(self.stop_tokens, default=0) < 0
    ):
      raise ConfigError(
        f"stop_tokens={self.stop_tokens}: an answer can have up to {MAX_STOPS} "
        "token ids that end it; see the model's generation_config.json"
      )

  @property
  def changes_logits(self) -> bool:
    """True if tokens are drawn from changed logits."""
    return bool(
      self.frequency_penalty or self.presence_penalty or self.logit_bias
    )

  @property
  def is_shaped(self) -> bool:
    """True if the program with biases, penalties, alternatives is needed."""
    return self.changes_logits or self.num_top != 0


# Fields of `Completion` with one row per token; the last two may be None.
_PER_TOKEN = (
  "sampled",
  "behavior_logprob",
  "raw_logprob",
  "version",
  "top_token",
  "top_logprob",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Completion:
  """The sampled tokens; arrays as in `data.records.Turn`."""

  sampled: np.ndarray  # int32 [A], the stop token last if it was drawn
  behavior_logprob: np.ndarray  # float32 [A]
  raw_logprob: np.ndarray  # float32 [A]
  version: np.ndarray  # int32 [A]
  policy_slot: int
  num_reused: int = 0  # prompt tokens whose keys and values were cached
  # The likeliest tokens at each position in descending order, if the request
  # asked for them: int32 and float32 [A, K]; -inf is probability 0.
  top_token: np.ndarray | None = None
  top_logprob: np.ndarray | None = None

  def span(self, begin: int, end: int | None = None) -> "Completion":
    """Returns the tokens from `begin` up to `end`."""
    rows: dict[str, Any] = {
      name: x[begin:end] for name, x in self._arrays().items()
    }
    return dataclasses.replace(self, **rows)

  @classmethod
  def joined(cls, chunks: "Sequence[Completion]") -> "Completion":
    """Joins the chunks of one answer."""
    arrays = [chunk._arrays() for chunk in chunks]
    joined: dict[str, Any] = {
      name: np.concatenate([x[name] for x in arrays]) for name in arrays[-1]
    }
    return dataclasses.replace(chunks[-1], **joined)

  def _arrays(self) -> dict[str, np.ndarray]:
    arrays = {name: getattr(self, name) for name in _PER_TOKEN}
    return {name: x for name, x in arrays.items() if x is not None}


# Called with the tokens sampled since the last call, for the last time before
# the future is done. It runs in the thread that reads the engine's results, so
# it must not wait; an exception that it raises fails its request.
Listener = Callable[[Completion], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
  """The sampled tokens of a preempted request, and what belongs to them."""

  token_N: np.ndarray  # int32
  # Behavior and raw log-probability (as bits) and version, int32 [N, 3].
  row_N3: np.ndarray
  alternatives: np.ndarray | None  # of `num_top`; see `decoder.SlotShaping`
  publication: int  # of the weights that the answer goes on with, if kept


@dataclasses.dataclass(eq=False)
class Request:
  """A prompt, how to answer it, and the future of the answer.

  Cancelling the future cancels the request.
  """

  prompt: np.ndarray  # int32 [T]
  sampling: SamplingParams
  serial: int  # unique among the requests of an engine
  future: "concurrent.futures.Future[Completion]" = dataclasses.field(
    default_factory=concurrent.futures.Future
  )
  arrived_at: float = dataclasses.field(default_factory=time.monotonic)
  num_reused: int = 0  # prompt tokens whose keys and values were cached
  listener: Listener | None = None
  num_streamed: int = 0  # sampled tokens that the listener has received
  grammar_state: GrammarState | None = None  # None: no grammar
  # Raised by the request's listener or grammar. The code that sets it also
  # cancels the request, which then leaves the engine and fails with this fault.
  fault: GeneratorFault | None = None
  # Of a request that lost its pages to an older one; None: it never did.
  sampled: Sampled | None = None

  @property
  def tokens(self) -> np.ndarray:
    """The prompt and, after a preemption, what was sampled before it."""
    if self.sampled is None:
      return self.prompt
    return np.concatenate([self.prompt, self.sampled.token_N])

  @property
  def num_sampled(self) -> int:
    """Tokens that were sampled before a preemption."""
    return 0 if self.sampled is None else len(self.sampled.token_N)

  @property
  def prefill_length(self) -> int:
    """Tokens to prefill: those of the prompt but the last.

    The first decode step computes the last one. After a preemption, sampled
    tokens are prefilled as if they were a part of the prompt.
    """
    return len(self.prompt) + self.num_sampled - 1

  @property
  def max_length(self) -> int:
    """The longest that prompt and answer can get, in tokens."""
    return len(self.prompt) + self.sampling.max_tokens


class Generator(Protocol):
  """A policy that answers prompts; each policy slot serves one version."""

  @property
  def num_policy_slots(self) -> int:
    """Number of versions that are served side by side."""
    ...

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Waits for the answer; cancelling frees the engine slot that decodes it.

    Raises `PromptTooLong` before the request is queued, and `GeneratorFault`,
    with its cause, if the engine fails.
    """
    ...


@runtime_checkable
class StreamingGenerator(Generator, Protocol):
  """A generator that can stream an answer while it is sampled."""

  def stream(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> AsyncGenerator[Completion, None]:
    """Yields the chunks of an answer in order; closing it frees the slot.

    Raises the errors of `generate`, before the first chunk or after any.
    """
    ...


async def answer_chunks(
  generator: Generator,
  prompt: Sequence[int] | np.ndarray,
  sampling: SamplingParams,
) -> AsyncGenerator[Completion, None]:
  """Yields the chunks of an answer; one chunk if the generator cannot stream.

  Closing it frees the slot.
  """
  if not isinstance(generator, StreamingGenerator):
    yield await generator.generate(prompt, sampling)
    return
  async with contextlib.aclosing(generator.stream(prompt, sampling)) as chunks:
    async for chunk in chunks:
      yield chunk
