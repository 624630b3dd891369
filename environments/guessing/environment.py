"""Guessing: find a thing by questions about its attributes.

An answer of the policy is one call. `ask` is answered by yes or no, `guess`
ends the game. The secret is in no message and in no tool.
"""

import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Message, Status, Task, Tool
from agentrl_jax.data.split import split_of
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, OneCallSession, Session, Step
from agentrl_jax.env.options import require_one_of, require_positive
from agentrl_jax.env.tools import make_tool
from agentrl_jax.errors import ConfigError
from environments.guessing.expert import MISTAKES, Questioner
from environments.guessing.game import (
  ATTRIBUTES,
  MAX_ATTRIBUTES,
  NO,
  NUM_VALUES,
  YES,
  GuessingGame,
  describe,
  draw_game,
)
from environments.guessing.scripted import POLICIES

REWARDS = {
  "success": "1 for a right guess, else 0",
  "questions": "-1 for each turn before a right guess; all of them if none is",
}
LEAST_THINGS, MOST_THINGS = 16, 64
NO_CALL = "No tool call found. Call ask or guess."


class Guessing(IndexedEnvironment[GuessingGame]):
  """Task i of a split has a list of things and a secret among them.

  Args:
    num_things: in the list, 16 to 64.
    num_attributes: of each thing, 2 to 4, of four values each.
    max_turns: answers of the policy; 3 * num_attributes + 1 always suffice.
    reward: one of `REWARDS`.
    num_tasks: of each split.
  """

  name = "guessing"
  mistakes = MISTAKES
  policies = POLICIES
  baseline = "first_fit"

  def __init__(
    self,
    *,
    num_things: int = 16,
    num_attributes: int = 3,
    max_turns: int = 10,
    reward: str = "success",
    num_tasks: int = 1 << 20,
  ):
    if not 2 <= num_attributes <= MAX_ATTRIBUTES:
      raise ConfigError(
        f"num_attributes={num_attributes}; allowed is 2 to {MAX_ATTRIBUTES}"
      )
    most = min(MOST_THINGS, NUM_VALUES**num_attributes)
    if not LEAST_THINGS <= num_things <= most:
      raise ConfigError(
        f"num_things={num_things}; allowed is {LEAST_THINGS} to {most} with "
        f"num_attributes={num_attributes}"
      )
    require_positive(max_turns=max_turns)
    require_one_of(REWARDS, reward=reward)
    super().__init__(num_tasks=num_tasks)
    self._size = (num_things, num_attributes)
    self._max_turns = max_turns
    self._reward = reward

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session; ignores the seed, as the task determines the game."""
    del seed
    yield GameSession(
      self.find(task), max_turns=self._max_turns, reward=self._reward
    )

  def training_information(self, task: Task) -> str:
    """Returns the number of the secret, as `guess` takes it."""
    return f"The secret is {self.find(task).secret + 1}."

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that halves the list; see `expert.MISTAKES`.

    It knows the answers that it was given, and not the secret: a policy can
    learn to play as it does.
    """
    return Questioner(
      self.find(task), max_turns=self._max_turns, seed=seed, mistakes=mistakes
    )

  def generate(self, split: str, index: int) -> GuessingGame:
    """Draws a game that the split owns.

    The list alone decides about the split, so that the secret is a uniform
    draw in both.
    """
    rng = random.Random(f"{split}/{index}")
    while True:  # the split owns a drawn list with probability 1/2
      game = draw_game(*self._size, rng)
      if split_of(describe(game.things)) == split:
        return game


class GameSession(OneCallSession):
  """One game, for any secret among its things."""

  def __init__(self, game: GuessingGame, *, max_turns: int, reward: str):
    text = (
      "I think of one of these things:\n"
      f"{describe(game.things)}\n"
      "Ask about its attributes with ask, and name its number with guess, "
      f"once. You have {max_turns} turns."
    )
    super().__init__(text, max_turns=max_turns, no_call=NO_CALL)
    self.tools = (_ask_tool(game), _guess_tool(game))
    self._game = game
    self._max_turns = max_turns
    self._counts_questions = reward == "questions"

  @property
  def _turns(self) -> int:
    """Answers so far."""
    return self._max_turns - self.turns_left

  def play(self, tool: str, arguments: Mapping[str, Any]) -> str | Step:
    if tool == "guess":
      is_right = int(arguments["number"]) - 1 == self._game.secret
      return Step((), **self._end(is_right), status=Status.COMPLETED)
    return self._reply(arguments["attribute"], arguments["value"])

  def _reply(self, attribute: str, value: str) -> str:
    if value not in ATTRIBUTES[attribute]:
      allowed = ", ".join(ATTRIBUTES[attribute])
      return (
        f"Error: {value} is no {attribute}. The values of {attribute} are: "
        f"{allowed}."
      )
    game = self._game
    return YES if game.has(game.secret, (attribute, value)) else NO

  def go_on(self, reply: Message) -> Step:
    if self.turns_left > 0:
      reward = -float(self._turns) if self._counts_questions else 0.0
      return Step((reply,), reward=reward)
    # A game that is lost by its rules is complete: for one that was cut,
    # advantage.incomplete_reward would replace the turns' cost.
    status = Status.TASK_LIMIT_REACHED
    if self._counts_questions:
      status = Status.COMPLETED
    return Step((reply,), **self._end(False), status=status)

  def _end(self, is_right: bool) -> dict[str, Any]:
    """Returns reward and metrics of a game that ends with this answer."""
    reward = float(is_right)
    if self._counts_questions:
      # Else a wrong guess at once would cost less than to ask.
      reward = -float(self._turns - 1 if is_right else self._max_turns)
    metrics = {"success": float(is_right), "questions": self._turns - 1.0}
    return {"reward": reward, "metrics": metrics}


def _ask_tool(game: GuessingGame) -> Tool:
  values = [value for _, value in game.questions]
  return make_tool(
    "ask",
    "Tells if the thing has a value of an attribute.",
    {
      "attribute": {"type": "string", "enum": list(game.names)},
      "value": {"type": "string", "enum": values},
    },
  )


def _guess_tool(game: GuessingGame) -> Tool:
  number = {"type": "integer", "minimum": 1, "maximum": len(game.things)}
  return make_tool(
    "guess",
    "Guesses the number of the thing, which ends the game.",
    {"number": number},
  )
