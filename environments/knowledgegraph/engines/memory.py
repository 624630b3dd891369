"""Runs programs on a graph in memory, with the meaning of AgentBench's SPARQL.

A program is one conjunctive query. So a superlative is the best with which the
whole query has an answer, not merely the best of its own operand; and what the
query starts from is no answer, except beside a superlative, where the exclusion
stands only in the search for the best value. Queries that AgentBench cannot
write down (several superlatives) take each one over its own operand.
"""

from collections.abc import Collection

from environments.knowledgegraph.engines.graph import (
  Graph,
  Literal,
  Term,
  answer_text,
  order_of,
)
from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
  Program,
  entities,
  superlatives,
  without_counts,
)

Members = frozenset[Term]


class Evaluation:
  """Answers programs on one graph, and remembers those of one session."""

  def __init__(self, graph: Graph):
    self._graph = graph
    self._known: dict[Program, Members] = {}

  def predicates(self, program: Program) -> frozenset[str]:
    """The relations and attributes of what is no count."""
    about = self._graph.about
    if isinstance(program, Entity):
      return frozenset(about(program.id))
    return frozenset(name for x in self._results(program) for name in about(x))

  def answers(self, program: Program) -> frozenset[str]:
    """The texts of the answers; of a count, the one number."""
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
    """The results with the best value with which there are any."""
    operand = self._members(extreme.base)
    objects = self._graph.objects
    values = {v for x in operand for v in objects(x, extreme.attribute)}
    for value in sorted(values, key=order_of, reverse=extreme.is_max):
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
    """The members, were the superlative's those given."""
    if program is extreme:
      return holders
    match program:
      case Join(relation, base):
        return self._led_to(
          relation, self._members_given(base, extreme, holders)
        )
      case And(left, right):
        return self._members_given(
          left, extreme, holders
        ) & self._members_given(right, extreme, holders)
    return self._members(program)

  def _members(self, program: Program) -> Members:
    """What the program stands for, each superlative over its own operand."""
    known = self._known.get(program)
    if known is None:
      known = self._known[program] = self._find_members(program)
    return known

  def _find_members(self, program: Program) -> Members:
    match program:
      case Entity(id):
        return frozenset({id})
      case Join(relation, base):
        return self._led_to(relation, self._members(base))
      case And(left, right):
        return self._members(left) & self._members(right)
      case Extreme(base, _, _):
        return self._extreme_members(program, self._members(base))
      case Count():
        raise ValueError(f"{program}: a count is not made of members")

  def _led_to(self, relation: str, members: Members) -> Members:
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
    best = (max if extreme.is_max else min)(values, key=order_of)
    return frozenset(
      x for x in operand if best in objects(x, extreme.attribute)
    )


def _admissible(members: Collection[Term], program: Program) -> Members:
  """Those that the query does not start from, in English or no language."""
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
