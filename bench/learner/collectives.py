"""Bytes that devices exchange in the gradient of an update, by mesh.

The bytes are read from the compiled program: for a TPU v5p slice where libtpu
is installed, and else for as many virtual CPU devices. The CPU's compiler
writes an all-reduce where a TPU's writes a reduce-scatter, so it needs more
bytes. The model has two layers as wide as Qwen3-8B's in bfloat16 (with narrower
layers a share of a row is too thin for a TPU to scatter), one row per device or
group that shares it, and `full` remat where params are split. Formulas, with N
params of 2 bytes, n devices, T tokens of width D:

  fsdp    3 * 2 N (n - 1) / n      gathered twice, gradients scattered once
          4 * 2 N (n - 1) / n      where they are all-reduced
  data    2 * 2 N (n - 1) / n      gradients all-reduced
  tensor  (4 L + 2) 2 * 2 T D (n - 1) / n
          four sums per layer, one of the embedding, one of the logits' gradient

A tied embedding is gathered once and never for the lookup, so fsdp needs less
than its formula. The two gradients of the embedding are summed over `data` one
by one, the lookup's in float32, so data needs more.
"""

import json
import math
import os
import subprocess
import sys
import time

import jax
import optax

from agentrl_jax.model import sharding
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.learner import Learner
from agentrl_jax.train.objective import policy_objective
from bench import tiny
from bench.line_peer import Pythons
from launch.planning import chips
from launch.planning.chips import parse_slice
from launch.planning.compiler.collectives import bytes_by_kind, collectives
from launch.planning.compiler.hlo import Module

MODEL = ModelConfig(
  vocab_size=32768,
  width=4096,
  mlp_width=12288,
  num_layers=2,
  num_heads=32,
  num_kv_heads=8,
  head_dim=128,
  qk_norm=True,
)
TOKENS, BYTES = 1024, 2
SLICES = {8: "v5p:2x2x2", 16: "v5p:2x2x4", 64: "v5p:4x4x4"}
MESHES = ({"fsdp": 8}, {"fsdp": 16}, {"fsdp": 64}, {"data": 8}, {"tensor": 8})
DEADLINE_S = 600


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row in a process with the devices; returns JSON values."""
  del pairs, pythons
  flags = f"--xla_force_host_platform_device_count={max(SLICES)}"
  done = subprocess.run(
    [sys.executable, "-m", "bench.learner.collectives"],
    env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    stdout=subprocess.PIPE,
    check=True,
    timeout=DEADLINE_S,
  )
  found: dict[str, object] = json.loads(done.stdout)
  return found


def main() -> None:
  """Prints the row."""
  json.dump(
    {
      "work": {
        "model": tiny.work_of(MODEL),
        "tokens_per_row": TOKENS,
        "dtype": "bfloat16",
      },
      "compiled_for": "TPU v5p" if chips.has_compiler() else "CPU",
      "meshes": [_row(mesh) for mesh in MESHES],
    },
    sys.stdout,
  )


def _row(axes: dict[str, int]) -> dict[str, object]:
  ((axis, n),) = axes.items()
  began = time.perf_counter()
  mesh = sharding.make_mesh(axes, _devices(n))
  text, num_params = _gradient(mesh, rows=1 if axis == "tensor" else n)
  found = collectives(Module(text), num_devices=n)
  by_kind = bytes_by_kind(found)
  due = _formula(axis, n, num_params)
  return {
    "mesh": axes,
    "mib_by_kind": {kind: size / 2**20 for kind, size in by_kind.items()},
    "mib_due": due / 2**20,
    "of_formula": sum(by_kind.values()) / due,
    "compile_s": time.perf_counter() - began,
  }


def _devices(n: int):
  if chips.has_compiler():
    return chips.describe(parse_slice(SLICES[n]))
  return jax.devices()[:n]


def _gradient(mesh, rows: int) -> tuple[str, int]:
  remat = "full" if mesh.shape["fsdp"] > 1 else "none"
  compute = ComputeConfig(dtype="bfloat16", scan_layers=True, remat=remat)
  policy = Policy(MODEL, compute, mesh)
  loss = tiny.loss_config(token_chunk=TOKENS)
  objective = policy_objective(policy, loss, temperature=1.0)
  learner = Learner(policy, objective, optax.adamw(1e-4), mesh)
  where = sharding.batch_sharding(mesh)
  micro_batch = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
    tiny.make_micro_batch(rows, TOKENS),
  )
  platform = mesh.devices.flat[0].platform
  traced = learner.traced(micro_batch)["gradient"]
  text = traced.lower(lowering_platforms=(platform,)).compile().as_text()
  params = policy.abstract_params()
  return text, sum(math.prod(x.shape) for x in jax.tree.leaves(params))


def _formula(axis: str, n: int, num_params: int) -> float:
  share = BYTES * (n - 1) / n
  if axis == "tensor":
    sums = 4 * MODEL.num_layers + 2
    return sums * 2 * share * TOKENS * MODEL.width
  if axis == "data":
    return 2 * share * num_params
  return (3 if chips.has_compiler() else 4) * share * num_params


if __name__ == "__main__":
  main()
