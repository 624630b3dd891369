"""The default engine: evaluates programs on a graph in memory.

The meaning is that of AgentBench's SPARQL, where a program is one conjunctive
query:

- A superlative takes the best value with which the whole query has an answer,
  and not merely the best value of its own operand.
- An entity that the query starts from is no answer. Beside a superlative this
  exclusion holds only in the search for the best value.
- Queries that AgentBench cannot write (several superlatives) evaluate each
  superlative on its own operand.
"""

from collections.abc import Collection

from environments.knowledgegraph.engines.graph import (
  Graph,
  Literal,
  Term,
  answer_text,
  sort_key,
)
from environments.knowledgegraph.engines.program import (
  And,
  Entity,
  Extreme,
  Join,
  Program,
  entities,
  superlatives,
  without_counts,
)
from environments.knowledgegraph.engines.store import Store, StoreEngine

Members = frozenset[Term]


class MemoryEngine(StoreEngine):
  """Graphs in this process; never waits."""

  async def store(self, graph: Graph) -> Store:
    return MemoryStore(graph)


class MemoryStore(Store):
  """A graph, and the results of one session's programs."""

  def __init__(self, graph: Graph):
    self._evaluation = ProgramEvaluation(graph)

  async def predicates(self, program: Program) -> frozenset[str]:
    return self._evaluation.predicates(program)

  async def answers(self, program: Program) -> frozenset[str]:
    return self._evaluation.answers(program)


class ProgramEvaluation:
  """Evaluates programs on one graph, and caches the members of each."""

  def __init__(self, graph: Graph):
    self._graph = graph
    self._cache: dict[Program, Members] = {}

  def predicates(self, program: Program) -> frozenset[str]:
    """Returns the relations and attributes of a program that is no count."""
    about = self._graph.about
    if isinstance(program, Entity):
      return frozenset(about(program.id))
    return frozenset(name for x in self._results(program) for name in about(x))

  def answers(self, program: Program) -> frozenset[str]:
    """Returns the texts of the answers; of a count, the number alone."""
    body, is_count = without_counts(program)
    results = self._results(body)
    if is_count:
      return frozenset({str(len(results))})
    return frozenset(map(answer_text, results))

  def _results(self, body: Program) -> Members:
    extremes = superlatives(body)
    if len(extremes) == 1:
      return self._best_results(body, extremes[0])
    members = self._members(body)
    return members if extremes else _admissible(members, body)

  def _best_results(self, body: Program, extreme: Extreme) -> Members:
    """Returns the results of the best value that has any."""
    operand = self._members(extreme.base)
    objects = self._graph.objects
    values = {v for x in operand for v in objects(x, extreme.attribute)}
    for value in sorted(values, key=sort_key, reverse=extreme.is_max):
      holders = frozenset(
        x for x in operand if value in objects(x, extreme.attribute)
      )
      results = self._members_given(body, extreme, holders)
      if _admissible(results, body):
        return results
    return frozenset()

  def _members_given(
    self, program: Program, extreme: Extreme, holders: Members
  ) -> Members:
    """Returns the members, with `holders` as those of the superlative."""
    if program is extreme:
      return holders
    match program:
      case Join(relation, base):
        return self._follow(
          relation, self._members_given(base, extreme, holders)
        )
      case And(left, right):
        return self._members_given(
          left, extreme, holders
        ) & self._members_given(right, extreme, holders)
    return self._members(program)

  def _members(self, program: Program) -> Members:
    """Returns the members, with each superlative on its own operand."""
    members = self._cache.get(program)
    if members is None:
      members = self._cache[program] = self._evaluate(program)
    return members

  def _evaluate(self, program: Program) -> Members:
    if isinstance(program, Join):
      return self._follow(program.relation, self._members(program.base))
    if isinstance(program, Entity):
      return frozenset({program.id})
    if isinstance(program, And):
      return self._members(program.left) & self._members(program.right)
    if isinstance(program, Extreme):
      return self._extreme_members(program, self._members(program.base))
    raise ValueError(f"{program}: a count has no members")

  def _follow(self, relation: str, members: Members) -> Members:
    objects = self._graph.objects
    return frozenset(y for x in members for y in objects(x, relation))

  def _extreme_members(self, extreme: Extreme, operand: Members) -> Members:
    objects = self._graph.objects
    values = [
      value
      for x in _admissible(operand, extreme)
      for value in objects(x, extreme.attribute)
    ]
    if not values:
      return frozenset()
    best = (max if extreme.is_max else min)(values, key=sort_key)
    return frozenset(
      x for x in operand if best in objects(x, extreme.attribute)
    )


def _admissible(members: Collection[Term], program: Program) -> Members:
  """Drops entities of the program, and literals in a foreign language."""
  excluded = entities(program)
  return frozenset(
    x
    for x in members
    if (
      x.language.lower().partition("-")[0] in ("", "en")
      if isinstance(x, Literal)
      else x not in excluded
    )
  )
