"""Problems and their ontology, and AgentBench's files of both.

The files are not part of this project. An entry of a problem file has a
question, the ids of its entities, the gold calls
("get_neighbors(#0,film.film.starring)") and the answer.
"""

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from agentrl_jax.env.options import require_file
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
  Program,
)

CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
ROLES = "fb_roles"  # lines of "domain relation range"
VOCABULARY = "vocab.json"  # lists "relations" and "attributes"


@dataclasses.dataclass(frozen=True)
class GoldCall:
  """One call of the gold solution; arguments are ids, names or "#k"."""

  name: str
  arguments: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class KGProblem:
  """A question and its answer."""

  question: str
  entities: Mapping[str, str]  # the name in the question -> the id
  answers: frozenset[str]  # ids, or the text of a number
  gold_calls: tuple[GoldCall, ...]
  kind: str = ""  # names a metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ontology:
  """The relations and attributes that tools list, and their types."""

  ranges: Mapping[str, str]  # relation -> type of its objects
  relations: frozenset[str]
  attributes: frozenset[str]  # relations to numbers and dates


@dataclasses.dataclass(frozen=True)
class Instance:
  """A problem with the facts and the ontology that it is played on."""

  problem: KGProblem
  graph: Graph
  ontology: Ontology


def gold_programs(calls: Iterable[GoldCall]) -> list[Program]:
  """Returns the program of each variable of the gold calls, types unchecked.

  Raises `LookupError` or `ValueError` if a call cannot be run.
  """
  programs: list[Program] = []

  def operand(text: str) -> Program:
    return programs[int(text[1:])] if text.startswith("#") else Entity(text)

  for call in calls:
    match call.name, call.arguments:
      case "get_neighbors", (start, relation):
        programs.append(Join(relation, operand(start)))
      case "intersection", (left, right):
        programs.append(And(operand(left), operand(right)))
      case "argmax" | "argmin", (start, attribute):
        is_max = call.name == "argmax"
        programs.append(Extreme(operand(start), attribute, is_max))
      case "count", (start,):
        programs.append(Count(operand(start)))
      case "get_relations" | "get_attributes", (_,):
        pass
      case _:
        raise ValueError(f"{call} is none of the seven calls")
  return programs


def load_problems(path: str | pathlib.Path) -> tuple[KGProblem, ...]:
  """Reads the problems of AgentBench's JSON file, in its order."""
  path = pathlib.Path(path)
  require_file(
    path,
    "KnowledgeGraph's source",
    "AgentBench's dev.json, std.json or kg_rl_all.json, or none to generate "
    "tasks",
  )
  try:
    entries = json.loads(path.read_text(encoding="utf-8"))
    return tuple(_problem(entry) for entry in entries)
  except (AttributeError, LookupError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{str(path)!r} does not hold KnowledgeGraph problems ({error!r}); each "
      "entry needs question, entities and answer, a list of {answer_argument}"
    ) from error


def _problem(entry: Mapping[str, Any]) -> KGProblem:
  return KGProblem(
    question=str(entry["question"]),
    entities={str(k): str(v) for k, v in entry["entities"].items()},
    answers=frozenset(str(a["answer_argument"]) for a in entry["answer"]),
    gold_calls=tuple(map(_gold_call, entry.get("actions") or ())),
    kind=str(entry.get("source") or "other"),
  )


def _gold_call(text: str) -> GoldCall:
  match = CALL.fullmatch(text)
  if match is None:
    raise ValueError(f"the action {text!r} is not a call")
  arguments = (argument.strip() for argument in match[2].split(","))
  return GoldCall(match[1], tuple(arguments))


@functools.lru_cache(4)
def load_ontology(folder: str | pathlib.Path) -> Ontology:
  """Reads AgentBench's `ontology` folder, which describes Freebase."""
  folder = pathlib.Path(folder)
  missing = [
    name for name in (ROLES, VOCABULARY) if not (folder / name).is_file()
  ]
  if missing:
    raise ConfigError(
      f"KnowledgeGraph's ontology is {str(folder)!r}, where "
      f"{', '.join(missing)} cannot be found; give AgentBench's folder "
      "src/server/tasks/knowledgegraph/ontology"
    )
  try:
    vocabulary = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
    text = (folder / ROLES).read_text(encoding="utf-8")
    roles = [line.split(" ") for line in text.split("\n") if line.strip()]
    return Ontology(
      ranges={role[1]: role[2] for role in roles},
      relations=frozenset(vocabulary["relations"]),
      attributes=frozenset(vocabulary["attributes"]),
    )
  except (LookupError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{str(folder)!r} does not hold AgentBench's ontology ({error!r})"
    ) from error
