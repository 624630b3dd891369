"""Finds and reads ALFWorld's game files, and AgentBench's lists of them.

A game.tw-pddl is JSON with `pddl_problem`, `pddl_domain` and `grammar`. The
files are not part of this project: alfworld-download fetches 3,553 games for
training, 140 in rooms seen in training and 134 in unseen rooms.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.data.split import LOADED_SPLIT
from agentrl_jax.env.task_sets import read_sets
from agentrl_jax.errors import ConfigError
from environments.alfworld.games.game import AGENTBENCH, Game, GameDialect
from environments.alfworld.games.pddl import parse, read_problem

GAME_FILE = "game.tw-pddl"
VARIABLE = "ALFWORLD_DATA"  # ALFWorld's own name for the folder of its data
_TASK_PREFIX = "Your task is to: "
_TASK = re.compile(r'"rhs":\s*("Your task is to: (?:[^"\\]|\\.)*")')
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')

# ALFWorld's domain and grammar have changed over the years, and every game file
# carries its own. The checksums are of the versions on which the Python engine
# was compared with the real one; the values are what differs from AGENTBENCH.
_ANY_SINK = ("sinkbasin", "sink")
_DOMAINS: Mapping[int, Mapping[str, Any]] = {
  0x13775A64: {},  # AgentBench's data/alfworld/logic
  0x6DE22E23: {"cleans_in": _ANY_SINK},  # most of the released games
  0x088157A0: {  # a few of the released games
    "cleans_in": _ANY_SINK,
    "opens_one": True,
    "uses_what_is_near": True,
  },
  0x5A370159: {"has_help": True},  # alfworld 0.4
}
_GRAMMARS: Mapping[int, Mapping[str, Any]] = {
  0xB4AE2E50: {},
  0x644565C7: {"shows_opened": False},
  0xC12A7117: {
    "put": "move {o} to {r}",
    "put_reply": "You move the {o} to the {r}.",
    "names_location": False,
  },
}


def find_games(source: str, games: str) -> Mapping[str, Sequence[pathlib.Path]]:
  """Lists the files of each set, in order; none if none are configured.

  `source` is AgentBench's list of paths below the folder `games`, which
  defaults to the variable ALFWORLD_DATA. Without a list, every game of the
  folder counts that ALFWorld itself would play.
  """
  folder = games or os.environ.get(VARIABLE, "")
  if source and not folder:
    raise ConfigError(
      f"source={source!r} lists games, and no folder with games is given: "
      f"set `games`, or {VARIABLE}, to where alfworld-download put them"
    )
  root = pathlib.Path(folder)
  if (games or source) and not root.is_dir():
    option = f"games={games!r}" if games else f"{VARIABLE}={folder}"
    raise ConfigError(f"{option} is not a folder")
  if source:
    return read_sets(source, functools.partial(_listed, root=root))
  if not folder:
    return {}
  return {LOADED_SPLIT: [*filter(_is_playable, sorted(root.rglob(GAME_FILE)))]}


def _listed(
  source: pathlib.Path, root: pathlib.Path
) -> tuple[pathlib.Path, ...]:
  try:
    lists: Any = json.loads(source.read_text(encoding="utf-8"))
    paths = [root / str(path) for paths in lists.values() for path in paths]
  except (OSError, AttributeError, TypeError, ValueError) as error:
    raise ConfigError(
      f"source={str(source)!r} is not one of AgentBench's lists ({error!r}): "
      "JSON that maps types of task to lists of paths is needed"
    ) from error
  missing = [path for path in paths if not path.is_file()]
  if missing:
    raise ConfigError(
      f"{len(missing)} of the {len(paths)} games of {str(source)!r} are not in "
      f"{str(root)!r}, the first is {str(missing[0])!r}"
    )
  return tuple(paths)


def _is_playable(path: pathlib.Path) -> bool:
  """Excludes task types that ALFWorld leaves out, and unsolvable games."""
  if any(word in str(path) for word in ("movable", "Sliced")):
    return False
  return b'"solvable": false' not in path.read_bytes()


@functools.lru_cache(maxsize=256)
def load_game(path: pathlib.Path) -> Game:
  """Reads one file into the game that the Python engine and the expert play."""
  try:
    data = json.loads(path.read_text(encoding="utf-8"))
    problem, grammar = str(data["pddl_problem"]), str(data["grammar"])
    domain = str(data["pddl_domain"])
  except (OSError, KeyError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{str(path)!r} is no ALFWorld game ({error!r}): JSON with pddl_problem, "
      "pddl_domain and grammar is needed"
    ) from error
  match = _TASK.search(grammar)
  if match is None:
    raise ConfigError(f"the grammar of {str(path)!r} does not tell the task")
  task = str(json.loads(match[1])).removeprefix(_TASK_PREFIX)
  dialect = recognise_dialect(domain, grammar)
  game = read_problem(
    problem, task=task.removesuffix("."), dialect=dialect or AGENTBENCH
  )
  unknown = "" if dialect else "has rules or words that are not known here"
  return dataclasses.replace(
    game, file=path, unsupported=game.unsupported or unknown
  )


def recognise_dialect(domain: str, grammar: str) -> GameDialect | None:
  """Finds the dialect of a game by checksum; None for an unknown one."""
  rules = _DOMAINS.get(domain_checksum(domain))
  texts = _GRAMMARS.get(grammar_checksum(grammar))
  if rules is None or texts is None:
    return None
  return dataclasses.replace(AGENTBENCH, **rules, **texts)


def domain_checksum(domain: str) -> int:
  """Checksum of the actions in a PDDL domain; comments and layout are free."""
  actions = [part for part in parse(domain) if part[:1] == (":action",)]
  return zlib.crc32(repr(sorted(actions, key=repr)).encode())


def grammar_checksum(grammar: str) -> int:
  """Checksum of all strings in a grammar but for the task."""
  strings = _STRING.findall(grammar)
  fixed = [text for text in strings if not text.startswith(_TASK_PREFIX)]
  return zlib.crc32("\n".join(fixed).encode())
