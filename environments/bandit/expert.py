"""Scripted expert of the risky bandit, with or without mistakes."""

import json
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known

MISTAKES = (
  "worse_machine",  # pulls the machine with the lower expected pay
  "no_call",  # writes the name as text and calls no tool
  "broken_json",  # the closing brace of a call is missing
  "unknown_machine",  # pulls a machine that is not there
)


class Puller(Expert):
  """Pulls the better machine."""

  def __init__(
    self, better: str, worse: str, *, seed: int, mistakes: Mapping[str, float]
  ):
    require_known(mistakes, MISTAKES, where="Bandit's expert")
    self._better, self._worse = better, worse
    self._mistakes = mistakes
    self._rng = random.Random(seed)

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the call, whatever the messages say."""
    del messages
    name = self._worse if self._draws("worse_machine") else self._better
    if self._draws("no_call"):
      return Message("assistant", name)
    if self._draws("unknown_machine"):
      name = f"{name}s"
    text = json.dumps({"machine": name})
    if self._draws("broken_json"):
      text = text[:-1]
    return Message("assistant", tool_calls=(self.write_call("pull", text),))

  def _draws(self, mistake: str) -> bool:
    return self._rng.random() < self._mistakes.get(mistake, 0.0)
