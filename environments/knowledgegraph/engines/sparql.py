"""Writes programs as SPARQL 1.1, as `memory` evaluates them.

Names are written as full IRIs, because not every parser accepts Freebase's dots
after a prefix. Queries contain no text of a policy except ids and names that
were validated before.
"""

import urllib.parse

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

NAMESPACE = "http://rdf.freebase.com/ns/"
RESULT = "?x"
BEST = "?best"


def answers_query(program: Program) -> str:
  """Selects the answers as ?x, or their number as ?count."""
  body, is_count = without_counts(program)
  selected = f"(COUNT(DISTINCT {RESULT}) AS ?count)" if is_count else RESULT
  distinct = "" if is_count else "DISTINCT "
  return f"SELECT {distinct}{selected} WHERE {{ {_body(body)}}}"


def predicates_query(program: Program) -> str:
  """Selects the relations and attributes of the answers as ?name."""
  if isinstance(program, Entity):
    return f"SELECT DISTINCT ?name WHERE {{ {iri(program.id)} ?name ?object }}"
  return (
    f"SELECT DISTINCT ?name WHERE {{ {{ {answers_query(program)} }} "
    f"{RESULT} ?name ?object }}"
  )


def iri(name: str) -> str:
  """Writes the full IRI of a Freebase name, with escapes where needed."""
  return f"<{NAMESPACE}{urllib.parse.quote(name, safe=':/')}>"


def strip_namespace(value: str) -> str:
  """Writes a result as AgentBench does: without namespace and time zone."""
  return value.replace(NAMESPACE, "").replace("-08:00", "")


class _PatternWriter:
  """Writes triple patterns, with a fresh variable for each unnamed term.

  A program of more than one hop becomes a subquery with distinct results.
  Otherwise every path to an entity would be a row, and the number of rows would
  grow exponentially with the hops.
  """

  def __init__(self, *, one_query: bool) -> None:
    self._num_variables = 0
    self._one_query = one_query  # the superlative's value is a shared variable

  def patterns(self, program: Program, variable: str) -> str:
    """Writes the patterns that make `variable` a member of the program."""
    match program:
      case Entity(id):
        return f"VALUES {variable} {{ {iri(id)} }} "
      case Join(relation, Entity(id)):
        return f"{iri(id)} {iri(relation)} {variable} . "
      case Join(relation, base):
        inner = self._fresh("y")
        return f"{self._set(base, inner)}{inner} {iri(relation)} {variable} . "
      case And(left, right):
        return self._set(left, variable) + self._set(right, variable)
      case Extreme():
        return self._extreme(program, variable)
      case Count():
        raise ValueError(f"{program}: a count has no pattern")

  def _set(self, program: Program, variable: str) -> str:
    """Writes the patterns such that each member is one row."""
    if isinstance(program, Join) and isinstance(program.base, Entity):
      return self.patterns(program, variable)
    shared = self._one_query and bool(superlatives(program))
    names = f"{variable} {BEST}" if shared else variable
    patterns = self.patterns(program, variable)
    return f"{{ SELECT DISTINCT {names} WHERE {{ {patterns}}} }} "

  def _extreme(self, extreme: Extreme, variable: str) -> str:
    operand = self._set(extreme.base, variable)
    if self._one_query:
      return f"{operand}{variable} {iri(extreme.attribute)} {BEST} . "
    best, other = self._fresh("best"), self._fresh("y")
    candidates = self._set(extreme.base, other)
    return (
      f"{operand}{variable} {iri(extreme.attribute)} {best} . {{ SELECT {best} "
      f"WHERE {{ {candidates}{other} {iri(extreme.attribute)} {best} . "
      f"{_admissible(other, extreme)}}} {_first(best, extreme)} }} "
    )

  def _fresh(self, name: str) -> str:
    self._num_variables += 1
    return f"?{name}{self._num_variables}"


def _body(body: Program) -> str:
  extremes = superlatives(body)
  writer = _PatternWriter(one_query=len(extremes) == 1)
  patterns = writer.patterns(body, RESULT)
  if not extremes:
    return patterns + _admissible(RESULT, body)
  if len(extremes) > 1:
    return patterns
  return (
    f"{patterns}{{ SELECT {BEST} WHERE {{ {patterns}"
    f"{_admissible(RESULT, body)}}} {_first(BEST, extremes[0])} }} "
  )


def _first(variable: str, extreme: Extreme) -> str:
  key = f"DESC({variable})" if extreme.is_max else variable
  return f"ORDER BY {key} LIMIT 1"


def _admissible(variable: str, program: Program) -> str:
  """Excludes entities of the program, and literals in a foreign language."""
  conditions = [
    f"!isLiteral({variable}) || lang({variable}) = '' || "
    f"langMatches(lang({variable}), 'en')",
    *(f"{variable} != {iri(id)}" for id in sorted(entities(program))),
  ]
  return "".join(f"FILTER ({condition}) " for condition in conditions)
