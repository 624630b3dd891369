"""How anyone asks a policy for an answer: tokens in, tokens out.

This module needs neither jax nor an engine, so the controller can import it.
"""

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from agentrl_jax.errors import ConfigError

MAX_STOPS = 4  # stop tokens of one request


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSpec:
  """How one answer is to be sampled."""

  slot: int = 0  # version slot; 0 follows the learner
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

  def __post_init__(self) -> None:
    if (
      len(self.stop_tokens) > MAX_STOPS or min(self.stop_tokens, default=0) < 0
    ):
      raise ConfigError(
        f"stop_tokens={self.stop_tokens}: up to {MAX_STOPS} ids of tokens can "
        "end an answer; see where the model's generation_config.json stops"
      )


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
  """What was sampled; arrays as in `data.trajectory.Turn`."""

  sampled: np.ndarray  # int32 [A], the stop token last if it was drawn
  behavior_logprob: np.ndarray  # float32 [A]
  raw_logprob: np.ndarray  # float32 [A]
  version: np.ndarray  # int32 [A]
  slot: int
  num_reused: int = 0  # prompt tokens whose keys and values were at hand


class Generator(Protocol):
  """A policy that answers; slots hold its versions."""

  @property
  def num_slots(self) -> int:
    """How many versions are served side by side."""
    ...

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """Waits for the answer. Cancelling frees the slot that decodes it.

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
    """The answer in pieces, in order; closing it frees the lane.

    Raises what `generate` raises, before the first piece or after any.
    """
    ...


async def answer_pieces(
  generator: Generator, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
) -> AsyncGenerator[Answer, None]:
  """The answer in pieces; in one, if the generator has no others.

  Closing it frees the lane.
  """
  if not isinstance(generator, StreamingGenerator):
    yield await generator.generate(prompt, spec)
    return
  async with contextlib.aclosing(generator.stream(prompt, spec)) as pieces:
    async for piece in pieces:
      yield piece
