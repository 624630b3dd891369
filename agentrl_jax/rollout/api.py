"""How anyone asks a policy for an answer: tokens in, tokens out.

This module needs neither jax nor an engine, so the controller can import it.
"""

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from agentrl_jax.errors import ConfigError

MAX_STOPS = 4  # stop tokens of one request
MAX_BIASES = 1024  # tokens whose logits one request changes
MAX_TOP = 20  # alternatives that are told of each token


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSpec:
  """How one answer is to be sampled."""

  policy_slot: int = 0  # policy slot; 0 follows the learner
  temperature: float = 1.0  # 0 is greedy
  top_k: int = 0  # 0 keeps all
  top_p: float = 1.0  # 1 keeps all
  min_p: float = 0.0  # least share of the likeliest token's; 0 keeps all
  max_tokens: int = 128  # of the answer, its stop token included
  # Each ends the answer and belongs to it; `MAX_STOPS` at most.
  stop_tokens: tuple[int, ...] = ()
  seed: int = 0  # with the position alone, decides every draw
  # Prompts of one number begin alike, so one server had better answer them all,
  # from the keys and values that it has; 0: nothing is known. Decides no draw.
  conversation: int = 0
  # What the answer has to follow, as `data.grammar` reads it; "" is anything.
  grammar: str = ""
  # What is taken from a token's logit per time that this answer has it already,
  # and once for all times; OpenAI's, from -2 to 2.
  frequency_penalty: float = 0.0
  presence_penalty: float = 0.0
  # What is added to logits, from -100 to 100, by token: `MAX_BIASES` at most.
  logit_bias: tuple[tuple[int, float], ...] = ()
  # The likeliest tokens to tell of at each place, `MAX_TOP` at most: of the
  # policy at temperature 1, or of the distribution drawn from.
  num_top: int = 0
  top_is_raw: bool = True

  def __post_init__(self) -> None:
    if (
      len(self.stop_tokens) > MAX_STOPS or min(self.stop_tokens, default=0) < 0
    ):
      raise ConfigError(
        f"stop_tokens={self.stop_tokens}: up to {MAX_STOPS} ids of tokens can "
        "end an answer; see where the model's generation_config.json stops"
      )

  @property
  def changes_logits(self) -> bool:
    """Whether a token is drawn from other logits than the policy's."""
    return bool(
      self.frequency_penalty or self.presence_penalty or self.logit_bias
    )

  @property
  def is_shaped(self) -> bool:
    """Whether sampling needs more than most requests do."""
    return self.changes_logits or self.num_top != 0


# Of an `Answer`, one row per token; the last two may be None.
_PER_TOKEN = (
  "sampled",
  "behavior_logprob",
  "raw_logprob",
  "version",
  "top_token",
  "top_logprob",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
  """What was sampled; arrays as in `data.trajectory.Turn`."""

  sampled: np.ndarray  # int32 [A], the stop token last if it was drawn
  behavior_logprob: np.ndarray  # float32 [A]
  raw_logprob: np.ndarray  # float32 [A]
  version: np.ndarray  # int32 [A]
  policy_slot: int
  num_reused: int = 0  # prompt tokens whose keys and values were at hand
  # The likeliest tokens at each place, the likeliest first, where the request
  # asked for them: int32 and float32 [A, K]; -inf is no probability at all.
  top_token: np.ndarray | None = None
  top_logprob: np.ndarray | None = None

  def span(self, begin: int, end: int | None = None) -> "Answer":
    """The tokens from `begin` up to `end`."""
    found: dict[str, Any] = {
      name: x[begin:end] for name, x in self._arrays().items()
    }
    return dataclasses.replace(self, **found)

  @classmethod
  def joined(cls, pieces: "Sequence[Answer]") -> "Answer":
    """Pieces of one answer as a whole."""
    rows = [piece._arrays() for piece in pieces]
    found: dict[str, Any] = {
      name: np.concatenate([row[name] for row in rows]) for name in rows[-1]
    }
    return dataclasses.replace(pieces[-1], **found)

  def _arrays(self) -> dict[str, np.ndarray]:
    found = {name: getattr(self, name) for name in _PER_TOKEN}
    return {name: x for name, x in found.items() if x is not None}


class Generator(Protocol):
  """A policy that answers; policy slots hold its versions."""

  @property
  def num_policy_slots(self) -> int:
    """How many versions are served side by side."""
    ...

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """Waits for the answer. Cancelling frees the policy slot that decodes it.

    Raises `PromptTooLong` before anything is queued, and `GeneratorFault`,
    with its cause, if the engine fails.
    """
    ...


@runtime_checkable
class StreamingGenerator(Generator, Protocol):
  """One that hands an answer out while it is being sampled."""

  def stream(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> AsyncGenerator[Answer, None]:
    """The answer in pieces, in order; closing it frees the slot.

    Raises what `generate` raises, before the first piece or after any.
    """
    ...


async def answer_pieces(
  generator: Generator, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
) -> AsyncGenerator[Answer, None]:
  """The answer in pieces; in one, if the generator has no others.

  Closing it frees the slot.
  """
  if not isinstance(generator, StreamingGenerator):
    yield await generator.generate(prompt, spec)
    return
  async with contextlib.aclosing(generator.stream(prompt, spec)) as pieces:
    async for piece in pieces:
      yield piece
