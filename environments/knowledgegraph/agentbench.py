"""Reads AgentBench's KnowledgeGraph files: a list of questions, as JSON.

The files are not part of this project. An entry holds a question, the ids of
the entities in it, the gold calls ("get_neighbors(#0,film.film.starring)"), and
the answer.
"""

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.problem import GoldCall, Problem

CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)


def load_problems(path: str | pathlib.Path) -> tuple[Problem, ...]:
  """The problems of a `.json` file, in its order."""
  path = pathlib.Path(path)
  if not path.is_file():
    raise ConfigError(
      f"KnowledgeGraph's source is {str(path)!r}, which is not a file; give "
      "the path of AgentBench's dev.json, std.json or kg_rl_all.json, or none "
      "to generate tasks"
    )
  try:
    entries = json.loads(path.read_text(encoding="utf-8"))
    return tuple(_problem(entry) for entry in entries)
  except (AttributeError, LookupError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{str(path)!r} does not hold KnowledgeGraph problems ({error!r}); each "
      "entry needs question, entities and answer, a list of {answer_argument}"
    ) from error


def _problem(entry: Mapping[str, Any]) -> Problem:
  return Problem(
    question=str(entry["question"]),
    entities={str(k): str(v) for k, v in entry["entities"].items()},
    answers=frozenset(str(a["answer_argument"]) for a in entry["answer"]),
    gold_calls=tuple(map(_gold_call, entry.get("actions") or ())),
    kind=str(entry.get("source") or "other"),
  )


def _gold_call(text: str) -> GoldCall:
  found = CALL.fullmatch(text)
  if found is None:
    raise ValueError(f"the action {text!r} is not a call")
  arguments = (argument.strip() for argument in found[2].split(","))
  return GoldCall(found[1], tuple(arguments))
