"""Arithmetic: sums of two numbers by tool calls, the smallest environment.

Tests and tutorials run it: a few dozen tokens per turn, no data, no packages.
Use it as a pattern for a new environment.
"""

import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Status, Task
from agentrl_jax.data.split import split_of
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, OneCallSession, Session, Step
from agentrl_jax.env.options import require_positive
from agentrl_jax.env.tools import make_tool
from agentrl_jax.errors import ConfigError
from environments.arithmetic.expert import MISTAKES, Adder
from environments.arithmetic.scripted import POLICIES

ADD = make_tool(
  "add",
  "Adds two integers.",
  {"a": {"type": "integer"}, "b": {"type": "integer"}},
)
ANSWER = make_tool(
  "answer", "Gives the final answer.", {"value": {"type": "integer"}}
)
NO_CALL = "No tool call found. Call add or answer."


@dataclasses.dataclass(frozen=True)
class Sum:
  """One problem."""

  a: int
  b: int

  @property
  def question(self) -> str:
    """The text that the policy reads."""
    return f"What is {self.a} + {self.b}?"


class Arithmetic(IndexedEnvironment[Sum]):
  """Task i of a split asks for a sum; calling `answer` ends the episode."""

  name = "arithmetic"
  mistakes = MISTAKES
  policies = POLICIES
  baseline = "first_term"

  def __init__(
    self, *, max_term: int = 99, max_turns: int = 4, num_tasks: int = 1 << 20
  ):
    if max_term < 9:
      raise ConfigError(
        f"max_term={max_term} leaves too few sums for two splits; use 9 or more"
      )
    require_positive(max_turns=max_turns)
    super().__init__(num_tasks=num_tasks)
    self._max_term = max_term
    self._max_turns = max_turns

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session; ignores the seed, as the task determines the sum."""
    del seed
    yield _SumSession(self.find(task), self._max_turns)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that adds, then answers; see `expert.MISTAKES`."""
    problem = self.find(task)
    return Adder(problem.a, problem.b, seed=seed, mistakes=mistakes)

  def generate(self, split: str, index: int) -> Sum:
    """Draws a sum that the split owns; sums may repeat."""
    rng = random.Random(f"{split}/{index}")
    while True:  # the split owns a drawn sum with probability 1/2
      problem = Sum(*(rng.randint(0, self._max_term) for _ in range(2)))
      if split_of(problem.question) == split:
        return problem


class _SumSession(OneCallSession):
  tools = (ADD, ANSWER)

  def __init__(self, problem: Sum, max_turns: int):
    super().__init__(problem.question, max_turns=max_turns, no_call=NO_CALL)
    self._problem = problem

  def play(self, tool: str, arguments: Mapping[str, Any]) -> str | Step:
    if tool == "answer":
      is_right = arguments["value"] == self._problem.a + self._problem.b
      return Step((), reward=float(is_right), status=Status.COMPLETED)
    return str(int(arguments["a"]) + int(arguments["b"]))
