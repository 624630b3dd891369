"""The seven calls: what each asks of its arguments, and what it replies.

Replies and the order of checks are AgentBench's, to the letter, down to the
words in which Python 3.10 refuses a wrong type, for those are what its policies
read. A mistake is raised as `CallMistake` and told to the policy by `session`.
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
from environments.knowledgegraph.ontology import Ontology

NUMBER = "type.int"  # the type of a count
# What AgentBench takes for an entity; it forgets the ids of the form g.121r.
UPSTREAM_ENTITY = re.compile(r"([mf]\.\w+)\n?")
ENTITY = re.compile(r"([mfg]\.\w+)\n?")
MAX_STEPS = 200  # that a variable is made of; no store runs longer queries
BAD_QUERY = (
  "QueryBadFormed: A bad request has been sent to the endpoint: probably the "
  "SPARQL query is badly formed."
)


class CallMistake(Exception):
  """A call that cannot be played; its text is for the policy."""


@dataclasses.dataclass(frozen=True)
class Variable:
  """A result that has a number: what it is, and how it is found."""

  type: str
  program: Program
  num_steps: int


@dataclasses.dataclass(frozen=True)
class Reply:
  """What a call brings: an observation, and perhaps a variable.

  "##" in the text stands for the variable's number.
  """

  text: str
  variable: Variable | None = None


class KnowledgeBase:
  """The calls of one session, on one store."""

  def __init__(
    self, store: Store, ontology: Ontology, *, upstream_quirks: bool = False
  ):
    self._store = store
    self._ontology = ontology
    self._upstream_quirks = upstream_quirks
    self._entity = UPSTREAM_ENTITY if upstream_quirks else ENTITY
    self._predicates: dict[Program, frozenset[str]] = {}

  async def call(self, name: str, arguments: Sequence[object]) -> Reply:
    """Plays one of the seven calls; waits for the store.

    Raises `CallMistake` where the call makes no sense, and what the store
    raises.
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
        program = _variable(first, "program").program
        return _listing(await self._attributes(program))
      case "argmax" | "argmin":
        return await self._extreme(name, first, rest[0])
      case "count":
        return _count(_variable(first, "program"))
    raise ValueError(f"{name!r} is none of the seven calls")

  async def answers(self, variable: Variable) -> frozenset[str]:
    """The texts of a variable's answers; waits for the store."""
    self._require_writable(variable.program)
    return await self._store.answers(variable.program)

  async def _get_neighbors(self, subject: object, relation: object) -> Reply:
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

  def _intersection(self, left: object, right: object) -> Reply:
    one, other = _variable(left, "type"), _variable(right, "type")
    if one.type != other.type:
      raise CallMistake("intersection: two variables must have the same type")
    program = And(one.program, other.program)
    return _result(one.type, program, one.num_steps + other.num_steps + 1)

  async def _extreme(
    self, name: str, subject: object, attribute: object
  ) -> Reply:
    variable = _variable(subject, "program")
    attributes = await self._attributes(variable.program)
    if not isinstance(attribute, str) or attribute not in attributes:
      raise CallMistake(
        f"{name}: attribute must be an attribute of the variable"
      )
    program = Extreme(variable.program, attribute, name == "argmax")
    return _result(variable.type, program, variable.num_steps + 1)

  def _subject(self, subject: object, name: str) -> tuple[Program, int]:
    """What to start from, and how many steps it took."""
    if isinstance(subject, Variable):
      return subject.program, subject.num_steps
    if not isinstance(subject, str):
      raise CallMistake("expected string or bytes-like object")
    found = self._entity.fullmatch(subject)
    if found is None:
      raise CallMistake(f"{name}: variable must be a variable or an entity")
    return Entity(found[1]), 0

  async def _relations(self, program: Program) -> frozenset[str]:
    return await self._names(program) & self._ontology.relations

  async def _attributes(self, program: Program) -> frozenset[str]:
    return await self._names(program) & self._ontology.attributes

  async def _names(self, program: Program) -> frozenset[str]:
    known = self._predicates.get(program)
    if known is None:
      self._require_writable(program)
      _, is_count = without_counts(program)
      known = frozenset[str]()  # of a number
      if not is_count:
        known = await self._store.predicates(program)
      self._predicates[program] = known
    return known

  def _require_writable(self, program: Program) -> None:
    """Refuses what AgentBench turns into broken SPARQL, if that is asked for.

    It can write one superlative, and none that is counted.
    """
    if not self._upstream_quirks:
      return
    body, is_count = without_counts(program)
    if len(superlatives(body)) > (0 if is_count else 1):
      raise QueryRefused(BAD_QUERY)


def _count(variable: Variable) -> Reply:
  program = Count(variable.program)
  reply = _result(NUMBER, program, variable.num_steps + 1)
  text = "Observation: variable ##, which is a number"
  return dataclasses.replace(reply, text=text)


def _result(type_: str, program: Program, num_steps: int) -> Reply:
  if num_steps > MAX_STEPS:
    raise CallMistake(f"a variable cannot take more than {MAX_STEPS} steps")
  return Reply(
    f"Observation: variable ##, which are instances of {type_}",
    Variable(type_, program, num_steps),
  )


def _listing(names: Iterable[str]) -> Reply:
  return Reply(f"Observation: [{', '.join(sorted(names))}]")


def _variable(value: object, wanted: str) -> Variable:
  """The variable, or what Python says of a value that lacks what is wanted."""
  if isinstance(value, Variable):
    return value
  raise CallMistake(
    f"'{type(value).__name__}' object has no attribute '{wanted}'"
  )
