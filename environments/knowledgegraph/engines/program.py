"""What a variable stands for: a small program, run when its answers are wanted.

The terms are those of GrailQA's S-expressions. Programs are frozen, compare by
what they say, and are turned into answers by an engine; nothing here does.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence


@dataclasses.dataclass(frozen=True)
class Entity:
  """One thing of the graph, by its id."""

  id: str

  def __str__(self) -> str:
    return self.id


@dataclasses.dataclass(frozen=True)
class Join:
  """What the relation leads to from what `base` stands for."""

  relation: str
  base: "Program"

  def __str__(self) -> str:
    return f"(JOIN (R {self.relation}) {self.base})"


@dataclasses.dataclass(frozen=True)
class And:
  """What both stand for."""

  left: "Program"
  right: "Program"

  def __str__(self) -> str:
    return f"(AND {self.left} {self.right})"


@dataclasses.dataclass(frozen=True)
class Extreme:
  """Those of `base` with the greatest, or the least, value of an attribute."""

  base: "Program"
  attribute: str
  is_max: bool

  def __str__(self) -> str:
    name = "ARGMAX" if self.is_max else "ARGMIN"
    return f"({name} {self.base} {self.attribute})"


@dataclasses.dataclass(frozen=True)
class Count:
  """How many `base` stands for."""

  base: "Program"

  def __str__(self) -> str:
    return f"(COUNT {self.base})"


Program = Entity | Join | And | Extreme | Count


def parts(program: Program) -> Iterator[Program]:
  """The program and all within it, what it is made of before itself."""
  for inner in children(program):
    yield from parts(inner)
  yield program


def children(program: Program) -> tuple[Program, ...]:
  """What the program is directly made of."""
  match program:
    case Entity():
      return ()
    case And(left, right):
      return (left, right)
    case Join(_, base) | Extreme(base, _, _) | Count(base):
      return (base,)


def shorter(program: Program) -> frozenset[Program]:
  """All programs that are left of it when one step or more is left out.

  A step is a relation that is followed, an operand of an intersection, a
  superlative or a count: what somebody finds who overlooks a part of a
  question.
  """
  return _with_shorter(program) - {program}


def _with_shorter(program: Program) -> frozenset[Program]:
  if isinstance(program, Entity):
    return frozenset({program})
  inner = [_with_shorter(child) for child in children(program)]
  rebuilt = {
    _rebuilt(program, operands) for operands in itertools.product(*inner)
  }
  return frozenset(rebuilt).union(*inner)


def _rebuilt(program: Program, operands: Sequence[Program]) -> Program:
  """The program's last step on other operands."""
  match program:
    case And():
      return And(*operands)
    case Entity():
      return program
    case Join() | Extreme() | Count():
      return dataclasses.replace(program, base=operands[0])


def entities(program: Program) -> frozenset[str]:
  """The ids of all entities that a program starts from."""
  return frozenset(p.id for p in parts(program) if isinstance(p, Entity))


def superlatives(program: Program) -> tuple[Extreme, ...]:
  """All superlatives in a program, inner ones first, each as often as named."""
  return tuple(p for p in parts(program) if isinstance(p, Extreme))


def without_counts(program: Program) -> tuple[Program, bool]:
  """The program with its counts taken off, and whether there were any.

  A query has one list of results, so what is counted are the answers of the
  whole program. Nothing but counts and intersections is made of a count.
  """
  match program:
    case Count(base):
      return without_counts(base)[0], True
    case And(left, right):
      one, is_count = without_counts(left)
      other, is_count_too = without_counts(right)
      return And(one, other), is_count or is_count_too
  return program, False
