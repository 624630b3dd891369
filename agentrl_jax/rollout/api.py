"""The interface of a policy that answers prompts: tokens in, tokens out.

Also requests and sizes of the engine of this framework, `EngineConfig`.
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
from agentrl_jax.keys import Section, key

MAX_STOPS = records.MAX_STOPS  # stop tokens of one request
MAX_BIASES = 1024  # entries of `logit_bias` of one request
MAX_TOP = 20  # alternatives returned per token
# Values of `engine.weights`.
WEIGHTS = {
  "full": "as they are published",
  "int8": "kernels in integers of 8 bits, a scale per output channel",
  "fp8": "the same in float8_e4m3fn",
}
DRIVERS = {"jetstream": "JetStream's threads", "local": "one thread"}
# Of the slots of a call, those whose drafts a step computes: one in so many.
_DRAFTING_SHARES = (8, 2, 1)


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
  # With `engine.router_replay`, in the last chunk of an answer: the experts of
  # the prompt's and the answer's first P tokens, all but the last one, [P, L,
  # K]; as in `data.records.Turn`.
  experts: np.ndarray | None = None

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

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Waits for the answer; cancelling frees the engine slot that decodes it.

    Raises `PromptTooLong` before the request is queued, and `GeneratorFault`,
    with its cause, if the engine fails.
    """


@runtime_checkable
class StreamingGenerator(Generator, Protocol):
  """A generator that can stream an answer while it is sampled."""

  def stream(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> AsyncGenerator[Completion, None]:
    """Yields the chunks of an answer in order; closing it frees the slot.

    Raises the errors of `generate`, before the first chunk or after any.
    """


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


@dataclasses.dataclass(frozen=True)
class DraftPlan:
  """The drafts of a decode call; see `rollout.engine.drafts`."""

  num_tokens: int  # of a draft
  sizes: tuple[int, ...]  # slots whose drafts one step computes, besides 0
  cost: float  # `draft_cost`


# A slot's own, a copy after its prompt, and one after its last answer, while
# its environment acts.
STATES_PER_SLOT = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig(Section, section="engine"):
  """The `engine` section of the config: sizes, and the shapes to compile.

  Few shapes are compiled: busy slots are padded to `num_slot_sizes` sizes that
  differ by a factor of four, prompts are prefilled in `prefill_chunks`, and the
  page tables have the shortest of `lengths` that fits. More shapes waste
  less computation and take longer to compile.
  """

  driver: str = key(
    "jetstream",
    "threads of the engine: jetstream; or local, one thread. The latter, with "
    'queue.order="started" and admission.max_staleness=0, lets a run repeat '
    "bit for bit",
    one_of=DRIVERS,
  )
  slots: tuple[int, ...] = key(
    (192, 64), "sequences decoded at once, per policy slot", at_least=1
  )
  context: int = key(8192, "tokens of prompt and answer together", at_least=1)
  lengths: tuple[int, ...] = key(
    (), "shorter cache lengths to compile for, in tokens", at_least=1
  )
  num_slot_sizes: int = key(
    3, "number of batch sizes to compile for", at_least=1
  )
  prefill_chunks: tuple[int, ...] = key(
    (16, 64), "tokens per slot and call of a prefill", at_least=1
  )
  prefill_slots: int = key(16, "slots per call of a prefill", at_least=1)
  prefill_tokens: int = key(
    1024,
    "tokens that are prefilled per step, so that decoding does not stall",
    at_least=1,
  )
  steps_per_sync: int = key(
    4, "tokens per slot between two syncs with the host", at_least=1
  )
  page_size: int = key(
    0,
    "tokens of a page of the KV cache, on a TPU a multiple of 128; 0: a size "
    'that fits context. See "KV cache" in docs/engine.md',
  )
  cache_tokens: tuple[int, ...] = key(
    (), "of all pages, per policy slot; (): context x slots"
  )
  weights: str = key(
    "full",
    "weights to decode with: full, as the learner has them; or int8 or fp8, "
    'half of bfloat16\'s bytes. See "Weights in eight bits" in docs/engine.md',
    one_of=WEIGHTS,
  )
  draft_tokens: int = key(
    0,
    "tokens that a slot guesses from what it, or its group, has had before, "
    "and computes together with its next token; 0: none. Changes no answer",
  )
  draft_cost: float = key(
    0.4,
    "time to compute one more token per slot, in units of a decode step: 0.4 "
    "on two cores, less where decoding waits for memory",
    above=0,
    at_most=1,
  )
  router_replay: bool = key(
    False,
    "of a mixture: the experts of each token go with its answer, and the "
    'learner routes by them. See "Router replay" in docs/losses.md',
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    for name in ("slots", "prefill_chunks"):
      if not getattr(self, name):
        raise ConfigError(f"engine.{name}=() must have a number at least")
    if tuple(sorted(set(self.prefill_chunks))) != self.prefill_chunks:
      raise ConfigError(
        f"engine.prefill_chunks={self.prefill_chunks} must be increasing"
      )
    if max(self.lengths, default=0) > self.context:
      raise ConfigError(
        f"engine.lengths={self.lengths} must be at most "
        f"engine.context={self.context}"
      )
    self._check_cache()

  def _check_cache(self) -> None:
    if self.cache_tokens and (
      len(self.cache_tokens) != len(self.slots)
      or min(self.cache_tokens) < self.tokens_per_page
    ):
      raise ConfigError(
        f"engine.cache_tokens={self.cache_tokens} must have a number of tokens "
        f"for each of the policy slots of engine.slots={self.slots}, each at "
        f"least a page of {self.tokens_per_page}; or be (), for "
        "engine.context in every slot"
      )

  @property
  def tokens_per_page(self) -> int:
    """`page_size`, or a size that divides `context`, an eighth of it at most.

    That is 128, as the TPU's kernel needs it, for a `context` of a multiple of
    128 from 1024 on.
    """
    fits = (
      size
      for size in (128, 64, 32)
      if not self.context % size and self.context >= 8 * size
    )
    return self.page_size or next(fits, 16)

  def num_pages(self, policy_slot: int) -> int:
    """Number of pages of a policy slot."""
    if self.cache_tokens:
      return self.cache_tokens[policy_slot] // self.tokens_per_page
    return self.slots[policy_slot] * self.pages_of(self.context)

  def num_states(self, policy_slot: int) -> int:
    """Number of states of a policy slot, where layers keep any."""
    return STATES_PER_SLOT * self.slots[policy_slot]

  def pages_of(self, num_tokens: int) -> int:
    """Number of pages that hold so many tokens."""
    return -(-num_tokens // self.tokens_per_page)

  @property
  def min_copied_tokens(self) -> int:
    """Least number of tokens that are copied rather than prefilled again."""
    return self.prefill_chunks[0]

  @property
  def num_policy_slots(self) -> int:
    """Number of versions that are served side by side."""
    return len(self.slots)

  def slot_sizes(self, num_slots: int) -> tuple[int, ...]:
    """Sizes that busy slots are padded to."""
    sizes = {-(-num_slots // 4**power) for power in range(self.num_slot_sizes)}
    return tuple(sorted(sizes))

  def draft_plan(self, num_rows: int) -> DraftPlan | None:
    """Shapes of the drafts in a call of `num_rows` slots; None without."""
    if not self.draft_tokens:
      return None
    sizes = {-(-num_rows // share) for share in _DRAFTING_SHARES}
    return DraftPlan(self.draft_tokens, tuple(sorted(sizes)), self.draft_cost)

  @property
  def tokens_per_call(self) -> int:
    """Most tokens that a slot samples in one decode call."""
    return self.steps_per_sync * (1 + self.draft_tokens)

  def table_width(self, num_pages: int) -> int:
    """The shortest compiled length of a page table that fits `num_pages`."""
    widths = map(self.pages_of, (*self.lengths, self.context))
    return min(width for width in widths if width >= num_pages)

  def prefill_chunk(self, num_tokens: int) -> int:
    """The shortest chunk that fits `num_tokens`, or else the longest chunk."""
    return next(
      (size for size in self.prefill_chunks if size >= num_tokens),
      self.prefill_chunks[-1],
    )
