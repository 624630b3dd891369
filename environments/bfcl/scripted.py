"""Scripted answerers: what is right without reading what is asked."""

from collections.abc import Sequence

from agentrl_jax.data.messages import Message, Tool
from agentrl_jax.env.scripted import (
  Echo,
  RandomCall,
  ScriptedPolicies,
  ScriptedPolicy,
)


class Silent(ScriptedPolicy):
  """Says that it is done, and calls nothing."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Ends the user's turn."""
    return Message("assistant", "Done.")


class OnceATurn(ScriptedPolicy):
  """Makes one random call in each turn of the user, then ends the turn."""

  def __init__(self, *, seed: int):
    super().__init__(seed=seed)
    self._random = RandomCall(seed=seed)

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """A random call to the user's message; a word to the tool's reply."""
    if messages[-1].role == "tool":
      return Message("assistant", "Done.")
    return self._random.answer(messages, tools)


POLICIES: ScriptedPolicies = {
  "silent": Silent,
  "echo": Echo,
  "random": OnceATurn,
}
