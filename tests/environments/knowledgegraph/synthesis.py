"""Synthesises a graph for a question whose real facts are not available.

The graph is the smallest set of facts on which the gold calls give the gold
answer, and then distractors: other relations of its entities, members of one
operand only, values that are not the best, and reverse relations. A distractor
is kept only if the answer stays the same. Ids other than those of the question
and the answer are invented. Such facts are not true; they only make the
question playable.
"""

import functools
import pathlib
import random
from collections.abc import Callable, Iterable, Sequence

from environments.knowledgegraph import KnowledgeGraph
from environments.knowledgegraph.calls import ENTITY
from environments.knowledgegraph.engines import graph
from environments.knowledgegraph.engines.memory import (
  MemoryEngine,
  ProgramEvaluation,
)
from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
  Program,
  parts,
)
from environments.knowledgegraph.problem import (
  Instance,
  KGProblem,
  Ontology,
  gold_programs,
  load_ontology,
)
from tests.environments.knowledgegraph.data import ontology

MAX_COUNTED = 20_000  # entities that are invented to be counted
RELATIONS_PER_ENTITY = 4  # distracting ones, if the type has as many
MAX_DISTRACTED = 24  # entities that get distracting relations
NUM_OUTSIDE = 2  # members of one operand only
ID_DIGITS = "0123456789bcdfghjklmnpqrstvwxyz_"  # as in Freebase


class SynthesisedGraphs(KnowledgeGraph):
  """AgentBench's questions, each with a synthesised graph in memory."""

  def __init__(self, *, source: str, **options):
    super().__init__(source=source, server="http://localhost", **options)
    self.needs_one_loop, self._engine = False, MemoryEngine()

  def load(self, loaded):
    graph = synthesise(loaded, self._ontology)
    return Instance(loaded, graph, self._ontology)


@functools.cache
def _types_and_reverses():
  """Returns the domain of each relation, its reverse, and relations by type."""
  folder = pathlib.Path(ontology())

  def lines(name, separator):
    text = (folder / name).read_text(encoding="utf-8")
    return [line.split(separator) for line in text.split("\n") if line.strip()]

  domains = {role[1]: role[0] for role in lines("fb_roles", " ")}
  pairs = lines("reverse_properties", "\t")
  known = load_ontology(str(folder))
  by_domain = {}
  for relation in sorted(known.relations | known.attributes):
    if relation in domains:
      by_domain.setdefault(domains[relation], []).append(relation)
  return domains, {pair[0]: pair[1] for pair in pairs}, by_domain


def synthesise(problem: KGProblem, ontology: Ontology) -> graph.Graph:
  """Synthesises the graph of one problem, deterministically.

  The graph is empty if the gold calls cannot be run, because it is unknown then
  which facts lead to the answer.
  """
  try:
    program = gold_programs(problem.gold_calls)[-1]
  except (LookupError, ValueError):
    return graph.Graph()
  return _Synthesis(problem, program, ontology).graph


class _Synthesis:
  """Builds one graph."""

  def __init__(self, problem: KGProblem, program: Program, ontology: Ontology):
    self.graph = graph.Graph()
    self._rng = random.Random(f"{problem.question}/{program}")
    self._ontology = ontology
    self._taken = {*problem.entities.values(), *problem.answers}
    self._answers = problem.answers
    self._program = program
    self._support(program, [_term(x) for x in sorted(problem.answers)])
    if self._gives_answers():
      self._distract()

  def _support(
    self, program: Program, members: Sequence[graph.Term]
  ) -> list[graph.Fact]:
    """Makes the terms members of the program; returns the facts it added."""
    match program:
      case Entity():
        return []
      case Join(relation, Entity(id)):
        return self._add((id, relation, x) for x in members)
      case Join(relation, base):
        middle = self._invent()
        added = self._add((middle, relation, x) for x in members)
        return added + self._support(base, [middle])
      case And(left, right):
        return self._support(left, members) + self._support(right, members)
      case Extreme(base, attribute, _):
        best = self._value(attribute, rank=0)
        return self._support(base, members) + self._add(
          (x, attribute, best) for x in members if isinstance(x, str)
        )
      case Count(base):
        return self._support_count(base, int(graph.answer_text(members[0])))

  def _support_count(self, base: Program, number: int) -> list[graph.Fact]:
    if number > 0:
      counted = [self._invent() for _ in range(min(number, MAX_COUNTED))]
      return self._support(base, counted)
    if isinstance(base, And):  # each operand gets members, but none in common
      return self._support(base.left, [self._invent()]) + self._support(
        base.right, [self._invent()]
      )
    return []

  def _distract(self) -> None:
    for part in list(parts(self._program)):
      match part:
        case And(left, right):
          self._add_outsiders(left)
          self._add_outsiders(right)
        case Extreme(base, attribute, is_max):
          self._add_beaten(base, attribute, is_max)
    self._add_other_relations()
    self._add_reverse_relations()

  def _add_outsiders(self, operand: Program) -> None:
    """Adds members of one operand of an intersection, not of the other."""
    for _ in range(self._rng.randint(1, NUM_OUTSIDE)):
      self._try(lambda: self._support(operand, [self._invent()]))

  def _add_beaten(self, base: Program, attribute: str, is_max: bool) -> None:
    for rank in range(1, self._rng.randint(2, 4)):
      value = self._value(attribute, rank=-rank if is_max else rank)

      def add(value: graph.Literal = value) -> list[graph.Fact]:
        beaten = self._invent()
        supported = self._support(base, [beaten])
        return supported + self._add([(beaten, attribute, value)])

      self._try(add)

  def _add_other_relations(self) -> None:
    _, _, by_domain = _types_and_reverses()
    for entity, type_ in self._types()[:MAX_DISTRACTED]:
      allowed = by_domain.get(type_, ())
      num_chosen = min(len(allowed), RELATIONS_PER_ENTITY)
      for relation in self._rng.sample(allowed, num_chosen):
        self._try_fact((entity, relation, self._object_of(relation)))

  def _add_reverse_relations(self) -> None:
    _, reverses, _ = _types_and_reverses()
    for subject, relation, object_ in list(self.graph):
      if relation in reverses and isinstance(object_, str):
        self._try_fact((object_, reverses[relation], subject))

  def _types(self) -> list[tuple[str, str]]:
    """Returns entities with the types that facts imply, without repeats."""
    pairs: dict[tuple[str, str], None] = {}
    domains, _, _ = _types_and_reverses()
    ranges = self._ontology.ranges
    for subject, relation, object_ in self.graph:
      if relation in domains:
        pairs[subject, domains[relation]] = None
      if relation in ranges and isinstance(object_, str):
        pairs[object_, ranges[relation]] = None
    return list(pairs)

  def _try_fact(self, fact: graph.Fact) -> None:
    self._try(lambda: self._add([fact]))

  def _try(self, change: Callable[[], list[graph.Fact]]) -> None:
    """Adds facts, and removes them again if they change the answer."""
    added = change()
    if added and not self._gives_answers():
      for fact in added:
        self.graph.remove(fact)

  def _gives_answers(self) -> bool:
    return ProgramEvaluation(self.graph).answers(self._program) == self._answers

  def _add(self, facts: Iterable[graph.Fact]) -> list[graph.Fact]:
    return [fact for fact in facts if self.graph.add(fact)]

  def _object_of(self, relation: str) -> str | graph.Literal:
    if relation in self._ontology.attributes:
      return self._value(relation, rank=self._rng.randint(-3, 3))
    return self._invent()

  def _value(self, attribute: str, *, rank: int) -> graph.Literal:
    """Makes a value, which is greater for a higher rank."""
    match self._ontology.ranges.get(attribute):
      case "type.datetime":
        return graph.Literal(f"{1950 + rank}-06-15", "date")
      case "type.float":
        return graph.Literal(f"{50 + rank}.5", "double")
    return graph.Literal(str(50 + rank), "integer")

  def _invent(self) -> str:
    while True:
      id_ = "m.0" + "".join(self._rng.choices(ID_DIGITS, k=6))
      if id_ not in self._taken:
        self._taken.add(id_)
        return id_


def _term(answer: str) -> graph.Term:
  """Reads an answer as an entity or a literal."""
  return answer if ENTITY.fullmatch(answer) else graph.Literal(answer)
