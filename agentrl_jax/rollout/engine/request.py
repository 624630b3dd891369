"""A request of the engine."""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable

import numpy as np

from agentrl_jax.data.grammar.grammars import GrammarState
from agentrl_jax.errors import GeneratorFault
from agentrl_jax.rollout.api import Completion, SamplingParams

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
