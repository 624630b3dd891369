"""Bytes that a compiled program moves between a chip's memory and its cores.

An estimate from the schedule: each instruction reads its operands and writes
its results, except for what the compiler keeps in the chip's fast memory, what
only changes its name, and, of an array that is sliced or updated in place, all
but the part. A kernel (a custom call) counts as one pass over its operands.
"""

from collections.abc import Iterator, Sequence

from launch.planning.hlo import Array, Computation, Instruction, Module

_FREE = frozenset(
  (
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "iota",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
  )
)
_SLICES = ("dynamic-slice", "slice", "gather")
# Written in place; by which operand says what is written.
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
_RENAMES = ("bitcast", "reshape")
# In a fusion that an exchange passes: it was or will be counted elsewhere.
_PASSING = ("tuple", "all-gather", "custom-call")


def bytes_moved(module: Module, *, unknown_turns: int = 1) -> float:
  """Read and written, by one chip, in one run."""
  return float(
    sum(
      step.times * _of(module, step.instruction, step.computation)
      for step in module.executed(unknown_turns=unknown_turns)
    )
  )


def _of(module: Module, instruction: Instruction, place: Computation) -> int:
  opcode = instruction.opcode
  if opcode in _FREE or opcode.endswith("-done"):
    return 0
  if opcode == "fusion":
    return _of_fusion(module.computations[instruction.called("calls") or ""])
  written = _size(instruction.results)
  if opcode in ("copy-start", "slice-start"):
    return written  # both ends are among the results
  if opcode in _SLICES:
    return 2 * written
  operands = [place.instructions[n] for n in instruction.operands]
  if opcode in _UPDATES:
    return 2 * _size(operands[_UPDATES[opcode]].results)
  return written + sum(_size(operand.results) for operand in operands)


def _of_fusion(inside: Computation) -> int:
  read = sum(
    _read(inside, i)
    for i in inside.instructions.values()
    if i.opcode == "parameter"
  )
  return read + sum(_written(inside, root) for root in _roots(inside))


def _read(inside: Computation, parameter: Instruction) -> int:
  """What is read of a parameter: all, or the slices that are taken of it."""
  whole = _size(parameter.results)
  parts = 0
  for user in _users(inside, parameter.name):
    if user.opcode in _SLICES and user.operands[0] == parameter.name:
      parts += _size(user.results, anywhere=True)
    elif user.opcode in _UPDATES and user.operands[0] == parameter.name:
      continue  # written in place
    elif user.opcode in _RENAMES:
      parts += _read(inside, user) if whole else 0
    elif user.opcode in _PASSING:
      continue
    else:
      return whole
  return min(whole, parts)


def _written(inside: Computation, root: Instruction) -> int:
  if root.opcode in _PASSING or root.opcode == "parameter":
    return 0
  whole = _size(root.results)
  while root.opcode in _RENAMES:
    root = inside.instructions[root.operands[0]]
  if root.opcode in _UPDATES:
    part = inside.instructions[root.operands[_UPDATES[root.opcode]]]
    return min(whole, _size(part.results, anywhere=True))
  return whole


def _roots(inside: Computation) -> list[Instruction]:
  if inside.root.opcode != "tuple":
    return [inside.root]
  return [inside.instructions[name] for name in inside.root.operands]


def _users(inside: Computation, name: str) -> Iterator[Instruction]:
  return (i for i in inside.instructions.values() if name in i.operands)


def _size(arrays: Sequence[Array], *, anywhere: bool = False) -> int:
  return sum(a.num_bytes for a in arrays if anywhere or not a.on_chip)
