"""Scripted expert of arithmetic, with or without mistakes."""

from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.mistakes import BROKEN_JSON, ErringExpert

MISTAKES = (
  "no_call",  # writes the sum as text and calls no tool
  BROKEN_JSON,
  "skipped_add",  # answers without calling `add`
  "wrong_sum",  # answers a sum that is one too large
)


class Adder(ErringExpert):
  """Calls `add`, reads the reply, calls `answer`."""

  def __init__(
    self, a: int, b: int, *, seed: int, mistakes: Mapping[str, float]
  ):
    super().__init__(
      seed=seed, mistakes=mistakes, known=MISTAKES, where="Arithmetic's expert"
    )
    self._a, self._b = a, b

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next call for the environment's last messages."""
    if self.draws("no_call"):
      return Message("assistant", str(self._a + self._b))
    last = messages[-1]
    if last.role == "tool" and last.content.lstrip("-").isdigit():
      return self._answer_call(int(last.content))
    if self.draws("skipped_add"):
      return self._answer_call(self._a + self._b)
    return self.erring_call("add", {"a": self._a, "b": self._b})

  def _answer_call(self, value: int) -> Message:
    return self.erring_call(
      "answer", {"value": value + self.draws("wrong_sum")}
    )
