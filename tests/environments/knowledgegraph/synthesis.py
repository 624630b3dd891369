"""Synthesises a graph for a question whose real facts are not available.

The graph is the smallest set of facts on which the gold calls give the gold
answer. Ids other than those of the question and the answer are invented.
"""

import random
from collections.abc import Sequence

from environments.knowledgegraph import KnowledgeGraph
from environments.knowledgegraph.calls import ENTITY
from environments.knowledgegraph.engines import graph
from environments.knowledgegraph.engines.memory import MemoryEngine
from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
  Program,
)
from environments.knowledgegraph.problem import (
  Instance,
  KGProblem,
  Ontology,
  gold_programs,
)


class SynthesisedGraphs(KnowledgeGraph):
  """AgentBench's questions, each with a synthesised graph in memory."""

  def __init__(self, *, source: str, **options):
    super().__init__(source=source, server="http://localhost", **options)
    self.needs_one_loop, self._engine = False, MemoryEngine()

  def load(self, loaded):
    graph = synthesise(loaded, self._ontology)
    return Instance(loaded, graph, self._ontology)


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
    self._support(program, [_term(x) for x in sorted(problem.answers)])

  def _support(self, program: Program, members: Sequence[graph.Term]) -> None:
    """Makes the terms members of the program."""
    match program:
      case Join(relation, base):
        is_start = isinstance(base, Entity)
        subject = base.id if is_start else self._invent()
        for member in members:
          self.graph.add((subject, relation, member))
        if not is_start:
          self._support(base, [subject])
      case And(left, right):
        self._support(left, members)
        self._support(right, members)
      case Extreme(base, attribute, _):
        self._support(base, members)
        for member in members:
          self.graph.add((member, attribute, self._value(attribute)))
      case Count(base):
        self._support_count(base, int(graph.answer_text(members[0])))

  def _support_count(self, base: Program, number: int) -> None:
    sides = [base] if number else []
    if not number and isinstance(base, And):  # members, but none in common
      sides, number = [base.left, base.right], 1
    for side in sides:
      self._support(side, [self._invent() for _ in range(number)])

  def _value(self, attribute: str) -> graph.Literal:
    match self._ontology.ranges.get(attribute):
      case "type.datetime":
        return graph.Literal("1950-06-15", "date")
      case "type.float":
        return graph.Literal("50.5", "double")
    return graph.Literal("50", "integer")

  def _invent(self) -> str:
    return f"m.0{self._rng.randrange(1 << 40):x}"


def _term(answer: str) -> graph.Term:
  """Reads an answer as an entity or a literal."""
  return answer if ENTITY.fullmatch(answer) else graph.Literal(answer)
