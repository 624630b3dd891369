"""Takes down what the real engine says, for machines that lack it.

  python -m tests.environments.alfworld.engines.make_traces

Needs the packages of the extra `alfworld`. Games are drawn from fixed seeds and
walked at random, in each of the dialects that game files have. Writes
traces.jsonl.gz: per game the PDDL problem, and per step the command, the
feedback, the commands that went and came, and whether the game is won.
"""

import asyncio
import dataclasses
import gzip
import json
import random
import re
from unittest import mock

from environments.alfworld.engines import rendering
from environments.alfworld.engines.textworld_engine import TextWorldEngine
from environments.alfworld.games.game import AGENTBENCH, Dialect
from tests.environments.alfworld.engines.differential_test import TRACES
from tests.environments.alfworld.engines.walks import choose, draw_game

NUM_STEPS = 50
OLDER = Dialect(shows_opened=False, opens_one=True, uses_what_is_near=True)
NEWER = Dialect(
  put="move {o} to {r}",
  put_reply="You move the {o} to the {r}.",
  names_location=False,
  has_help=True,
)
# The rules of the older dialect, written into those of the newer.
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
_OLDER_WORDS = {
  r"(You open the \{r\.name\}\.) #examineReceptacle\.feedback#": r"\1"
}


async def main() -> None:
  engine = TextWorldEngine(num_processes=1, reply_limit_s=120.0)
  with gzip.GzipFile(TRACES, "wb", mtime=0) as file:
    for name, dialect, seeds in (
      ("agentbench", AGENTBENCH, range(18)),
      # TextWorld does not load these rules with what is open from the start.
      ("older", OLDER, range(18, 36, 3)),
      ("newer", NEWER, range(18, 24)),
    ):
      logic = _logic(dialect)
      for seed in seeds:
        game = dataclasses.replace(draw_game(seed), dialect=dialect)
        with mock.patch.object(rendering, "_logic", return_value=logic):
          steps = await _walk(engine, game, seed)
        trace = {
          "name": f"{name} {seed}",
          "dialect": dataclasses.asdict(dialect),
          "task": game.task,
          "problem": rendering.render_problem(game),
          "steps": steps,
        }
        file.write(json.dumps(trace).encode() + b"\n")
  await engine.close()


async def _walk(engine, game, seed):
  rng = random.Random(seed)
  async with engine.open(game) as play:
    scene = await play.begin()
    steps = [[None, scene.feedback, [], scene.commands, scene.is_won]]
    for _ in range(NUM_STEPS):
      command, before = choose(rng, scene.commands), set(scene.commands)
      scene = await play.act(command)
      after = set(scene.commands)
      change = sorted(before - after), sorted(after - before)
      steps.append([command, scene.feedback, *change, scene.is_won])
  return steps


def _logic(dialect):
  if dialect is NEWER:
    with (
      mock.patch.multiple(
        rendering, _REWORDING={}, recognise=lambda *_: AGENTBENCH
      ),
      mock.patch.multiple(
        rendering, _HELP_RULE=_Nowhere(), _HELP_WORDS=_Nowhere()
      ),
    ):
      return rendering._logic()
  domain, grammar = rendering._logic()
  if dialect is OLDER:
    domain = _replaced(domain, _OLDER_RULES)
    grammar = _replaced(grammar, _OLDER_WORDS)
  return domain, grammar


class _Nowhere:
  """A pattern that is found nowhere."""

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
