"""Word problems in GSM8K's form, answered in text or by calls.

Without a calculator an episode is one answer, and its last number counts. With
it, the policy calls `calculate`, reads the result, and then answers: in text,
or with `answer` where `sampling.calls="required"` allows calls alone.
"""

import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Message, Status, Task, Tool
from agentrl_jax.data.split import split_of
from agentrl_jax.env.adapters.questions import last_number
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session, Step
from agentrl_jax.env.options import require_bounds, require_positive
from agentrl_jax.env.tools import ToolMistake, make_tool, read_arguments
from agentrl_jax.errors import ConfigError
from environments.word_problems.expert import MISTAKES, Solver
from environments.word_problems.problems import (
  OPERATORS,
  WORDS,
  Problem,
  draw_problem,
)
from environments.word_problems.scripted import POLICIES

_SIGNS = {word: sign for sign, word in WORDS.items()}
CALCULATE = make_tool(
  "calculate",
  "Computes with two whole numbers.",
  {
    "left": {"type": "integer"},
    "operator": {"type": "string", "enum": list(_SIGNS)},
    "right": {"type": "integer"},
  },
)
ANSWER = make_tool(
  "answer", "Gives the final answer.", {"number": {"type": "integer"}}
)
INSTRUCTION = "Answer with a number only."


class WordProblems(IndexedEnvironment[Problem]):
  """Task i of a split is a story whose number is asked for.

  Args:
    steps: least and greatest number of operations of a problem.
    largest: largest number in a story.
    operators: those of `+`, `-` and `*` that stories have. Fewer than all need
      `steps=(1, 1)`.
    calculator: whether the policy has the tools `calculate` and `answer`.
    max_turns: answers of an episode with a calculator.
    instruction: text after the question.
    result: text of the calculator's result, in which {} is the number.
  """

  name = "word_problems"
  mistakes = MISTAKES
  policies = POLICIES
  baseline = "sum"

  def __init__(
    self,
    *,
    steps: tuple[int, int] = (1, 1),
    largest: int = 9,
    operators: tuple[str, ...] = tuple(OPERATORS),
    calculator: bool = False,
    max_turns: int = 8,
    instruction: str = INSTRUCTION,
    result: str = "{}",
    num_tasks: int = 1 << 20,
  ):
    require_bounds(least=1, most=8, steps=steps)
    require_positive(max_turns=max_turns)
    if "{}" not in result:
      raise ConfigError(f"result={result!r} has no {{}} for the number")
    if not 9 <= largest <= 10_000:
      raise ConfigError(f"largest={largest!r}; allowed is 9 to 10000")
    if not operators or not {*operators} <= {*OPERATORS}:
      raise ConfigError(
        f"operators={operators!r} must be some of {tuple(OPERATORS)}"
      )
    if {*operators} < {*OPERATORS} and tuple(steps) != (1, 1):
      raise ConfigError(
        f"operators={operators!r} has stories of one operation alone: set "
        f"steps=(1, 1), not {steps!r}, or allow all of {tuple(OPERATORS)}"
      )
    super().__init__(num_tasks=num_tasks)
    self._steps, self._largest = steps, largest
    self._operators = {*operators}
    self._has_calculator, self._max_turns = calculator, max_turns
    self._instruction, self._result = instruction, result

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session; ignores the seed, as the task determines the problem."""
    del seed
    problem = self.find(task)
    question = f"{problem.text} {self._instruction}".strip()
    turns = self._max_turns if self._has_calculator else 1
    tools = (CALCULATE, ANSWER) * self._has_calculator
    yield _ProblemSession(problem, question, turns, tools, self._result)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that knows the answer; see `expert.MISTAKES`."""
    return Solver(
      self.find(task),
      calculator=self._has_calculator,
      seed=seed,
      mistakes=mistakes,
    )

  def generate(self, split: str, index: int) -> Problem:
    """Draws a problem of the operators, whose computation the split owns.

    So a test has no computation that training has, in whatever story.
    """
    rng = random.Random(f"{split}/{index}")
    while True:  # the split owns a drawn computation with probability 1/2
      problem = draw_problem(rng, steps=self._steps, largest=self._largest)
      if {*problem.operators} <= self._operators and (
        split_of(problem.expression) == split
      ):
        return problem


class _ProblemSession(Session):
  """One problem: calls of the calculator, then a text with the number."""

  def __init__(
    self,
    problem: Problem,
    question: str,
    max_turns: int,
    tools: tuple[Tool, ...],
    result: str,
  ):
    self.tools = tools
    self._result = result
    self._problem, self._question = problem, question
    self._turns_left = max_turns

  async def reset(self) -> Step:
    return Step((Message("user", self._question),))

  async def step(self, answer: Message) -> Step:
    self._turns_left -= 1
    if not answer.tool_calls or not self.tools:
      return self._end(last_number(answer.content, self._problem.answer))
    call = answer.tool_calls[0]
    arguments = read_arguments(call, self.tools)
    if isinstance(arguments, ToolMistake):
      reply = arguments.message
    elif call.name == ANSWER.name:
      return self._end(arguments["number"] == self._problem.answer)
    else:
      reply = self._result.replace("{}", _result_of(arguments))
    messages = (Message("tool", reply, tool_call_id=call.id),)
    if self._turns_left:
      return Step(messages)
    return Step(messages, status=Status.TASK_LIMIT_REACHED)

  def _end(self, is_right: float) -> Step:
    return Step((), reward=float(is_right), status=Status.COMPLETED)


def _result_of(arguments: Mapping[str, Any]) -> str:
  left, right = int(arguments["left"]), int(arguments["right"])
  return str(OPERATORS[_SIGNS[arguments["operator"]]](left, right))
