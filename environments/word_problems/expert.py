"""Scripted expert of word problems, with or without mistakes."""

from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.mistakes import BROKEN_JSON, ErringExpert
from environments.word_problems.problems import Problem

MISTAKES = (
  "wrong_number",  # answers a number that is one too large
  BROKEN_JSON,  # of a call
  "no_call",  # answers without the calculator
)


class Solver(ErringExpert):
  """Calls the calculator, if there is one, and answers with the number."""

  def __init__(
    self,
    problem: Problem,
    *,
    calculator: bool,
    seed: int,
    mistakes: Mapping[str, float],
  ):
    super().__init__(
      seed=seed, mistakes=mistakes, known=MISTAKES, where="the solver"
    )
    self._problem, self._calculator = problem, calculator

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next answer to the environment's last messages."""
    last = messages[-1]
    has_result = last.role == "tool" and not last.content.startswith("Error")
    if self._calculator and not has_result and not self.draws("no_call"):
      return self.erring_call(
        "calculate", {"expression": self._problem.expression}
      )
    number = self._problem.answer + self.draws("wrong_number")
    if self._calculator:
      return self.erring_call("answer", {"number": number})
    return Message("assistant", str(number))
