"""One request on its way through the engine, as every driver carries it."""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable

import numpy as np

from agentrl_jax.data.grammar.grammars import GrammarState
from agentrl_jax.errors import GeneratorFault
from agentrl_jax.rollout.api import Answer, SamplingSpec

# Called with what has been sampled since the last call, the last time before
# the future is done. It runs in the thread that reads the engine, so it must
# not wait; if it raises, its request fails with that.
Listener = Callable[[Answer], None]


@dataclasses.dataclass(eq=False)
class Request:
  """A prompt, how to answer it, and where the answer goes.

  Cancelling the future is how a request is cancelled.
  """

  prompt: np.ndarray  # int32 [T]
  spec: SamplingSpec
  serial: int  # no two requests of an engine share one
  future: "concurrent.futures.Future[Answer]" = dataclasses.field(
    default_factory=concurrent.futures.Future
  )
  asked_at: float = dataclasses.field(default_factory=time.monotonic)
  num_reused: int = 0  # prompt tokens whose keys and values were at hand
  listener: Listener | None = None
  num_told: int = 0  # sampled tokens that the listener has heard of
  course: GrammarState | None = None  # through its grammar, where it has one
  # What its own listener or grammar raised. Whoever sets it cancels the
  # request, which then leaves the engine and fails with it.
  broke: GeneratorFault | None = None

  @property
  def num_prefilled(self) -> int:
    """Prompt tokens that go into the cache before decoding.

    All but the last, which the first decode step feeds.
    """
    return len(self.prompt) - 1

  @property
  def end(self) -> int:
    """The longest that prompt and answer can get, in tokens."""
    return len(self.prompt) + self.spec.max_tokens
