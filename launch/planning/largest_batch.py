"""Finds the largest micro-batch and slot count that fit a slice.

A program's memory grows linearly with its rows or slots. Two compiled programs
give the line; the size at which it reaches the chip's memory is compiled too,
and only compiled sizes are reported.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping

from agentrl_jax.model.sharding import MESH_AXES
from launch.config.settings import Settings
from launch.planning.study import Judgement, Planner

_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Largest:
  """The largest size that was compiled and fits."""

  setting: str
  size: int  # 0: not even the smallest fits
  judged: Judgement  # at that size


def most_rows(planner: Planner, settings: Settings) -> Largest:
  """Finds the largest train.micro_batch, a multiple of the rows' shares."""
  step = settings.mesh["data"] * settings.mesh["fsdp"]

  def judge(rows: int) -> Judgement:
    return _judge(planner, with_rows(settings, rows), "gradient")

  return largest("train.micro_batch", judge, settings.batch.micro_batch, step)


def most_slots(planner: Planner, settings: Settings) -> Largest:
  """Largest first entry of engine.slots; the others in proportion."""

  def judge(slots: int) -> Judgement:
    return _judge(planner, with_slots(settings, slots), "decode")

  return largest("engine.slots[0]", judge, settings.engine.slots[0], 8)


def _judge(planner: Planner, settings: Settings, name: str) -> Judgement:
  role = "learner" if name == "gradient" else "rollout"
  program = next(
    p for p in planner.programs(settings, (role,)) if p.name == name
  )
  return planner.judge(settings, program)


def largest(
  setting: str,
  judge: Callable[[int], Judgement],
  start: int,
  step: int,
) -> Largest:
  """Finds the largest multiple of `step` that `judge` reports to fit.

  Follows the line through two sizes to the limit, or to a size of which the
  compiler dies.
  """
  start = max(start // step, 1) * step
  tried = {size: judge(size) for size in (start, 2 * start)}
  for _ in range(_TRIES):
    if any(judged.failure for judged in tried.values()):
      break
    size = _crossing(tried, step)
    if size in tried or size < step:
      break
    tried[size] = judge(size)
  fitting = [size for size, judged in tried.items() if judged.fits]
  if not fitting:
    return Largest(setting, 0, tried[min(tried)])
  return Largest(setting, max(fitting), tried[max(fitting)])


def _crossing(tried: dict[int, Judgement], step: int) -> int:
  """Returns the multiple of `step` at which the line has no memory left.

  The line runs from the largest size that fits to the smallest that does not,
  or through two sizes if all fit or none does.
  """
  fitting = sorted(size for size, judged in tried.items() if judged.fits)
  failing = sorted(size for size, judged in tried.items() if not judged.fits)
  if fitting and failing:
    low, high = fitting[-1], failing[0]
  else:
    low, high = fitting[-2:] or failing[:2]
  per_unit = (tried[low].left - tried[high].left) / (high - low)
  if per_unit <= 0:
    return high
  most = int(low + tried[low].left / per_unit) // step * step
  return min(most, failing[0] - step) if failing else most


def with_rows(settings: Settings, rows: int) -> Settings:
  """Returns settings with micro-batches of `rows` rows."""
  batch = dataclasses.replace(settings.batch, micro_batch=rows)
  return dataclasses.replace(settings, batch=batch)


def with_slots(settings: Settings, slots: int) -> Settings:
  """Returns settings with `slots` first, others and pages in proportion."""
  config, first = settings.engine, settings.engine.slots[0]
  engine = dataclasses.replace(
    config,
    slots=tuple(max(1, n * slots // first) for n in config.slots),
    cache_tokens=tuple(
      max(1, n * slots // first // config.page_size) * config.page_size
      for n in config.cache_tokens
    ),
  )
  return dataclasses.replace(settings, engine=engine)


def with_mesh(settings: Settings, mesh: Mapping[str, int]) -> Settings:
  """Returns settings with another mesh, and rows that it divides."""
  shares = mesh["data"] * mesh["fsdp"]
  rows = max(settings.batch.micro_batch // shares, 1) * shares
  return with_rows(dataclasses.replace(settings, mesh=dict(mesh)), rows)


def meshes(settings: Settings, num_chips: int) -> Iterator[dict[str, int]]:
  """Yields every mesh of `num_chips` that divides the model and its rows."""
  for sizes in _factors(num_chips, len(MESH_AXES)):
    mesh = dict(zip(MESH_AXES, sizes, strict=True))
    if _divides(settings, mesh):
      yield mesh


def _divides(settings: Settings, mesh: Mapping[str, int]) -> bool:
  c, length = settings.model, settings.batch.row_length
  return not (
    any(n % mesh["tensor"] for n in (c.num_kv_heads, c.mlp_width, c.vocab_size))
    or c.width % mesh["fsdp"]
    or length % (128 * mesh["sequence"])
  )


def _factors(product: int, parts: int) -> Iterator[tuple[int, ...]]:
  divisors = [n for n in range(1, product + 1) if product % n == 0]
  for head in itertools.product(divisors, repeat=parts - 1):
    if product % math.prod(head) == 0:
      yield (*head, product // math.prod(head))
