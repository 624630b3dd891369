"""Scripted expert of BFCL: the gold calls, with or without mistakes.

All calls of a turn are in one answer; the next answer ends the turn. A mistake
affects one turn of the episode, which the seed draws.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import Message, ToolCall
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import draw_mistakes
from environments.bfcl.apis import APIs
from environments.bfcl.calls import Call, parse_source
from environments.bfcl.suite import BFCLProblem

MISTAKES = (
  "dropped_call",  # a call is left out
  "wrong_argument",  # an argument has another value
  "skipped_turn",  # nothing is called in a turn
  "broken_json",  # the closing brace of a call is missing
)
DONE = "Done."


class GoldExpert(Expert):
  """Plays calls turn by turn; the first of `broken_turn` is malformed."""

  def __init__(self, turns: Sequence[Sequence[Call]], *, broken_turn: int = -1):
    self._turns = turns
    self._broken_turn = broken_turn
    self._turn = 0
    self._has_called = False

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the calls of the user's turn, then an answer that ends it."""
    calls = self._turns[self._turn] if self._turn < len(self._turns) else ()
    if calls and not self._has_called:
      self._has_called = True
      return Message("assistant", tool_calls=tuple(map(self._write, calls)))
    self._turn += 1
    self._has_called = False
    return Message("assistant", DONE)

  def _write(self, call: Call) -> ToolCall:
    text = json.dumps(call.named, ensure_ascii=False)
    if self._turn == self._broken_turn:
      self._has_called = False  # a malformed call ends the turn
      self._turn += 1
      self._broken_turn = -1
      text = text[:-1]
    return self.write_call(call.name, text)


def gold_expert(
  problem: BFCLProblem, *, seed: int, mistakes: Mapping[str, float]
) -> GoldExpert:
  """Makes an expert; without mistakes it earns reward 1."""
  turns = [list(turn) for turn in gold_calls(problem)]
  rng = random.Random(f"{problem.id}/{seed}")
  drawn = draw_mistakes(mistakes, MISTAKES, rng, where="BFCL's expert")
  turn = rng.choice([n for n, calls in enumerate(turns) if calls])
  index = rng.randrange(len(turns[turn]))
  if "wrong_argument" in drawn:
    turns[turn][index] = _with_wrong_argument(turns[turn][index])
  if "dropped_call" in drawn:
    del turns[turn][index]
  if "skipped_turn" in drawn:
    turns[turn] = []
  return GoldExpert(turns, broken_turn=turn if "broken_json" in drawn else -1)


def gold_calls(problem: BFCLProblem) -> tuple[tuple[Call, ...], ...]:
  """Parses the gold calls of each turn and names all arguments."""
  apis = APIs(problem.classes, problem.config, is_long=problem.is_long)

  def parse(source: str) -> Call:
    call = parse_source(source)
    named = apis.arguments_of(call.name, call.positional, call.named)
    return Call(call.name, (), named)

  return tuple(tuple(map(parse, turn)) for turn in problem.gold)


def _with_wrong_argument(call: Call) -> Call:
  if not call.named:
    return call
  name = list(call.named)[-1]
  return Call(
    call.name, (), {**call.named, name: _other_value(call.named[name])}
  )


def _other_value(value: Any) -> Any:
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
      return {key: _other_value(item) for key, item in value.items()}
  return "none"
