"""Collectives of a compiled program: kind, group, bytes and count.

Bytes are those that one chip receives, of a ring or any other algorithm that
moves nothing twice; with groups of n chips and results or operands of b bytes:

  all-gather        b_result  (n - 1) / n
  reduce-scatter    b_operand (n - 1) / n
  all-reduce        b         2 (n - 1) / n
  all-to-all        b         (n - 1) / n
  collective-permute b

Between slices there are no collectives: the chip sends its operand to its host,
which exchanges it over the data center network and sends the result back. Such
a pair names the kind of exchange and its slices; n is then their number.

Asynchronous pairs count once, at their start. A TPU writes a reduce-scatter as
a fusion named all-reduce-scatter, and repeats an all-gather that overlaps with
products in every fusion that it passes; these count once, too.

An exchange is overlapped if the schedule goes on while it runs: an asynchronous
pair, a computation that the SparseCore runs, or an all-gather that passes
fusions of products. The cores wait for all others.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np

from agentrl_jax.errors import AgentRLError
from launch.planning.compiler import hlo

KINDS = (
  "all-gather",
  "reduce-scatter",
  "all-reduce",
  "all-to-all",
  "collective-permute",
)
_FUSED_SCATTER = "all-reduce-scatter"
# Instructions that start a computation of exchanges, by the attribute that
# names it; all but a fusion let the schedule go on.
_STARTS = {"fusion": "calls", "async-start": "calls", "call-start": "to_apply"}


class UnreadableProgram(AgentRLError):
  """The compiler's text has a form that the parser does not know."""


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective operation and its number of executions."""

  kind: str
  # One of them: places in the mesh, row by row; between slices, the slices.
  group: tuple[int, ...]
  num_bytes: float  # that a chip receives, once
  times: int
  source: str  # the operation that it comes from
  is_overlapped: bool  # the schedule goes on while it runs
  num_slices: int = 1  # that it spans

  @property
  def total_bytes(self) -> float:
    """Bytes that a chip receives in all executions together."""
    return self.num_bytes * self.times


def collectives(
  module: hlo.Module, *, unknown_turns: int = 1, num_devices: int
) -> list[Collective]:
  """Lists every collective of a program, in the order of its schedule."""
  found, seen = [], set()
  for step in module.executed(unknown_turns=unknown_turns):
    if between := _exchange_of_slices(step):
      found.append(between)
      continue
    for kind, exchange, inside, starts in _exchanges(module, step):
      chain = re.search(r'chain_id="(\w+)"', exchange.attributes)
      if chain:
        channel = _attribute(exchange, r"channel_id=(\d+)", exchange.name)
        key = (step.computation.name, channel, chain.group(1))
        if key in seen:
          continue
        seen.add(key)
      group = _group(exchange, num_devices)
      if len(group) < 2:
        continue
      found.append(
        Collective(
          kind,
          group,
          _received(kind, exchange, inside, len(group)),
          step.times,
          _attribute(exchange, r'op_name="([^"]*)"', ""),
          is_overlapped=starts or bool(chain),
        )
      )
  return found


def between_slices(found: Sequence[Collective]) -> float:
  """Sums the bytes that a chip receives from other slices."""
  return sum(one.total_bytes for one in found if one.num_slices > 1)


def bytes_by_kind(found: Sequence[Collective]) -> dict[str, float]:
  """Sums the bytes that a chip receives, for each kind that occurs."""
  total = dict.fromkeys(KINDS, 0.0)
  for one in found:
    total[one.kind] += one.total_bytes
  return {kind: size for kind, size in total.items() if size}


def _exchanges(
  module: hlo.Module, step: hlo.Executed
) -> Iterator[tuple[str, hlo.Instruction, hlo.Computation, bool]]:
  """Yields the collectives of a step: itself, or those that it starts.

  Each comes with its kind, its computation, and whether the step only starts
  it.
  """
  instruction = step.instruction
  if kind := _kind(instruction.opcode):
    starts = instruction.opcode.endswith("-start")
    yield kind, instruction, step.computation, starts
    return
  attribute = _STARTS.get(instruction.opcode)
  inside = module.computations.get(
    (attribute and instruction.called(attribute)) or ""
  )
  if inside is None:
    return
  starts = instruction.opcode.endswith("-start")
  for one in inside.instructions.values():
    if kind := _kind(one.opcode):
      if inside.name.startswith(_FUSED_SCATTER):
        kind = "reduce-scatter"
      yield kind, one, inside, starts
    elif one.opcode in _STARTS:
      deeper = hlo.Executed(one, inside, step.times)
      for name, exchange, place, alone in _exchanges(module, deeper):
        yield name, exchange, place, starts or alone


# The kinds of exchanges between slices, as the runtime names them.
_OF_RUNTIME = {
  "ALL_GATHER": "all-gather",
  "REDUCE_SCATTER": "reduce-scatter",
  "ALL_REDUCE": "all-reduce",
  "ALL_TO_ALL": "all-to-all",
  "ONE_TO_ONE": "collective-permute",
}
_DEVICES_OF_SLICE = 100_000  # numbers of devices begin with that of the slice


def _exchange_of_slices(step: hlo.Executed) -> Collective | None:
  """Reads an exchange between slices from what the chip receives of it."""
  received = step.instruction
  if received.opcode != "recv" or "megascale" not in received.attributes:
    return None
  written = _attribute(received, r"_xla_megascale_transfer_type=\"(\w+)\"", "")
  slices = _slices(received)
  if written not in _OF_RUNTIME or len(slices) < 2:
    raise UnreadableProgram(
      f"{received.name} is an exchange between slices that is not known here: "
      f"{received.attributes[:300]}; install the libtpu that 'jax[tpu]' wants"
    )
  kind, n = _OF_RUNTIME[written], len(slices)
  size = _total(received.results[:1])  # beside it are the transfer's own state
  parts = {
    "all-reduce": 2 * (n - 1) / n,
    "reduce-scatter": n - 1,
    "collective-permute": 1,
  }
  num_bytes = size * parts.get(kind, (n - 1) / n)
  source = _attribute(received, r'op_name="([^"]*)"', "")
  return Collective(
    kind,
    slices,
    num_bytes,
    step.times,
    source,
    is_overlapped=True,  # the chip waits only where it takes the result
    num_slices=n,
  )


def _slices(received: hlo.Instruction) -> tuple[int, ...]:
  """Returns the slices of the first group: {1,2}x{0:3}, or devices' numbers."""
  text = received.attributes
  if named := re.search(r'_xla_megascale_target="\{([\d,:]+)\}x', text):
    found = set[int]()
    for part in named.group(1).split(","):
      first, _, last = part.partition(":")
      found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
  listed = re.search(r"_xla_megascale_target=\{\{([^}]*)\}", text)
  devices = re.findall(r"\d+", listed.group(1)) if listed else []
  return tuple(sorted({int(n) // _DEVICES_OF_SLICE for n in devices}))


def _kind(opcode: str) -> str | None:
  return next((k for k in KINDS if opcode == k or opcode == f"{k}-start"), None)


def _received(
  kind: str, exchange: hlo.Instruction, inside: hlo.Computation, n: int
) -> float:
  results = exchange.results
  if exchange.opcode.endswith("-start") and kind != "all-reduce":
    # Operands, results, and what the two halves tell each other.
    arrays = [a for a in results if a.shape or a.dtype not in ("u32", "s32")]
    results = tuple(arrays[len(arrays) // 2 :])
  size = _total(results)
  if kind == "collective-permute":
    return size
  if kind == "reduce-scatter":
    operands = [inside.instructions.get(name) for name in exchange.operands]
    size = sum(_total(o.results) for o in operands if o) or size * n
  return size * (n - 1) / n * (2 if kind == "all-reduce" else 1)


def _total(arrays: Sequence[hlo.Array]) -> int:
  return sum(array.num_bytes for array in arrays)


def _attribute(exchange: hlo.Instruction, pattern: str, default: str) -> str:
  match = re.search(pattern, exchange.attributes)
  return match.group(1) if match else default


def _group(exchange: hlo.Instruction, num_devices: int) -> tuple[int, ...]:
  """Returns the first group of devices that communicate."""
  text = exchange.attributes
  if pairs := re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", text):
    return tuple(int(n) for n in pairs.groups())
  if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
    return tuple(int(n) for n in listed.group(1).split(","))
  if iota := re.search(
    r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text
  ):
    shape, dims, order = (_numbers(part) for part in iota.groups())
    places = np.arange(np.prod(dims)).reshape(dims)
    places = places.transpose(order) if order else places
    return tuple(int(n) for n in places.reshape(shape)[0])
  if named := re.search(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}",
    text,
  ):
    axes, laid, turned, chosen = named.groups()
    return _mesh_group(axes, chosen, _numbers(laid), _numbers(turned))
  if "replica_groups={}" in text or "replica_groups" not in text:
    return tuple(range(num_devices))
  raise UnreadableProgram(
    f"the groups of {exchange.name} are written in a way that is not known "
    f"here: {text[:200]}; install the libtpu that 'jax[tpu]' asks for"
  )


def _mesh_group(
  axes: str, chosen: str, dims: list[int], order: list[int]
) -> tuple[int, ...]:
  """Lists devices along the chosen axes, laid out by `dims` and `order`."""
  names = re.findall(r"'([^']+)'=", axes)
  sizes = [int(n) for n in re.findall(r"=(\d+)", axes)]
  wanted = re.findall(r"'([^']+)'", chosen)
  places = np.arange(np.prod(sizes))
  if dims:
    places = places.reshape(dims).transpose(order or range(len(dims)))
  places = places.reshape(sizes)
  last = [names.index(name) for name in wanted]
  first = [n for n in range(len(names)) if n not in last]
  width = int(np.prod([sizes[n] for n in last])) if last else 1
  groups = places.transpose(first + last).reshape(-1, width)
  return tuple(int(n) for n in groups[0])


def _numbers(text: str | None) -> list[int]:
  return [int(n) for n in text.split(",")] if text else []
