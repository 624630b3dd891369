"""Programs that variables stand for, in the terms of GrailQA's S-expressions.

Programs are immutable and compare by value. An engine evaluates them, and only
when their answers are needed.
"""

import dataclasses
import itertools
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Entity:
  """One entity of the graph, by its id."""

  id: str

  def __str__(self) -> str:
    return self.id


@dataclasses.dataclass(frozen=True)
class Join:
  """The objects of a relation whose subjects are the members of `base`."""

  relation: str
  base: "Program"

  def __str__(self) -> str:
    return f"(JOIN (R {self.relation}) {self.base})"


@dataclasses.dataclass(frozen=True)
class And:
  """The intersection of two sets."""

  left: "Program"
  right: "Program"

  def __str__(self) -> str:
    return f"(AND {self.left} {self.right})"


@dataclasses.dataclass(frozen=True)
class Extreme:
  """The members of `base` with the greatest or least value of an attribute."""

  base: "Program"
  attribute: str
  is_max: bool

  def __str__(self) -> str:
    name = "ARGMAX" if self.is_max else "ARGMIN"
    return f"({name} {self.base} {self.attribute})"


@dataclasses.dataclass(frozen=True)
class Count:
  """The number of members of `base`."""

  base: "Program"

  def __str__(self) -> str:
    return f"(COUNT {self.base})"


Program = Entity | Join | And | Extreme | Count


def operands(program: Program) -> tuple[Program, ...]:
  """Returns the operands of the program's last step."""
  if isinstance(program, Entity):
    return ()
  if isinstance(program, And):
    return (program.left, program.right)
  return (program.base,)


def shorter(program: Program) -> frozenset[Program]:
  """Returns all programs that remain when one step or more is left out.

  A step is a relation that is followed, an operand of an intersection, a
  superlative or a count. These programs are the results of a solver that
  overlooks a part of a question.
  """
  return _with_shorter(program) - {program}


def _with_shorter(program: Program) -> frozenset[Program]:
  if isinstance(program, Entity):
    return frozenset({program})
  choices = [_with_shorter(operand) for operand in operands(program)]
  rebuilt = {
    _with_operands(program, chosen) for chosen in itertools.product(*choices)
  }
  return frozenset(rebuilt).union(*choices)


def _with_operands(program: Program, replaced: Sequence[Program]) -> Program:
  """Applies the program's last step to other operands."""
  match program:
    case And():
      return And(*replaced)
    case Entity():
      return program
    case Join() | Extreme() | Count():
      return dataclasses.replace(program, base=replaced[0])


def entities(program: Program) -> frozenset[str]:
  """Returns the ids of all entities in a program."""
  found, rest = set[str](), [program]
  while rest:
    part = rest.pop()
    while not isinstance(part, Entity):
      if isinstance(part, And):
        rest.append(part.left)
        part = part.right
      else:
        part = part.base
    found.add(part.id)
  return frozenset(found)


def superlatives(program: Program) -> tuple[Extreme, ...]:
  """Returns all superlatives of a program, inner ones first, with repeats."""
  outer: list[Extreme] = []
  while not isinstance(program, Entity | And):
    if isinstance(program, Extreme):
      outer.insert(0, program)
    program = program.base
  if isinstance(program, Entity):
    return tuple(outer)
  return (*superlatives(program.left), *superlatives(program.right), *outer)


def without_counts(program: Program) -> tuple[Program, bool]:
  """Removes the counts of a program; the flag tells if it had any.

  A query has one list of results, so a count is always that of the whole
  program's answers. The operands of counts and intersections alone can be
  counts.
  """
  match program:
    case Count(base):
      return without_counts(base)[0], True
    case And(left, right):
      left, left_is_count = without_counts(left)
      right, right_is_count = without_counts(right)
      return And(left, right), left_is_count or right_is_count
  return program, False
