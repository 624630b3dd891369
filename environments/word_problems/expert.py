"""Scripted expert of word problems, with or without mistakes."""

from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.mistakes import BROKEN_JSON, ErringExpert
from environments.word_problems.problems import WORDS, Problem

MISTAKES = (
  "wrong_number",  # answers a number that is one too large
  BROKEN_JSON,  # of a call
  "no_call",  # answers without the calculator
)


class Solver(ErringExpert):
  """Calls the calculator for each step, if there is one, and answers."""

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
    self._step = 0 if calculator else len(problem.operators)

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next answer; a step whose call failed is called again."""
    problem = self._problem
    results = [m.content for m in messages if m.role == "tool"]
    self._step += any(not text.startswith("Error: ") for text in results)
    if self._step < len(problem.operators) and not self.draws("no_call"):
      counts = [problem.terms[0], *problem.partial_results]
      return self.erring_call(
        "calculate",
        {
          "left": counts[self._step],
          "operator": WORDS[problem.operators[self._step]],
          "right": problem.terms[self._step + 1],
        },
      )
    number = problem.answer + self.draws("wrong_number")
    if self._calculator:
      return self.erring_call("answer", {"number": number})
    return Message("assistant", str(number))
