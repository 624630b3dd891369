"""Scripted policies: baselines that do not read the user's messages."""

from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import (
  Echo,
  RandomCall,
  ScriptedPolicies,
  ScriptedPolicy,
)


class Silent(ScriptedPolicy):
  """Ends each of the user's turns without a call."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Ends the user's turn."""
    return Message("assistant", "Done.")


class OneCallPerTurn(RandomCall):
  """Makes one random call in each turn of the user, then ends the turn."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Calls after a message of the user, ends the turn after a reply."""
    if messages[-1].role == "tool":
      return Message("assistant", "Done.")
    return super().answer(messages, tools)


POLICIES: ScriptedPolicies = {
  "silent": Silent,
  "echo": Echo,
  "random": OneCallPerTurn,
}
