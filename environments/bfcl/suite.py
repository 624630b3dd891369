"""Reads BFCL's multi-turn files: one task per line of JSON.

They come with the package `bfcl-eval`, and are not part of this project. A task
has its user's messages turn by turn, the classes whose functions may be called
and the state they begin in; a file beside it has the gold calls of every turn.
"""

import dataclasses
import functools
import importlib.util
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from environments.bfcl.apis import FUNCTION_DOCS

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")

_INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 mpmath==1.3.0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """One task of the suite."""

  id: str  # such as multi_turn_base_7
  category: str
  questions: tuple[tuple[str, ...], ...]  # what the user says, by turn
  gold: tuple[tuple[str, ...], ...]  # Python source of the calls, by turn
  classes: tuple[str, ...]
  config: Mapping[str, Any]  # the state that each class begins in
  withheld: Mapping[int, tuple[str, ...]]  # functions, by the turn they come in

  @property
  def number(self) -> str:
    """What the tasks made from one scenario share, in every category."""
    return self.id.rsplit("_", 1)[1]

  @property
  def is_long(self) -> bool:
    """Whether replies are padded."""
    return self.category == "long_context"


def data_folder(source: str) -> pathlib.Path:
  """The folder `source`, or the installed package's own."""
  if source:
    folder = pathlib.Path(source)
    if not folder.is_dir():
      raise ConfigError(
        f"BFCL's source is {source!r}, which is not a folder; give bfcl_eval's "
        "data folder, or none to use the installed package's"
      )
    return folder
  found = importlib.util.find_spec("bfcl_eval")
  if found is None or found.origin is None:
    raise ConfigError(f"BFCL needs the package bfcl-eval: {_INSTALL}")
  return pathlib.Path(found.origin).parent / "data"


def load_problems(folder: pathlib.Path, category: str) -> tuple[Problem, ...]:
  """The tasks of a category, in the order of its file."""
  path = _file(folder, category)
  gold_path = path.parent / "possible_answer" / path.name
  gold = {row["id"]: row for row in _rows(gold_path)}
  problems = []
  for row in _rows(path):
    try:
      problems.append(_problem(category, row, gold[row["id"]]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
      raise ConfigError(
        f"{str(path)!r} does not hold BFCL multi-turn tasks ({error!r}); each "
        "needs id, question, initial_config and involved_classes, and its "
        f"ground_truth in {str(gold_path)!r}"
      ) from error
  return tuple(problems)


@functools.cache
def function_docs(
  folder: pathlib.Path, class_name: str
) -> tuple[Mapping[str, Any], ...]:
  """How BFCL describes the functions of a class, in its order."""
  path = folder / "multi_turn_func_doc" / FUNCTION_DOCS[class_name]
  return tuple(_rows(path))


def _problem(
  category: str, row: Mapping[str, Any], gold: Mapping[str, Any]
) -> Problem:
  questions = tuple(
    tuple(str(message["content"]) for message in turn)
    for turn in row["question"]
  )
  calls = tuple(
    tuple(str(call) for call in turn) for turn in gold["ground_truth"]
  )
  if len(questions) != len(calls):
    raise ValueError(
      f"{row['id']} has {len(questions)} turns and gold for {len(calls)}"
    )
  classes = tuple(str(name) for name in row["involved_classes"])
  if unknown := sorted(set(classes) - FUNCTION_DOCS.keys()):
    raise ValueError(f"{row['id']} needs unknown classes {unknown}")
  return Problem(
    id=str(row["id"]),
    category=category,
    questions=questions,
    gold=calls,
    classes=classes,
    config=row["initial_config"],
    withheld={
      int(turn): tuple(names)
      for turn, names in row.get("missed_function", {}).items()
    },
  )


def _file(folder: pathlib.Path, category: str) -> pathlib.Path:
  """The category's file, of BFCL v4 or, where there is none, of v3."""
  for version in ("v4", "v3"):
    path = folder / f"BFCL_{version}_multi_turn_{category}.json"
    if path.is_file():
      return path
  raise ConfigError(
    f"{str(folder)!r} has no BFCL_v4_multi_turn_{category}.json; check "
    "`source`, or leave the category out of `categories`"
  )


def _rows(path: pathlib.Path) -> Sequence[Mapping[str, Any]]:
  try:
    return list(_read(path))
  except (OSError, ValueError) as error:
    raise ConfigError(
      f"{str(path)!r} cannot be read as lines of JSON: {error}"
    ) from error


def _read(path: pathlib.Path) -> Iterator[Mapping[str, Any]]:
  # Not splitlines(): texts hold U+2028 and its like.
  for line in path.read_text(encoding="utf-8").split("\n"):
    if line.strip():
      yield json.loads(line)
