"""A graph for a question whose own is not at hand: made up to fit its answer.

The smallest set of facts on which the gold calls give the gold answer, then
distractors: other relations of what occurs, members of one operand only, lower
values beside the highest, reverse relations. Each is kept only if the answer
stays. Ids other than the question's and the answer's are invented. Such a graph
says nothing about the world; it makes the question playable, no more.
"""

import random
from collections.abc import Callable, Iterable, Sequence

from environments.knowledgegraph.calls import ENTITY
from environments.knowledgegraph.engines.graph import (
  Fact,
  Graph,
  Literal,
  Term,
  answer_text,
)
from environments.knowledgegraph.engines.memory import Evaluation
from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
  Program,
  parts,
)
from environments.knowledgegraph.ontology import Ontology
from environments.knowledgegraph.problem import GoldCall, Problem

MAX_COUNTED = 20_000  # entities that are made up to be counted
RELATIONS_PER_THING = 4  # distracting ones, where the type has as many
MAX_DISTRACTED = 24  # things that get distracting relations
NUM_OUTSIDE = 2  # members of one operand only
ID_DIGITS = "0123456789bcdfghjklmnpqrstvwxyz_"  # as in Freebase


def gold_programs(calls: Iterable[GoldCall]) -> list[Program]:
  """What each variable of the gold calls stands for; types are not checked.

  Raises `ValueError` where a call cannot be followed.
  """
  made: list[Program] = []

  def operand(text: str) -> Program:
    return made[int(text[1:])] if text.startswith("#") else Entity(text)

  for call in calls:
    match call.name, call.arguments:
      case "get_neighbors", (start, relation):
        made.append(Join(relation, operand(start)))
      case "intersection", (left, right):
        made.append(And(operand(left), operand(right)))
      case "argmax" | "argmin", (start, attribute):
        is_max = call.name == "argmax"
        made.append(Extreme(operand(start), attribute, is_max))
      case "count", (start,):
        made.append(Count(operand(start)))
      case "get_relations" | "get_attributes", (_,):
        pass
      case _:
        raise ValueError(f"{call} is none of the seven calls")
  return made


def synthesise(problem: Problem, ontology: Ontology) -> Graph:
  """The graph of one problem: a function of its text alone.

  Without gold calls that can be followed it is empty: nobody can tell then
  which facts lead to the answer.
  """
  try:
    program = gold_programs(problem.gold_calls)[-1]
  except (LookupError, ValueError):
    return Graph()
  return _Synthesis(problem, program, ontology).graph


class _Synthesis:
  """The making of one graph."""

  def __init__(self, problem: Problem, program: Program, ontology: Ontology):
    self.graph = Graph()
    self._rng = random.Random(f"{problem.question}/{program}")
    self._ontology = ontology
    self._taken = {*problem.entities.values(), *problem.answers}
    self._answers = problem.answers
    self._program = program
    self._support(program, [_term(x) for x in sorted(problem.answers)])
    if self._gives_answers():
      self._distract()

  def _support(self, program: Program, wanted: Sequence[Term]) -> list[Fact]:
    """Adds what makes `wanted` members; returns what was not there before."""
    match program:
      case Entity():
        return []
      case Join(relation, Entity(id)):
        return self._add((id, relation, x) for x in wanted)
      case Join(relation, base):
        middle = self._invent()
        added = self._add((middle, relation, x) for x in wanted)
        return added + self._support(base, [middle])
      case And(left, right):
        return self._support(left, wanted) + self._support(right, wanted)
      case Extreme(base, attribute, _):
        best = self._value(attribute, rank=0)
        return self._support(base, wanted) + self._add(
          (x, attribute, best) for x in wanted if isinstance(x, str)
        )
      case Count(base):
        return self._support_count(base, int(answer_text(wanted[0])))

  def _support_count(self, base: Program, number: int) -> list[Fact]:
    if number > 0:
      counted = [self._invent() for _ in range(min(number, MAX_COUNTED))]
      return self._support(base, counted)
    if isinstance(base, And):  # each operand has members, but none in common
      return self._support(base.left, [self._invent()]) + self._support(
        base.right, [self._invent()]
      )
    return []

  def _distract(self) -> None:
    for part in list(parts(self._program)):
      match part:
        case And(left, right):
          self._outside(left)
          self._outside(right)
        case Extreme(base, attribute, is_max):
          self._beaten(base, attribute, is_max)
    self._other_relations()
    self._reverse_relations()

  def _outside(self, operand: Program) -> None:
    """Members of one operand of an intersection, not of the other."""
    for _ in range(self._rng.randint(1, NUM_OUTSIDE)):
      self._try(lambda: self._support(operand, [self._invent()]))

  def _beaten(self, base: Program, attribute: str, is_max: bool) -> None:
    """Members with values that are not the best."""
    for rank in range(1, self._rng.randint(2, 4)):
      value = self._value(attribute, rank=-rank if is_max else rank)

      def add(value: Literal = value) -> list[Fact]:
        beaten = self._invent()
        supported = self._support(base, [beaten])
        return supported + self._add([(beaten, attribute, value)])

      self._try(add)

  def _other_relations(self) -> None:
    """Relations and attributes that fit the type of what occurs."""
    by_domain = self._ontology.by_domain
    for thing, type_ in self._types()[:MAX_DISTRACTED]:
      fitting = by_domain.get(type_, ())
      chosen = self._rng.sample(fitting, min(len(fitting), RELATIONS_PER_THING))
      for relation in chosen:
        value = self._object_of(relation)
        self._try_fact((thing, relation, value))

  def _reverse_relations(self) -> None:
    reverses = self._ontology.reverses
    for subject, relation, thing in list(self.graph):
      if relation in reverses and isinstance(thing, str):
        self._try_fact((thing, reverses[relation], subject))

  def _types(self) -> list[tuple[str, str]]:
    """Things and the types that facts give them, each pair once."""
    found: dict[tuple[str, str], None] = {}
    domains, ranges = self._ontology.domains, self._ontology.ranges
    for subject, relation, thing in self.graph:
      if relation in domains:
        found[subject, domains[relation]] = None
      if relation in ranges and isinstance(thing, str):
        found[thing, ranges[relation]] = None
    return list(found)

  def _try_fact(self, fact: Fact) -> None:
    self._try(lambda: self._add([fact]))

  def _try(self, change: Callable[[], list[Fact]]) -> None:
    """Makes a change, and unmakes it if the answer is another then."""
    added = change()
    if added and not self._gives_answers():
      for fact in added:
        self.graph.remove(fact)

  def _gives_answers(self) -> bool:
    found = Evaluation(self.graph).answers(self._program)
    return found == self._answers

  def _add(self, facts: Iterable[Fact]) -> list[Fact]:
    return [fact for fact in facts if self.graph.add(fact)]

  def _object_of(self, relation: str) -> str | Literal:
    if relation in self._ontology.attributes:
      return self._value(relation, rank=self._rng.randint(-3, 3))
    return self._invent()

  def _value(self, attribute: str, *, rank: int) -> Literal:
    """A value; a higher rank is a greater one."""
    match self._ontology.ranges.get(attribute):
      case "type.datetime":
        return Literal(f"{1950 + rank}-06-15", "date")
      case "type.float":
        return Literal(f"{50 + rank}.5", "double")
    return Literal(str(50 + rank), "integer")

  def _invent(self) -> str:
    """An id that nothing has."""
    while True:
      id_ = "m.0" + "".join(self._rng.choices(ID_DIGITS, k=6))
      if id_ not in self._taken:
        self._taken.add(id_)
        return id_


def _term(answer: str) -> Term:
  """An answer as it stands in a graph: a thing, or a value."""
  return answer if ENTITY.fullmatch(answer) else Literal(answer)
