"""Parser of a compiled program's text: instructions, loops and trip counts.

Only what planning needs is parsed: computations, instructions with the shapes
of their results, loops and their trip counts. The text is that of
`jax.stages.Compiled.as_text()`; a TPU's is the schedule that would be run.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_NAME = r"%?([\w.\-]+)"
_RESULT = re.compile(rf"^\s+(ROOT )?{_NAME} = ")
_COMPUTATION = re.compile(rf"^(ENTRY )?{_NAME} \(.*\{{$")
# The thread is named where it is not the main core's.
_END = re.compile(r'^\}(, execution_thread="\w+")?\s*$')
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,<= ]*)\](\{[^{}]*\})?")
_VMEM = re.compile(r"S\([1-9]\)")  # of a layout: not in the chip's main memory


@dataclasses.dataclass(frozen=True)
class Array:
  """One array of a result."""

  dtype: str
  shape: tuple[int, ...]
  on_chip: bool = False  # lies in the chip's own fast memory

  @property
  def num_bytes(self) -> int:
    """Size without the padding that a layout may add."""
    bits = _BITS.get(self.dtype)
    if bits is None:
      digits = re.search(r"\d+", self.dtype)
      bits = int(digits.group()) if digits else 8
    size = bits
    for extent in self.shape:
      size *= extent
    return size // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation."""

  name: str
  opcode: str
  results: tuple[Array, ...]
  operands: tuple[str, ...]
  text: str  # what stands in the parentheses
  attributes: str
  is_root: bool

  def called(self, attribute: str) -> str | None:
    """Returns the computation that an attribute names, such as a body."""
    found = re.search(rf"\b{attribute}={_NAME}", self.attributes)
    return found.group(1) if found else None


@dataclasses.dataclass(frozen=True)
class Computation:
  """Instructions in their order."""

  name: str
  instructions: Mapping[str, Instruction]

  @property
  def root(self) -> Instruction:
    """The instruction whose result is the computation's."""
    return next(i for i in self.instructions.values() if i.is_root)


@dataclasses.dataclass(frozen=True)
class Executed:
  """A scheduled instruction and its number of executions."""

  instruction: Instruction
  computation: Computation
  times: int


class Module:
  """A whole program."""

  def __init__(self, text: str):
    self.computations: dict[str, Computation] = {}
    self.entry = ""
    self._read(text)

  def executed(self, *, unknown_turns: int = 1) -> Iterator[Executed]:
    """Yields every scheduled instruction; follows loops and calls.

    A fusion is one instruction. A loop whose end depends on data turns
    `unknown_turns` times.
    """
    yield from self._walk(self.computations[self.entry], 1, unknown_turns)

  def turns(self, loop: Instruction, place: Computation) -> int | None:
    """Upper bound of a loop's trip count; None if the program does not say."""
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
    if known:
      return int(known.group(1))
    condition = self.computations[loop.called("condition") or ""]
    bound = _bound(condition, condition.root)
    if bound is None:
      return None
    counter, limit = bound
    start = _number(place, _element(place, loop.operands[0], counter)) or 0
    body = self.computations[loop.called("body") or ""]
    step = _step(body, _element(body, body.root.name, counter)) or 1
    return max(0, -(-(limit - start) // step))

  def _walk(
    self, computation: Computation, times: int, unknown: int
  ) -> Iterator[Executed]:
    for instruction in computation.instructions.values():
      if instruction.opcode == "while":
        turns = self.turns(instruction, computation)
        body = self.computations[instruction.called("body") or ""]
        yield from self._walk(
          body, times * (unknown if turns is None else turns), unknown
        )
      elif instruction.opcode in ("call", "conditional"):
        for name in _called(instruction):
          yield from self._walk(self.computations[name], times, unknown)
      else:
        yield Executed(instruction, computation, times)

  def _read(self, text: str) -> None:
    name, found = "", dict[str, Instruction]()
    for line in text.splitlines():
      if header := _COMPUTATION.match(line):
        name, found = header.group(2), {}
        if header.group(1):
          self.entry = name
      elif name and _END.match(line):  # kernels bring lines of "}}"
        self.computations[name] = Computation(name, found)
        name = ""
      elif name and (instruction := _instruction(line)):
        found[instruction.name] = instruction


def _instruction(line: str) -> Instruction | None:
  head = _RESULT.match(line)
  if not head:
    return None
  rest = line[head.end() :]
  end = _closing(rest, 0) + 1 if rest[0] == "(" else rest.index(" ")
  results, rest = rest[:end], rest[end:].lstrip()
  opening = rest.index("(")
  closing = _closing(rest, opening)
  inside = rest[opening + 1 : closing]
  return Instruction(
    name=head.group(2),
    opcode=rest[:opening],
    results=_arrays(results),
    operands=tuple(re.findall(r"%([\w.\-]+)", inside)),
    text=inside,
    attributes=rest[closing + 1 :],
    is_root=bool(head.group(1)),
  )


def _arrays(text: str) -> tuple[Array, ...]:
  return tuple(
    Array(
      dtype,
      tuple(int(n) for n in re.findall(r"\d+", shape)),
      bool(layout and _VMEM.search(layout)),
    )
    for dtype, shape, layout in _ARRAY.findall(re.sub(r"/\*.*?\*/", "", text))
  )


def _closing(text: str, opening: int) -> int:
  """Finds the parenthesis that closes the one at `opening`."""
  depth = 0
  for place in range(opening, len(text)):
    depth += {"(": 1, ")": -1}.get(text[place], 0)
    if not depth:
      return place
  raise ValueError(f"a parenthesis never closes in {text[:80]!r}")


def _called(instruction: Instruction) -> list[str]:
  places = ("to_apply", "calls", "true_computation", "false_computation")
  names = [name for place in places if (name := instruction.called(place))]
  branches = re.search(
    r"branch_computations=\{([^}]*)\}", instruction.attributes
  )
  return names + re.findall(
    r"%([\w.\-]+)", branches.group(1) if branches else ""
  )


def _bound(condition: Computation, test: Instruction) -> tuple[int, int] | None:
  """Returns the loop counter's index in the loop state, and its upper bound."""
  known = condition.instructions
  if test.opcode == "and":
    bounds = [_bound(condition, known[name]) for name in test.operands]
    return min((b for b in bounds if b), key=lambda b: b[1], default=None)
  if test.opcode != "compare" or "direction=LT" not in test.attributes:
    return None
  counter, limit = (known[name] for name in test.operands)
  index = re.search(r"index=(\d+)", counter.attributes)
  if limit.opcode != "constant" or index is None:
    return None
  return int(index.group(1)), int(limit.text)


def _element(place: Computation, name: str, index: int) -> Instruction | None:
  """Returns the element of a tuple that is built in this computation."""
  made = place.instructions[name]
  if made.opcode != "tuple":
    return None
  return place.instructions.get(made.operands[index])


def _number(place: Computation, made: Instruction | None) -> int | None:
  """Returns the constant behind copies and bitcasts."""
  while made is not None and made.opcode in ("copy", "bitcast"):
    made = place.instructions.get(made.operands[0])
  if made is None or made.opcode != "constant" or not made.text.isdecimal():
    return None
  return int(made.text)


def _step(body: Computation, made: Instruction | None) -> int | None:
  """Sums the constants that a counter grows by in one turn, unrolled or not."""
  total = 0
  while made is not None and made.opcode == "add":
    parts = [body.instructions[name] for name in made.operands]
    numbers = [_number(body, part) for part in parts]
    if numbers[1] is None:
      return None
    total, made = total + numbers[1], parts[0]
  return total or None
