"""Decides a PDDL goal over the state of a household.

A goal is compiled once per game. Facts that never change settle which things
and receptacles can matter; the rest is looked up, each fact as soon as its
variables are bound.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.game import STATES, TRAITS, Formula, Game


class Facts(Protocol):
  """The facts that actions change; arguments are positions in the game."""

  def is_inside(self, thing: int, receptacle: int) -> bool: ...
  def is_held(self, thing: int) -> bool: ...
  def is_at(self, location: int) -> bool: ...
  def is_open(self, receptacle: int) -> bool: ...
  def is_thing_at(self, thing: int, location: int) -> bool: ...
  def is_in_state(self, thing: int, state: str) -> bool: ...


_Bound = dict[str, int]
_Test = Callable[[Facts, _Bound], bool]


def compile_goal(game: Game) -> Callable[[Facts], bool]:
  """A function that says whether the game's goal is reached.

  Raises `ConfigError` for a predicate or a connective of another domain.
  """
  test = _Compiler(game).compile(game.goal)
  return lambda facts: test(facts, {})


class _Compiler:
  def __init__(self, game: Game):
    self._game = game
    self._domains: dict[str, Sequence[int]] = {
      "object": range(len(game.things)),
      "receptacle": range(len(game.receptacles)),
      "location": range(game.num_locations),
      "agent": range(1),
    }

  def compile(self, formula: Formula) -> _Test:
    """The test that a formula stands for."""
    head, parts = _split(formula)
    if head == "and":
      tests = [self.compile(part) for part in parts]
      return lambda facts, bound: all(test(facts, bound) for test in tests)
    if head == "or":
      tests = [self.compile(part) for part in parts]
      return lambda facts, bound: any(test(facts, bound) for test in tests)
    if head == "not":
      inner = self.compile(parts[0])
      return lambda facts, bound: not inner(facts, bound)
    if head == "exists":
      return self._exists(*parts)
    if head == "forall":
      variables, body = parts
      other = self._exists(variables, ("not", body))
      return lambda facts, bound: not other(facts, bound)
    return self._atom(head, parts)

  def _exists(self, variables: Formula, body: Formula) -> _Test:
    domains = dict(self._declared(variables))
    head, parts = _split(_unwrap(body))
    while head == "exists":  # as one search over all variables
      domains.update(self._declared(parts[0]))
      body = parts[1]
      head, parts = _split(_unwrap(body))
    if head != "and":
      parts = [body]
    waiting = [(_free(part), part) for part in parts]
    bound: set[str] = set()
    levels: list[tuple[str, Sequence[int], list[_Test]]] = []
    for name, domain in domains.items():
      fixed = [p for free, p in waiting if free == {name} and self._is_fixed(p)]
      tests = [self.compile(part) for part in fixed]
      domain = [x for x in domain if all(t(_NOTHING, {name: x}) for t in tests)]
      bound.add(name)
      waiting = [(free, part) for free, part in waiting if part not in fixed]
      ready = [part for free, part in waiting if free & domains.keys() <= bound]
      waiting = [(free, part) for free, part in waiting if part not in ready]
      levels.append((name, domain, [self.compile(part) for part in ready]))
    return lambda facts, bound: _search(levels, 0, facts, dict(bound))

  def _declared(
    self, variables: Formula
  ) -> Iterator[tuple[str, Sequence[int]]]:
    """Reads (?o - object ?r - receptacle)."""
    names: list[str] = []
    words = iter(variables)
    for word in words:
      if word != "-":
        names.append(str(word))
        continue
      kind = str(next(words))
      if kind not in self._domains:
        raise ConfigError(
          f"the goal quantifies over {kind!r}; known are "
          f"{', '.join(self._domains)}"
        )
      yield from ((name, self._domains[kind]) for name in names)
      names = []

  def _is_fixed(self, part: Formula) -> bool:
    head = _split(part)[0]
    return head in TRAITS or head in ("objecttype", "receptacletype")

  def _atom(self, head: str, parts: Sequence[Formula]) -> _Test:
    names = [str(part) for part in parts]
    if head == "=":
      return lambda facts, bound: bound[names[0]] == bound[names[1]]
    if head in ("objecttype", "receptacletype"):
      return self._type_test(head, *names)
    if head in TRAITS:
      things = self._game.things
      return lambda facts, bound: head in things[bound[names[0]]].traits
    if head in STATES:
      return lambda facts, bound: facts.is_in_state(bound[names[0]], head)
    relation = _RELATIONS.get(head)
    if relation is None:
      raise ConfigError(
        f"the goal asks for {head!r}, which the python engine does not know; "
        "play this game with engine='textworld'"
      )
    return relation(self._game, names)

  def _type_test(self, head: str, name: str, kind: str) -> _Test:
    kind = kind.removesuffix("type")
    if head == "objecttype":
      things = self._game.things
      return lambda facts, bound: things[bound[name]].type == kind
    receptacles = self._game.receptacles
    return lambda facts, bound: receptacles[bound[name]].type == kind


def _inside(game: Game, names: Sequence[str]) -> _Test:
  o, r = names
  return lambda facts, bound: facts.is_inside(bound[o], bound[r])


def _inside_thing(game: Game, names: Sequence[str]) -> _Test:
  inner, outer = names
  return lambda facts, bound: bound[inner] in game.things[bound[outer]].contents


def _held(game: Game, names: Sequence[str]) -> _Test:
  o = names[-1]
  return lambda facts, bound: facts.is_held(bound[o])


def _agent_at(game: Game, names: Sequence[str]) -> _Test:
  place = names[-1]
  return lambda facts, bound: facts.is_at(bound[place])


def _receptacle_at(game: Game, names: Sequence[str]) -> _Test:
  r, place = names
  return lambda facts, bound: (
    game.receptacles[bound[r]].location == bound[place]
  )


def _thing_at(game: Game, names: Sequence[str]) -> _Test:
  o, place = names
  return lambda facts, bound: facts.is_thing_at(bound[o], bound[place])


def _open(game: Game, names: Sequence[str]) -> _Test:
  (r,) = names
  return lambda facts, bound: facts.is_open(bound[r])


_RELATIONS: dict[str, Callable[[Game, Sequence[str]], _Test]] = {
  "inreceptacle": _inside,
  "inreceptacleobject": _inside_thing,
  "holds": _held,
  "atlocation": _agent_at,
  "receptacleatlocation": _receptacle_at,
  "objectatlocation": _thing_at,
  "opened": _open,
}


class _Nothing:
  """Facts for the tests that need none."""

  def _refuse(self, *arguments: object) -> bool:
    raise AssertionError("a fixed fact was looked up in the state")

  is_inside = is_held = is_at = is_open = is_thing_at = is_in_state = _refuse


_NOTHING = _Nothing()


def _search(
  levels: Sequence[tuple[str, Sequence[int], list[_Test]]],
  depth: int,
  facts: Facts,
  bound: _Bound,
) -> bool:
  if depth == len(levels):
    return True
  name, domain, tests = levels[depth]
  for value in domain:
    bound[name] = value
    if all(test(facts, bound) for test in tests) and _search(
      levels, depth + 1, facts, bound
    ):
      return True
  return False


def _split(formula: Formula) -> tuple[str, Sequence[Formula]]:
  if isinstance(formula, str) or not formula:
    raise ConfigError(f"{formula!r} is no PDDL formula")
  return str(formula[0]), formula[1:]


def _unwrap(formula: Formula) -> Formula:
  """(and x) is x."""
  head, parts = _split(formula)
  return _unwrap(parts[0]) if head == "and" and len(parts) == 1 else formula


def _free(formula: Formula) -> set[str]:
  """Every variable that is mentioned."""
  if isinstance(formula, str):
    return {formula} if formula.startswith("?") else set()
  return set().union(*(_free(part) for part in formula)) if formula else set()
