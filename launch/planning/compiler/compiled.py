"""Compiles programs for absent chips: memory, collectives, memory traffic.

Compiling is the check. The compiler refuses a program that does not fit, and
says how much it asked for; that is kept, not raised, so that a plan can show it
beside the programs that fit. So is the death of a compiler, which may abort its
process: see `study.Planner`, which compiles in a child.
"""

import dataclasses
import re
import time
from collections.abc import Sequence

import jax

from launch.planning.chips import GIB
from launch.planning.compiler.collectives import (
  Collective,
  UnreadableProgram,
  collectives,
)
from launch.planning.compiler.hlo import Array, Computation, Instruction, Module


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
  """Bytes of one chip while a program runs, by kind."""

  arguments: int
  outputs: int
  aliased: int  # outputs that take the place of arguments
  temporaries: int
  code: int

  @property
  def total(self) -> int:
    """The compiler's own sum."""
    return (
      self.arguments + self.outputs - self.aliased + self.temporaries
    ) + self.code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
  """The compiler's figures for a program."""

  memory: Memory | None  # None: it does not fit by itself, or `failure`
  wanted: int  # bytes of a chip, fitting or not
  failure: str = ""  # how the compiler died; its memory is not known then
  exchanges: tuple[Collective, ...] = ()
  moved: float = 0  # bytes between a chip's memory and its cores
  seconds: float = 0  # that compiling took


# The compiler searches for no faster tilings. Bytes between chips are the same,
# memory is within 2 %; on v5e nothing overlaps then.
_LEAST_EFFORT = {"exec_time_optimization_effort": -1.0}


def compile_program(
  traced: jax.stages.Traced,
  *,
  unknown_turns: int,
  num_devices: int,
  is_quick: bool = False,
) -> Compiled:
  """Compiles for the platform of the shardings in the trace.

  With `is_quick` the compiler makes the least effort.

  Raises `UnreadableProgram` if the compiler cannot print its program.
  """
  started_at = time.monotonic()
  try:
    executable = traced.lower(lowering_platforms=("tpu",)).compile(
      compiler_options=_LEAST_EFFORT if is_quick else None
    )
  except jax.errors.JaxRuntimeError as error:
    wanted = _wanted(str(error))
    if wanted is None:
      raise
    return Compiled(
      memory=None, wanted=wanted, seconds=time.monotonic() - started_at
    )
  seconds = time.monotonic() - started_at
  memory = _memory(executable)
  module = Module(_text(executable))
  return Compiled(
    memory=memory,
    wanted=memory.total,
    exchanges=tuple(
      collectives(module, unknown_turns=unknown_turns, num_devices=num_devices)
    ),
    moved=bytes_moved(module, unknown_turns=unknown_turns),
    seconds=seconds,
  )


def _memory(executable: jax.stages.Compiled) -> Memory:
  analysis = executable.memory_analysis()
  if analysis is None:
    raise UnreadableProgram("the compiler does not say what memory it takes")
  return Memory(
    arguments=analysis.argument_size_in_bytes,
    outputs=analysis.output_size_in_bytes,
    aliased=analysis.alias_size_in_bytes,
    temporaries=analysis.temp_size_in_bytes,
    code=analysis.generated_code_size_in_bytes,
  )


def _text(executable: jax.stages.Compiled) -> str:
  try:
    text = executable.as_text()
  except jax.errors.JaxRuntimeError as error:
    raise UnreadableProgram(
      "this libtpu compiles the program and cannot print it "
      f"({str(error).splitlines()[0]}); install the one that jax "
      f"{jax.__version__} asks for: pip install 'jax[tpu]=={jax.__version__}'"
    ) from error
  if text is None:
    raise UnreadableProgram("the compiler prints nothing of what it made")
  return text


def _wanted(message: str) -> int | None:
  """Bytes that the compiler could not allocate; None for any other error."""
  if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
    return None
  sizes = re.search(
    r"Used ([\d.]+)([KMGT]) of|\(([\d.]+)([KMGT])\) exceeds available", message
  )
  if not sizes:
    return None
  number, unit = (g for g in sizes.groups() if g)
  return int(float(number) * GIB * 1024.0 ** ("KMGT".index(unit) - 2))


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
  """Bytes that one chip reads and writes in one run."""
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
    return _of_fusion(
      module, module.computations[instruction.called("calls") or ""]
    )
  written = _size(instruction.results)
  if opcode in ("copy-start", "call-start"):
    return written  # both ends are among the results
  if opcode == "slice-start":  # likewise, and the source is a whole array
    moved = instruction.results[1]
    return moved.num_bytes + _size([moved])
  if opcode in _SLICES:
    return 2 * written
  if opcode in _UPDATES:
    part = place.instructions[instruction.operands[_UPDATES[opcode]]]
    return 2 * _size(part.results)
  # A kernel may take an array several times, for different parts of it.
  operands = [
    place.instructions[n] for n in dict.fromkeys(instruction.operands)
  ]
  return written + sum(_size(operand.results) for operand in operands)


def _of_fusion(module: Module, inside: Computation) -> int:
  read = sum(
    _read(module, inside, i)
    for i in inside.instructions.values()
    if i.opcode == "parameter"
  )
  root = inside.root
  names = root.operands if root.opcode == "tuple" else (root.name,)
  return read + sum(_written(inside, inside.instructions[n]) for n in names)


def _read(module: Module, inside: Computation, parameter: Instruction) -> int:
  """Bytes that are read of a parameter: all, or the slices taken of it."""
  size = _size(parameter.results)
  parts = 0
  for user in inside.instructions.values():
    is_first = user.operands[:1] == (parameter.name,)
    if (
      parameter.name not in user.operands
      or user.opcode in _PASSING
      or (user.opcode in _UPDATES and is_first)  # written in place
    ):
      continue
    if user.opcode in _SLICES and is_first:
      parts += _size(user.results, anywhere=True)
    elif user.opcode in _RENAMES:
      parts += _read(module, inside, user) if size else 0
    elif user.opcode == "fusion":  # within this one
      within = module.computations[user.called("calls") or ""]
      parts += sum(
        _read(module, within, i)
        for i in within.instructions.values()
        if i.opcode == "parameter"
        and user.operands[int(i.text)] == parameter.name
      )
    else:
      return size
  return min(size, parts)


def _written(inside: Computation, root: Instruction) -> int:
  if root.opcode in _PASSING or root.opcode == "parameter":
    return 0
  size = _size(root.results)
  while root.opcode in _RENAMES:
    root = inside.instructions[root.operands[0]]
  if root.opcode in _UPDATES:
    part = inside.instructions[root.operands[_UPDATES[root.opcode]]]
    return min(size, _size(part.results, anywhere=True))
  return size


def _size(arrays: Sequence[Array], *, anywhere: bool = False) -> int:
  return sum(a.num_bytes for a in arrays if anywhere or not a.on_chip)
