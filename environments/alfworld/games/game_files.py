"""Reads ALFWorld's game files, and AgentBench's lists of them.

A game.tw-pddl is JSON with `pddl_problem`, `pddl_domain` and `grammar`. The
files are not part of this project: alfworld-download gets them, 3,553 for
training, 140 of rooms seen there, 134 of other rooms.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
from typing import Any

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.dialects import recognise
from environments.alfworld.games.game import AGENTBENCH, Game
from environments.alfworld.games.pddl import read_problem

GAME_FILE = "game.tw-pddl"
VARIABLE = "ALFWORLD_DATA"  # ALFWorld's own name for the folder of its data
_TASK = re.compile(r'"rhs":\s*("Your task is to: (?:[^"\\]|\\.)*")')


def find_games(source: str, games: str) -> tuple[pathlib.Path, ...]:
  """The files of the loaded split, in order; none if there are none to load.

  `source` is AgentBench's list of paths below the folder `games`, which is by
  default what ALFWORLD_DATA names. Without a list every game in the folder
  counts that ALFWorld itself would play.
  """
  folder = games or os.environ.get(VARIABLE, "")
  if source and not folder:
    raise ConfigError(
      f"source={source!r} lists games, and there is no folder to find them in: "
      f"set `games`, or {VARIABLE}, to where alfworld-download put them"
    )
  root = pathlib.Path(folder)
  if (games or source) and not root.is_dir():
    where = f"games={games!r}" if games else f"{VARIABLE}={folder}"
    raise ConfigError(f"{where} is not a folder")
  if source:
    return _listed(source, root)
  if not folder:
    return ()
  return tuple(filter(_is_playable, sorted(root.rglob(GAME_FILE))))


def _listed(source: str, root: pathlib.Path) -> tuple[pathlib.Path, ...]:
  paths = tuple(root / path for path in _read_list(source))
  missing = [path for path in paths if not path.is_file()]
  if missing:
    raise ConfigError(
      f"{len(missing)} of the {len(paths)} games of {source!r} are not in "
      f"{str(root)!r}, the first is {str(missing[0])!r}"
    )
  return paths


def _is_playable(path: pathlib.Path) -> bool:
  """Neither of a type that ALFWorld leaves out, nor found to be unsolvable."""
  if any(word in str(path) for word in ("movable", "Sliced")):
    return False
  return b'"solvable": false' not in path.read_bytes()


@functools.lru_cache(maxsize=256)
def load_game(path: pathlib.Path) -> Game:
  """The game in one file, for the Python engine and for the expert."""
  try:
    data = json.loads(path.read_text(encoding="utf-8"))
    problem, grammar = str(data["pddl_problem"]), str(data["grammar"])
    domain = str(data["pddl_domain"])
  except (OSError, KeyError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{str(path)!r} is no ALFWorld game ({error!r}): JSON with pddl_problem, "
      "pddl_domain and grammar is needed"
    ) from error
  task = _TASK.search(grammar)
  if task is None:
    raise ConfigError(f"the grammar of {str(path)!r} does not tell the task")
  words = str(json.loads(task[1])).removeprefix("Your task is to: ")
  dialect = recognise(domain, grammar)
  game = read_problem(
    problem, task=words.removesuffix("."), dialect=dialect or AGENTBENCH
  )
  unknown = "" if dialect else "has rules or words that are not known here"
  return dataclasses.replace(game, file=path, obstacle=game.obstacle or unknown)


def _read_list(source: str) -> list[str]:
  try:
    lists: Any = json.loads(pathlib.Path(source).read_text(encoding="utf-8"))
    return [str(path) for paths in lists.values() for path in paths]
  except (OSError, AttributeError, TypeError, ValueError) as error:
    raise ConfigError(
      f"source={source!r} is not one of AgentBench's lists ({error!r}): JSON "
      "that maps types of task to lists of paths is needed"
    ) from error
