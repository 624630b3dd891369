"""A scripted player of BFCL: the gold calls, or the gold calls with a flaw.

It makes all calls of a turn in one answer, then says that it is done. A mistake
is made in one turn of the attempt, which the seed draws.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known
from environments.bfcl.apis import APIs
from environments.bfcl.calls import Call, parse_source
from environments.bfcl.suite import Problem

MISTAKES = (
  "dropped_call",  # a call is left out
  "wrong_argument",  # an argument has another value
  "skipped_turn",  # nothing is called in a turn
  "broken_json",  # the closing brace of a call is missing
)
DONE = "Done."


class GoldPlayer(Expert):
  """Plays calls turn by turn; in a turn without any it says so."""

  def __init__(self, turns: Sequence[Sequence[Call]], *, breaks_turn: int = -1):
    self._turns = turns
    self._breaks_turn = breaks_turn
    self._turn = 0
    self._has_called = False
    self._num_calls = 0

  def answer(self, messages: Sequence[Message]) -> Message:
    """The calls of the user's turn; then a word that ends it."""
    calls = self._turns[self._turn] if self._turn < len(self._turns) else ()
    if calls and not self._has_called:
      self._has_called = True
      return Message("assistant", tool_calls=tuple(map(self._write, calls)))
    self._turn += 1
    self._has_called = False
    return Message("assistant", DONE)

  def _write(self, call: Call) -> ToolCall:
    self._num_calls += 1
    text = json.dumps(call.named, ensure_ascii=False)
    if self._turn == self._breaks_turn:
      self._has_called = False  # the call ends the turn, as nobody can read it
      self._turn += 1
      self._breaks_turn = -1
      text = text[:-1]
    return ToolCall(call.name, text, id=f"call_{self._num_calls}")


def gold_player(
  problem: Problem, *, seed: int, mistakes: Mapping[str, float]
) -> GoldPlayer:
  """Without mistakes it earns the top reward."""
  require_known(mistakes, MISTAKES, where="BFCL's expert")
  turns = [list(turn) for turn in gold_calls(problem)]
  rng = random.Random(f"{problem.id}/{seed}")
  made = {m for m in MISTAKES if rng.random() < mistakes.get(m, 0.0)}
  busy = [n for n, turn in enumerate(turns) if turn]
  turn = rng.choice(busy)
  place = rng.randrange(len(turns[turn]))
  if "wrong_argument" in made:
    turns[turn][place] = _spoil(turns[turn][place])
  if "dropped_call" in made:
    del turns[turn][place]
  if "skipped_turn" in made:
    turns[turn] = []
  return GoldPlayer(turns, breaks_turn=turn if "broken_json" in made else -1)


def gold_calls(problem: Problem) -> tuple[tuple[Call, ...], ...]:
  """The gold calls with every argument named, as a policy makes them."""
  apis = APIs(problem.classes, problem.config, is_long=problem.is_long)
  return tuple(
    tuple(_named(parse_source(source), apis) for source in turn)
    for turn in problem.gold
  )


def _named(call: Call, apis: APIs) -> Call:
  named = apis.arguments_of(call.name, call.positional, call.named)
  return Call(call.name, (), named)


def _spoil(call: Call) -> Call:
  """The call with another value for its last argument."""
  if not call.named:
    return call
  name = list(call.named)[-1]
  return Call(call.name, (), {**call.named, name: _other(call.named[name])})


def _other(value: Any) -> Any:
  match value:
    case bool():
      return not value
    case int() | float():
      return value + 1
    case str():
      return f"{value}_2"
    case list():
      return [*value, *value[:1]]
    case dict():
      return {key: _other(item) for key, item in value.items()}
  return "none"
