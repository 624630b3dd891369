"""A scripted player of the arithmetic tasks, with or without mistakes."""

import json
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known

MISTAKES = (
  "no_call",  # says the sum, but calls nothing
  "broken_json",  # the closing brace of a call is missing
  "skipped_add",  # answers from the head, without calling `add`
  "wrong_sum",  # answers one too much
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
    self._num_calls = 0

  def answer(self, messages: Sequence[Message]) -> Message:
    """The next call, given what the environment has just said."""
    if self._errs("no_call"):
      return Message("assistant", str(self._a + self._b))
    last = messages[-1]
    if last.role == "tool" and last.content.lstrip("-").isdigit():
      return self._give(int(last.content))
    if self._errs("skipped_add"):
      return self._give(self._a + self._b)
    return self._call("add", {"a": self._a, "b": self._b})

  def _give(self, value: int) -> Message:
    return self._call("answer", {"value": value + self._errs("wrong_sum")})

  def _call(self, name: str, arguments: Mapping[str, int]) -> Message:
    text = json.dumps(arguments)
    if self._errs("broken_json"):
      text = text[:-1]
    self._num_calls += 1
    call = ToolCall(name, text, id=f"call_{self._num_calls}")
    return Message("assistant", tool_calls=(call,))

  def _errs(self, mistake: str) -> bool:
    return self._rng.random() < self._mistakes.get(mistake, 0.0)
