"""The seven tools: their checks of arguments, and their replies.

Replies and the order of checks are AgentBench's to the letter, including the
messages of Python 3.10's type errors, because its policies read them. An error
of the policy is raised as `CallMistake`; `session` sends it to the policy.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence

from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
  Program,
  superlatives,
  without_counts,
)
from environments.knowledgegraph.engines.store import QueryRefused, Store
from environments.knowledgegraph.problem import Ontology

NUMBER = "type.int"  # the type of a count
# AgentBench's pattern of entities, which misses ids of the form g.121r.
UPSTREAM_ENTITY = re.compile(r"([mf]\.\w+)\n?")
ENTITY = re.compile(r"([mfg]\.\w+)\n?")
MAX_STEPS = 200  # of one variable's program; no store runs longer queries
BAD_QUERY = (
  "QueryBadFormed: A bad request has been sent to the endpoint: probably the "
  "SPARQL query is badly formed."
)


class CallMistake(Exception):
  """A call that cannot be run; the policy reads the message."""


@dataclasses.dataclass(frozen=True)
class Variable:
  """A numbered result: its type, and the program that computes it."""

  type: str
  program: Program
  num_steps: int


@dataclasses.dataclass(frozen=True)
class CallReply:
  """The observation after a call, and the variable that it made, if any.

  "##" in the text is a placeholder for the variable's number.
  """

  text: str
  variable: Variable | None = None


class KnowledgeBase:
  """Runs the calls of one session on one store."""

  def __init__(
    self, store: Store, ontology: Ontology, *, upstream_quirks: bool = False
  ):
    self._store = store
    self._ontology = ontology
    self._upstream_quirks = upstream_quirks
    self._entity = UPSTREAM_ENTITY if upstream_quirks else ENTITY
    self._predicates: dict[Program, frozenset[str]] = {}

  async def call(self, name: str, arguments: Sequence[object]) -> CallReply:
    """Runs one of the seven calls; waits for the store.

    Raises:
      CallMistake: the arguments are wrong.
      QueryRefused, EnvironmentFault: by the store.
    """
    first, *rest = arguments
    match name:
      case "get_relations":
        program, _ = self._subject(first, name)
        return _listing(await self._relations(program))
      case "get_neighbors":
        return await self._get_neighbors(first, rest[0])
      case "intersection":
        return self._intersection(first, rest[0])
      case "get_attributes":
        program = _require_variable(first, "program").program
        return _listing(await self._attributes(program))
      case "argmax" | "argmin":
        return await self._extreme(name, first, rest[0])
      case "count":
        return _count(_require_variable(first, "program"))
    raise ValueError(f"{name!r} is none of the seven calls")

  async def answers(self, variable: Variable) -> frozenset[str]:
    """Returns the texts of a variable's answers; waits for the store."""
    self._require_writable(variable.program)
    return await self._store.answers(variable.program)

  async def _get_neighbors(
    self, subject: object, relation: object
  ) -> CallReply:
    program, num_steps = self._subject(subject, "get_neighbors")
    relations = await self._relations(program)
    if not isinstance(relation, str) or relation not in relations:
      raise CallMistake(
        "get_neighbors: relation must be a relation of the variable"
      )
    if relation not in self._ontology.ranges:
      raise CallMistake(repr(relation))
    type_ = self._ontology.ranges[relation]
    return _result(type_, Join(relation, program), num_steps + 1)

  def _intersection(self, left: object, right: object) -> CallReply:
    first = _require_variable(left, "type")
    second = _require_variable(right, "type")
    if first.type != second.type:
      raise CallMistake("intersection: two variables must have the same type")
    program = And(first.program, second.program)
    num_steps = first.num_steps + second.num_steps + 1
    return _result(first.type, program, num_steps)

  async def _extreme(
    self, name: str, subject: object, attribute: object
  ) -> CallReply:
    variable = _require_variable(subject, "program")
    attributes = await self._attributes(variable.program)
    if not isinstance(attribute, str) or attribute not in attributes:
      raise CallMistake(
        f"{name}: attribute must be an attribute of the variable"
      )
    program = Extreme(variable.program, attribute, name == "argmax")
    return _result(variable.type, program, variable.num_steps + 1)

  def _subject(self, subject: object, name: str) -> tuple[Program, int]:
    """Returns the program that a call starts from, and its steps."""
    if isinstance(subject, Variable):
      return subject.program, subject.num_steps
    if not isinstance(subject, str):
      raise CallMistake("expected string or bytes-like object")
    match = self._entity.fullmatch(subject)
    if match is None:
      raise CallMistake(f"{name}: variable must be a variable or an entity")
    return Entity(match[1]), 0

  async def _relations(self, program: Program) -> frozenset[str]:
    return await self._names(program) & self._ontology.relations

  async def _attributes(self, program: Program) -> frozenset[str]:
    return await self._names(program) & self._ontology.attributes

  async def _names(self, program: Program) -> frozenset[str]:
    names = self._predicates.get(program)
    if names is None:
      self._require_writable(program)
      _, is_count = without_counts(program)
      names = frozenset[str]()  # a number has no relations
      if not is_count:
        names = await self._store.predicates(program)
      self._predicates[program] = names
    return names

  def _require_writable(self, program: Program) -> None:
    """Refuses programs that AgentBench writes as broken SPARQL, as a quirk.

    AgentBench can write one superlative, and no count of a superlative.
    """
    if not self._upstream_quirks:
      return
    body, is_count = without_counts(program)
    if len(superlatives(body)) > (0 if is_count else 1):
      raise QueryRefused(BAD_QUERY)


def _count(variable: Variable) -> CallReply:
  program = Count(variable.program)
  reply = _result(NUMBER, program, variable.num_steps + 1)
  text = "Observation: variable ##, which is a number"
  return dataclasses.replace(reply, text=text)


def _result(type_: str, program: Program, num_steps: int) -> CallReply:
  if num_steps > MAX_STEPS:
    raise CallMistake(f"a variable cannot take more than {MAX_STEPS} steps")
  return CallReply(
    f"Observation: variable ##, which are instances of {type_}",
    Variable(type_, program, num_steps),
  )


def _listing(names: Iterable[str]) -> CallReply:
  return CallReply(f"Observation: [{', '.join(sorted(names))}]")


def _require_variable(value: object, attribute: str) -> Variable:
  """Returns the variable; any other value gets Python's AttributeError text."""
  if isinstance(value, Variable):
    return value
  raise CallMistake(
    f"'{type(value).__name__}' object has no attribute '{attribute}'"
  )
