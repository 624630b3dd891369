"""Compiles small programs for TPUs and keeps their text for the tests.

  python -m tests.launch.planning.make_recorded

Needs libtpu, no TPU. What each program must exchange is known by formula; see
hlo_test.py. Lines are cut where nothing is read: locations and tuning.
"""

import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentrl_jax.model import sharding
from launch.planning import chips
from launch.planning.chips import parse_slice

FOLDER = pathlib.Path(__file__).parent / "recorded"
WIDTH, ROWS, LAYERS, SHARES = 2048, 64, 6, 8


def fully_sharded(mesh: Mesh) -> jax.stages.Traced:
  """The gradient of a scan over products whose weights are split."""
  weights = _shape((LAYERS, WIDTH, WIDTH), mesh, None, "fsdp", None)
  rows = _shape((ROWS * SHARES, WIDTH), mesh, "fsdp", None)
  whole = NamedSharding(mesh, PartitionSpec(None, None))

  def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
      weight = jax.lax.with_sharding_constraint(weight, whole)
      return jnp.tanh(x @ weight), None

    x, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
    return jnp.sum(x.astype(jnp.float32))

  out = weights.sharding
  return jax.jit(jax.grad(loss), out_shardings=out).trace(weights, rows)


def tensor_parallel(mesh: Mesh) -> jax.stages.Traced:
  """Two products with the middle split: one sum over the chips."""
  up = _shape((WIDTH, 4 * WIDTH), mesh, None, "fsdp")
  down = _shape((4 * WIDTH, WIDTH), mesh, "fsdp", None)
  rows = _shape((ROWS, WIDTH), mesh, None, None)

  def both(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ up) @ down

  return jax.jit(both, out_shardings=rows.sharding).trace(up, down, rows)


def ring(mesh: Mesh) -> jax.stages.Traced:
  """A part goes round the chips, in a loop whose end depends on data."""
  rows = _shape((ROWS * SHARES, WIDTH), mesh, "fsdp", None)
  turns = jax.ShapeDtypeStruct((), jnp.int32)
  ahead = [(n, (n + 1) % SHARES) for n in range(SHARES)]

  def local(x: jax.Array, turns: jax.Array) -> jax.Array:
    def turn(_: int, x: jax.Array) -> jax.Array:
      return jnp.tanh(jax.lax.ppermute(x, "fsdp", ahead))

    return jax.lax.fori_loop(0, turns, turn, x)

  spec = PartitionSpec("fsdp", None)
  mapped = jax.shard_map(
    local, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec
  )
  return jax.jit(mapped).trace(rows, turns)


PROGRAMS: dict[str, Callable[[Mesh], jax.stages.Traced]] = {
  "fully_sharded": fully_sharded,
  "tensor_parallel": tensor_parallel,
  "ring": ring,
}


def compiled_text(name: str) -> str:
  """The schedule of a program for v5e:2x4."""
  devices = chips.describe(parse_slice("v5e:2x4"))
  mesh = sharding.make_mesh({"fsdp": SHARES}, devices)
  lowered = PROGRAMS[name](mesh).lower(lowering_platforms=("tpu",))
  text = lowered.compile().as_text()
  text = re.sub(r", (metadata|backend_config)=.*", "", text)
  return text.replace(f"{FOLDER.parents[3]}/", "")


def _shape(shape: tuple[int, ...], mesh: Mesh, *axes: Any):
  where = NamedSharding(mesh, PartitionSpec(*axes))
  return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=where)


if __name__ == "__main__":
  jax.config.update("jax_platforms", "cpu")
  FOLDER.mkdir(exist_ok=True)
  for program in PROGRAMS:
    (FOLDER / f"{program}.hlo").write_text(compiled_text(program))
