"""A program compiled for chips that are not here: memory, exchanges, traffic.

Compiling is the check. What does not fit is refused by the compiler, which says
how much was asked for; that is kept, not raised, so that a plan can show it
beside the programs that fit.
"""

import dataclasses
import re
import time

import jax

from launch.planning.chips import GIB
from launch.planning.collectives import (
  Collective,
  UnreadableProgram,
  collectives,
)
from launch.planning.hlo import Module
from launch.planning.traffic import bytes_moved


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
    """All at once: the compiler's own sum."""
    return (
      self.arguments + self.outputs - self.aliased + self.temporaries
    ) + self.code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
  """What a compiler says of a program."""

  memory: Memory | None  # None: it does not fit by itself
  wanted: int  # bytes of a chip, fitting or not
  exchanges: tuple[Collective, ...] = ()
  moved: float = 0  # bytes between a chip's memory and its cores
  seconds: float = 0  # that compiling took


def compile_program(
  traced: jax.stages.Traced, *, unknown_turns: int, num_devices: int
) -> Compiled:
  """Compiles for the platform of the shardings that it was traced with.

  Raises `UnreadableProgram` if the compiler cannot print what it made.
  """
  running = time.monotonic()
  try:
    made = traced.lower(lowering_platforms=("tpu",)).compile()
  except jax.errors.JaxRuntimeError as error:
    wanted = _wanted(str(error))
    if wanted is None:
      raise
    return Compiled(
      memory=None, wanted=wanted, seconds=time.monotonic() - running
    )
  seconds = time.monotonic() - running
  memory = _memory(made)
  module = Module(_text(made))
  return Compiled(
    memory=memory,
    wanted=memory.total,
    exchanges=tuple(
      collectives(module, unknown_turns=unknown_turns, num_devices=num_devices)
    ),
    moved=bytes_moved(module, unknown_turns=unknown_turns),
    seconds=seconds,
  )


def _memory(made: jax.stages.Compiled) -> Memory:
  found = made.memory_analysis()
  if found is None:
    raise UnreadableProgram("the compiler does not say what memory it takes")
  return Memory(
    arguments=found.argument_size_in_bytes,
    outputs=found.output_size_in_bytes,
    aliased=found.alias_size_in_bytes,
    temporaries=found.temp_size_in_bytes,
    code=found.generated_code_size_in_bytes,
  )


def _text(made: jax.stages.Compiled) -> str:
  try:
    text = made.as_text()
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
  """Bytes that the compiler could not find; None for any other error."""
  if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
    return None
  sizes = re.search(
    r"Used ([\d.]+)([KMGT]) of|\(([\d.]+)([KMGT])\) exceeds available", message
  )
  if not sizes:
    return None
  number, unit = (g for g in sizes.groups() if g)
  return int(float(number) * GIB * 1024.0 ** ("KMGT".index(unit) - 2))
