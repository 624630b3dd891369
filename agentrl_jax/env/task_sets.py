"""Sets of tasks that an environment reads from files, each a split of its own.

`source` of an environment is a path, or names and paths:

  data/dev.json                   one file: the split dev
  data/std                        a folder of files: the split std
  train=data/rl.json,std=data/std two splits; a set called train or test
                                  replaces the generated tasks

The files of a folder are those directly in it or, if there are none, those of
the folders in it, as in AgentBench's `data/1` to `data/7`. They are read in the
order of their names, in which 10 comes after 9.
"""

import pathlib
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from agentrl_jax.data.split import LOADED_SPLIT
from agentrl_jax.errors import ConfigError

T = TypeVar("T")

_NAME = re.compile(r"\w[\w.-]*")


def read_sets(
  source: str,
  read: Callable[[pathlib.Path], Sequence[T]],
  *,
  suffixes: Sequence[str] = (".json", ".jsonl"),
) -> dict[str, tuple[T, ...]]:
  """Returns the tasks of each set by its name; none for an empty `source`.

  `read` reads one file. Raises `ConfigError` for a name that comes twice or is
  none, for a folder without files that end with one of `suffixes`, and for a
  set without tasks.
  """
  sets = {}
  for name, path in find_sets(source).items():
    sets[name] = tuple(
      task for file in _files(path, suffixes) for task in read(file)
    )
    if not sets[name]:
      raise ConfigError(f"source={source!r}: {str(path)!r} holds no task")
  return sets


def find_sets(source: str) -> dict[str, pathlib.Path]:
  """Returns the file or folder of each set, by its name; see `read_sets`."""
  if not source:
    return {}
  if pathlib.Path(source).exists():  # whatever characters it has
    return {_default_name(source): pathlib.Path(source)}
  found: dict[str, pathlib.Path] = {}
  for part in source.split(","):
    name, equals, path = part.partition("=")
    if not equals:
      name, path = _default_name(part), part
    if not _NAME.fullmatch(name):
      raise ConfigError(
        f"source={source!r}: {name!r} is no name of a set; names have letters, "
        "digits, '_', '-' and '.', as in std=data/std"
      )
    if name in found:
      raise ConfigError(
        f"source={source!r} has two sets called {name}: give each a name, as "
        "in dev=PATH,std=PATH"
      )
    found[name] = pathlib.Path(path)
  return found


def _default_name(path: str) -> str:
  folder = pathlib.Path(path)
  return folder.resolve().name if folder.is_dir() else LOADED_SPLIT


def _files(
  path: pathlib.Path, suffixes: Sequence[str]
) -> Sequence[pathlib.Path]:
  if not path.is_dir():
    return (path,)  # a file, or nothing: `read` says so
  for pattern in ("*", "*/*"):
    files = [p for p in path.glob(pattern) if p.suffix in suffixes]
    if files:
      return sorted(files, key=_natural)
  raise ConfigError(
    f"{str(path)!r} has no file that ends with {' or '.join(suffixes)}, nor "
    "has a folder in it"
  )


def _natural(path: pathlib.Path) -> list[tuple[int, str]]:
  """Orders numbers in names by their value."""
  words = re.split(r"(\d+)", str(path))
  return [(int(word), "") if word.isdigit() else (-1, word) for word in words]
