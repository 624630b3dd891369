"""Records traces of the real engine, for machines that lack it.

  python -m tests.environments.alfworld.engines.make_traces

Needs the packages of the extra `alfworld`. Plays random walks through games
with fixed seeds, in each dialect of the game files. Writes traces.jsonl.gz: for
each game the PDDL problem, and for each step the command, the feedback, the
removed commands, the added commands, and `won`.
"""

import asyncio
import dataclasses
import gzip
import json
import random
import re
from unittest import mock

from environments.alfworld.engines import textworld_engine
from environments.alfworld.engines.textworld_engine import TextWorldEngine
from environments.alfworld.games.game import AGENTBENCH, GameDialect
from environments.alfworld.games.pddl import render_problem
from tests.environments.alfworld.engines.differential_test import TRACES
from tests.environments.alfworld.engines.walks import choose, draw_game

NUM_STEPS = 50
OLDER = GameDialect(shows_opened=False, opens_one=True, uses_what_is_near=True)
NEWER = GameDialect(
  put="move {o} to {r}",
  put_reply="You move the {o} to the {r}.",
  names_location=False,
  has_help=True,
)
# Edits that turn the rules of the newer dialect into those of the older.
_OLDER_RULES = {
  r"\(not \(opened \?r\)\)(?=\s*\)\s*:effect \(and\s*\(opened)": (
    "(forall (?re - receptacle) (not (opened ?re)))"
  ),
  r"(?<=\?o - object) \?r - receptacle(?=\)\s*:pre\w+ \(and\s*\(togg)": "",
  r"\(receptacleAtLocation \?r \?l\)\s*\(inReceptacle \?o \?r\)"
  r"(?=\s*\)\s*:effect \(and\s*\(increase \(total-cost\) 5\)\s*\(when)": (
    "(objectAtLocation ?o ?l)"
  ),
}
_OLDER_TEXTS = {
  r"(You open the \{r\.name\}\.) #examineReceptacle\.feedback#": r"\1"
}


async def main() -> None:
  engine = TextWorldEngine(num_processes=1, reply_limit_s=120.0)
  with gzip.GzipFile(TRACES, "wb", mtime=0) as file:
    for name, dialect, seeds in (
      ("agentbench", AGENTBENCH, range(18)),
      # TextWorld cannot load these rules with receptacles open at the start.
      ("older", OLDER, range(18, 36, 3)),
      ("newer", NEWER, range(18, 24)),
    ):
      logic = _logic(dialect)
      for seed in seeds:
        game = dataclasses.replace(draw_game(seed), dialect=dialect)
        with mock.patch.object(textworld_engine, "_logic", return_value=logic):
          steps = await _walk(engine, game, seed)
        trace = {
          "name": f"{name} {seed}",
          "dialect": dataclasses.asdict(dialect),
          "task": game.task,
          "problem": render_problem(game),
          "steps": steps,
        }
        file.write(json.dumps(trace).encode() + b"\n")
  await engine.close()


async def _walk(engine, game, seed):
  rng = random.Random(seed)
  async with engine.open(game) as play:
    state = await play.begin()
    steps = [[None, state.feedback, [], state.commands, state.is_won]]
    for _ in range(NUM_STEPS):
      command, before = choose(rng, state.commands), set(state.commands)
      state = await play.act(command)
      after = set(state.commands)
      change = sorted(before - after), sorted(after - before)
      steps.append([command, state.feedback, *change, state.is_won])
  return steps


def _logic(dialect):
  if dialect is NEWER:
    with mock.patch.multiple(
      textworld_engine,
      _REPLACED_TEXTS={},
      _HELP_RULE=_NoMatch(),
      _HELP_TEXT=_NoMatch(),
      recognise_dialect=lambda *_: AGENTBENCH,
    ):
      return textworld_engine._logic()
  domain, grammar = textworld_engine._logic()
  if dialect is OLDER:
    domain = _replaced(domain, _OLDER_RULES)
    grammar = _replaced(grammar, _OLDER_TEXTS)
  return domain, grammar


class _NoMatch:
  """A pattern without a match."""

  def sub(self, _, text):
    return text


def _replaced(text, changes):
  for pattern, new in changes.items():
    text, count = re.subn(pattern, new, text)
    if count != 1:
      raise ValueError(f"{pattern!r} is in the logic {count} times, not once")
  return text


if __name__ == "__main__":
  asyncio.run(main())
