"""Compiles a PDDL goal into a test of a household's state.

Compilation evaluates the facts that never change, which leaves few candidates
for each variable. The test evaluates the others, each fact as soon as its
variables are bound.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.game import STATES, TRAITS, Formula, Game


class Facts(Protocol):
  """The facts that actions change; arguments are indices in the game."""

  def is_inside(self, thing: int, receptacle: int) -> bool: ...
  def is_held(self, thing: int) -> bool: ...
  def is_at(self, location: int) -> bool: ...
  def is_open(self, receptacle: int) -> bool: ...
  def is_thing_at(self, thing: int, location: int) -> bool: ...
  def is_in_state(self, thing: int, state: str) -> bool: ...


_Bindings = dict[str, int]  # of variables to indices
_Test = Callable[[Facts, _Bindings], bool]


def compile_goal(game: Game) -> Callable[[Facts], bool]:
  """Compiles the game's goal into a function that tests if it is reached.

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
    """Compiles one formula; its free variables are looked up in bindings."""
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
    return self._atom(formula)

  def _exists(self, variables: Formula, body: Formula) -> _Test:
    domains = dict(self._declared(variables))
    head, parts = _split(_unwrap(body))
    while head == "exists":  # nested: one search over all variables
      domains.update(self._declared(parts[0]))
      body = parts[1]
      head, parts = _split(_unwrap(body))
    if head != "and":
      parts = [body]
    waiting = [(_variables(part), part) for part in parts]
    bound: set[str] = set()
    levels: list[tuple[str, Sequence[int], list[_Test]]] = []
    for name, domain in domains.items():
      for free, part in list(waiting):
        fixed_test = self._fixed_test(part) if free == {name} else None
        if fixed_test:
          domain = list(filter(fixed_test, domain))
          waiting.remove((free, part))
      bound.add(name)
      ready = [part for free, part in waiting if free & domains.keys() <= bound]
      waiting = [(free, part) for free, part in waiting if part not in ready]
      levels.append((name, domain, [self.compile(part) for part in ready]))
    return lambda facts, bound: _search(levels, 0, facts, dict(bound))

  def _declared(
    self, variables: Formula
  ) -> Iterator[tuple[str, Sequence[int]]]:
    """Reads (?o - object ?r - receptacle) into names with their domains."""
    names: list[str] = []
    words = iter(variables)
    for word in words:
      if word != "-":
        names.append(str(word))
        continue
      kind = str(next(words))
      if kind not in self._domains:
        raise ConfigError(
          f"the goal quantifies over {kind!r}; allowed are "
          f"{', '.join(self._domains)}"
        )
      yield from ((name, self._domains[kind]) for name in names)
      names = []

  def _fixed_test(self, part: Formula) -> Callable[[int], bool] | None:
    """Compiles a fact that never changes; None for all others."""
    head, arguments = _split(part)
    things, receptacles = self._game.things, self._game.receptacles
    if head in TRAITS:
      return lambda o: head in things[o].traits
    if head not in ("objecttype", "receptacletype"):
      return None
    kind = str(arguments[1]).removesuffix("type")
    if head == "objecttype":
      return lambda o: things[o].type == kind
    return lambda r: receptacles[r].type == kind

  def _atom(self, part: Formula) -> _Test:
    head, arguments = _split(part)
    names = [str(argument) for argument in arguments]
    if head == "=":
      return lambda facts, bound: bound[names[0]] == bound[names[1]]
    fixed_test = self._fixed_test(part)
    if fixed_test:
      return lambda facts, bound: fixed_test(bound[names[0]])
    if head in STATES:
      return lambda facts, bound: facts.is_in_state(bound[names[0]], head)
    if head not in _RELATIONS:
      raise ConfigError(
        f"the goal asks for {head!r}, which the python engine does not know; "
        "leave this game out of `source`"
      )
    relation, game = _RELATIONS[head], self._game
    if head in ("atlocation", "holds"):
      names = names[1:]  # without the agent: there is one
    return lambda facts, bound: relation(
      game, facts, *[bound[name] for name in names]
    )


_RELATIONS: Mapping[str, Callable[..., bool]] = {
  "inreceptacle": lambda game, facts, o, r: facts.is_inside(o, r),
  "inreceptacleobject": lambda game, facts, inner, outer: (
    inner in game.things[outer].contents
  ),
  "holds": lambda game, facts, o: facts.is_held(o),
  "atlocation": lambda game, facts, location: facts.is_at(location),
  "receptacleatlocation": lambda game, facts, r, location: (
    game.receptacles[r].location == location
  ),
  "objectatlocation": lambda game, facts, o, location: facts.is_thing_at(
    o, location
  ),
  "opened": lambda game, facts, r: facts.is_open(r),
}


def _search(
  levels: Sequence[tuple[str, Sequence[int], list[_Test]]],
  depth: int,
  facts: Facts,
  bound: _Bindings,
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
  """Removes an `and` around a single formula."""
  head, parts = _split(formula)
  return _unwrap(parts[0]) if head == "and" and len(parts) == 1 else formula


def _variables(formula: Formula) -> set[str]:
  """Lists the variables of a formula, bound ones included."""
  if isinstance(formula, str):
    return {formula} if formula.startswith("?") else set()
  return (
    set().union(*(_variables(part) for part in formula)) if formula else set()
  )
