"""Reads BFCL's multi-turn tasks and function descriptions.

The files belong to the package `bfcl-eval`. A task is a line of JSON with the
user's messages of each turn, the classes whose functions may be called and
their initial state. A second file has the gold calls of each turn.
"""

import dataclasses
import functools
import importlib.util
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.data.forms.content import text_of
from agentrl_jax.data.records import Tool
from agentrl_jax.errors import ConfigError
from environments.bfcl.apis import FUNCTION_DOCS

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
TOOL_HINT = " Note that the provided function is in Python 3 syntax."
_FLOAT_HINT = " This is a float type value."
_INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 mpmath==1.3.0"

# JSON names of types, as in BFCL's own adapter for OpenAI's API.
_TYPES: Mapping[str, str] = {
  "integer": "integer",
  "number": "number",
  "float": "number",
  "string": "string",
  "boolean": "boolean",
  "bool": "boolean",
  "array": "array",
  "list": "array",
  "tuple": "array",
  "dict": "object",
  "object": "object",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BFCLProblem:
  """One task of the suite."""

  id: str  # such as multi_turn_base_7
  category: str
  questions: tuple[tuple[str, ...], ...]  # the user's messages, by turn
  gold: tuple[tuple[str, ...], ...]  # Python source of the calls, by turn
  classes: tuple[str, ...]
  config: Mapping[str, Any]  # the initial state of each class
  withheld: Mapping[
    int, tuple[str, ...]
  ]  # functions, by the turn that adds them

  @property
  def scenario(self) -> str:
    """The number that a scenario's tasks share across categories."""
    return self.id.rsplit("_", 1)[1]

  @property
  def is_long(self) -> bool:
    """Tests if replies are padded."""
    return self.category == "long_context"


def data_folder(source: str) -> pathlib.Path:
  """Returns the folder `source`, or the installed package's if empty."""
  if source:
    folder = pathlib.Path(source)
    if not folder.is_dir():
      raise ConfigError(
        f"BFCL's source is {source!r}, which is not a folder; give bfcl_eval's "
        "data folder, or none to use the installed package's"
      )
    return folder
  spec = importlib.util.find_spec("bfcl_eval")
  if spec is None or spec.origin is None:
    raise ConfigError(f"BFCL needs the package bfcl-eval: {_INSTALL}")
  return pathlib.Path(spec.origin).parent / "data"


@functools.cache
def load_problems(
  folder: pathlib.Path, category: str
) -> tuple[BFCLProblem, ...]:
  """Reads the tasks of a category, in the order of its file."""
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
  """Reads BFCL's descriptions of the functions of a class."""
  path = folder / "multi_turn_func_doc" / FUNCTION_DOCS[class_name]
  return tuple(_rows(path))


def tool_of(doc: Mapping[str, Any], *, hint: str = TOOL_HINT) -> Tool:
  """Converts a description into a tool; `hint` ends the tool's description.

  BFCL does not check arguments against the schema, and neither do sessions.
  """
  parameters = doc["parameters"]
  return Tool(
    str(doc["name"]),
    str(doc["description"]) + hint,
    {
      "type": "object",
      "properties": _properties(parameters["properties"]),
      "required": list(parameters.get("required", ())),
    },
  )


def _properties(properties: Mapping[str, Any]) -> dict[str, Any]:
  return {name: _schema(rules) for name, rules in properties.items()}


def _schema(rules: Mapping[str, Any]) -> dict[str, Any]:
  schema = dict(rules)
  schema["type"] = _TYPES.get(rules.get("type", "string"), "string")
  if rules.get("type") == "float" and "description" in rules:
    schema["description"] = rules["description"] + _FLOAT_HINT
  if "properties" in rules:
    schema["properties"] = _properties(rules["properties"])
  if "items" in rules:
    schema["items"] = _schema(rules["items"])
  return schema


def _problem(
  category: str, row: Mapping[str, Any], gold: Mapping[str, Any]
) -> BFCLProblem:
  questions = tuple(
    tuple(text_of(message) for message in turn) for turn in row["question"]
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
  return BFCLProblem(
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
  """Finds the category's file of BFCL v4, else of v3."""
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
    # Texts hold U+2028 and the like, at which splitlines() would split.
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.strip()]
  except (OSError, ValueError) as error:
    raise ConfigError(
      f"{str(path)!r} cannot be read as lines of JSON: {error}"
    ) from error
