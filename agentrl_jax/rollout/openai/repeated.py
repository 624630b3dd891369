"""A call of an episode that a client makes once more, and its answer.

Clients repeat a call whose answer was lost on its way. What was sampled for it
is in the record already, so that is what they get.
"""

from collections.abc import Sequence

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.messages import Message, Tool
from agentrl_jax.rollout.api import Answer, SamplingSpec
from agentrl_jax.rollout.openai.conversation_cache import CallContext
from agentrl_jax.rollout.openai.requests import CompletionRequest


class Repeated(CallContext):
  """The last call of an episode once more; also the generator that answers."""

  num_policy_slots = 1

  def __init__(self, episode: CallContext, prompt: np.ndarray, answer: Answer):
    super().__init__(episode.limits)
    self._episode, self._prompt, self._answer = episode, prompt, answer

  def room(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """As it was."""
    return self._episode.room(prompt, request, name)

  def complete(self, request: CompletionRequest) -> CompletionRequest:
    """As it was."""
    return self._episode.complete(request)

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """As it was."""
    return self._prompt

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """What was sampled then."""
    return self._answer
