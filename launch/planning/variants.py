"""The same config with something changed, as settings that are checked again.

Rows of a micro-batch, slots of an engine and shapes of a mesh are what a plan
tries out.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

from agentrl_jax.model.sharding import MESH_AXES
from launch.config.settings import Settings


def with_rows(settings: Settings, rows: int) -> Settings:
  """Micro-batches of so many rows."""
  batch = dataclasses.replace(settings.batch, micro_batch=rows)
  return dataclasses.replace(settings, batch=batch)


def with_slots(settings: Settings, slots: int) -> Settings:
  """So many slots in the first policy slot, the others in proportion."""
  first = settings.engine.slots[0]
  engine = dataclasses.replace(
    settings.engine,
    slots=tuple(max(1, n * slots // first) for n in settings.engine.slots),
  )
  return dataclasses.replace(settings, engine=engine)


def with_mesh(settings: Settings, mesh: Mapping[str, int]) -> Settings:
  """Another mesh, and rows that it divides: as many, or one for each share."""
  shares = mesh["data"] * mesh["fsdp"]
  rows = max(settings.batch.micro_batch // shares, 1) * shares
  return with_rows(dataclasses.replace(settings, mesh=dict(mesh)), rows)


def meshes(settings: Settings, num_chips: int) -> Iterator[dict[str, int]]:
  """Every mesh of so many chips that divides the model and its rows."""
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
