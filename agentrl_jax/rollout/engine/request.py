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

  @property
  def prefill_length(self) -> int:
    """Prompt tokens to prefill: all but the last.

    The first decode step computes the last one.
    """
    return len(self.prompt) - 1

  @property
  def max_length(self) -> int:
    """The longest that prompt and answer can get, in tokens."""
    return len(self.prompt) + self.sampling.max_tokens
