"""Scripted expert of arithmetic, with or without mistakes."""

import json
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known

MISTAKES = (
  "no_call",  # writes the sum as text and calls no tool
  "broken_json",  # the closing brace of a call is missing
  "skipped_add",  # answers without calling `add`
  "wrong_sum",  # answers a sum that is one too large
)


class Adder(Expert):
  """Calls `add`, reads the reply, calls `answer`."""

  def __init__(
    self, a: int, b: int, *, seed: int, mistakes: Mapping[str, float]
  ):
    require_known(mistakes, MISTAKES, where="Arithmetic's expert")
    self._a, self._b = a, b
    self._mistakes = mistakes
    self._rng = random.Random(seed)

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next call for the environment's last messages."""
    if self._draws("no_call"):
      return Message("assistant", str(self._a + self._b))
    last = messages[-1]
    if last.role == "tool" and last.content.lstrip("-").isdigit():
      return self._answer_call(int(last.content))
    if self._draws("skipped_add"):
      return self._answer_call(self._a + self._b)
    return self._call("add", {"a": self._a, "b": self._b})

  def _answer_call(self, value: int) -> Message:
    return self._call("answer", {"value": value + self._draws("wrong_sum")})

  def _call(self, name: str, arguments: Mapping[str, int]) -> Message:
    text = json.dumps(arguments)
    if self._draws("broken_json"):
      text = text[:-1]
    return Message("assistant", tool_calls=(self.write_call(name, text),))

  def _draws(self, mistake: str) -> bool:
    return self._rng.random() < self._mistakes.get(mistake, 0.0)
