"""A twin of `environments.arithmetic`: the same environment, by functions.

It has the twin's name, since seeds depend on it.
"""

import dataclasses

from agentrl_jax.env.adapters.functions import FinalAnswer, FunctionEnvironment
from environments.arithmetic.expert import MISTAKES, Adder
from environments.arithmetic.scripted import POLICIES


@dataclasses.dataclass
class Sum:
  a: int
  b: int


def add(a: int, b: int) -> int:
  """Adds two integers."""
  return a + b


def answer(value: int) -> FinalAnswer:
  """Gives the final answer."""
  return FinalAnswer(value)


def is_right(answer: int, a: int, b: int) -> bool:
  return answer == a + b


class Arithmetic(FunctionEnvironment[Sum]):
  name, max_turns, not_played = "arithmetic", 4, ""
  mistakes, policies, baseline = MISTAKES, POLICIES, "first_term"
  functions, reward = (add, answer), is_right
  max_term = 99

  def draw(self, rng):
    return Sum(*(rng.randint(0, self.max_term) for _ in "ab"))

  def question(self, state):
    return f"What is {state.a} + {state.b}?"

  def expert(self, task, *, seed, mistakes):
    state = self.find(task)
    return Adder(state.a, state.b, seed=seed, mistakes=mistakes)
