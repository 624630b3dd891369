"""Predicts by arithmetic if a run fits one machine, and how fast it is there.

Nothing is compiled: what lies in memory between programs is counted exactly,
what a gradient needs beside it by `launch.planning.formulas`.
Rates of GPUs are the makers' (dense products on tensor cores, float32 as TF32).
Those of a CPU are of this machine's cores, taken as a Xeon's at 2.5 GHz was
measured: 60 GFLOP/s of one core in products of matrices, 6 GB/s of memory.
"""

import dataclasses
import math
import os
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import ml_collections
from rich.console import Console

from agentrl_jax.errors import ConfigError
from agentrl_jax.garbage import container_limit
from agentrl_jax.model import sharding
from agentrl_jax.model.attention.packed import choose
from launch.config.settings import Settings, read_settings
from launch.planning import roofline
from launch.planning.advice import Advice, learner_keys, rollout_keys, set_keys
from launch.planning.chips import GIB, RESERVE
from launch.planning.formulas import gradient_bytes, state_bytes
from launch.planning.programs import learner_load
from launch.planning.report import make_table
from launch.planning.residents import learner_residents, rollout_residents
from launch.planning.roofline import Attempts
from launch.planning.step import Rates

_CORE_FLOPS, _CORE_BANDWIDTH = 6e10, 6e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineRates:
  """Memory and rates of one device."""

  name: str
  platform: str  # as jax calls it
  memory: int  # bytes
  bandwidth: float  # bytes/s of its memory
  flops: Mapping[str, float]  # products and sums per second, by dtype


GPUS = {
  machine.name: machine
  for machine in (
    MachineRates(
      name="h100",
      platform="gpu",
      memory=int(79.6 * GIB),
      bandwidth=3.35e12,
      flops={"bfloat16": 9.89e14, "float32": 4.95e14},
    ),
    MachineRates(
      name="a100",
      platform="gpu",
      memory=int(80 * GIB),
      bandwidth=2.04e12,
      flops={"bfloat16": 3.12e14, "float32": 1.56e14},
    ),
    MachineRates(
      name="rtx4090",
      platform="gpu",
      memory=int(24 * GIB),
      bandwidth=1.01e12,
      flops={"bfloat16": 1.65e14, "float32": 8.3e13},
    ),
  )
}
DEVICES = ("cpu", *GPUS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachinePlan:
  """Bytes of a run on one machine by what they hold, and its rates."""

  machine: MachineRates
  parts: Mapping[str, int]
  rates: Rates

  @property
  def left(self) -> int:
    """Free bytes; below 0 if the run does not fit."""
    room = int(self.machine.memory * (1 - RESERVE))
    return room - sum(self.parts.values())


def machine_of(name: str) -> MachineRates:
  """Returns a GPU by its name; for "cpu", this machine's cores and memory."""
  if name in GPUS:
    return GPUS[name]
  cores = len(os.sched_getaffinity(0))
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  memory = int(min(memory, container_limit()))
  rate = _CORE_FLOPS * cores  # bfloat16 products are made of float32 ones
  return MachineRates(
    name=f"cpu, {cores} cores",
    platform="cpu",
    memory=memory,
    bandwidth=_CORE_BANDWIDTH * cores,
    flops={"bfloat16": rate, "float32": rate},
  )


def plan_machine(
  settings: Settings,
  machine: MachineRates,
  attempts: Attempts | None,
  share: float,
) -> MachinePlan:
  """Counts bytes, and seconds at a share of the machine's rates.

  Raises `ConfigError` if the config's mesh has more than one device.
  """
  if math.prod(settings.mesh.values()) > 1:
    raise ConfigError(
      f"mesh={dict(settings.mesh)} is for several devices, and --device plans "
      "one: set every axis to 1, or plan a slice with --topology"
    )
  # Off a TPU every expert is computed for every token: model/experts.py.
  c = settings.model
  c = dataclasses.replace(c, experts_per_token=c.num_experts)
  settings = dataclasses.replace(settings, model=c)
  mesh = sharding.make_mesh({}, jax.devices()[:1])
  widest = max(c.head_dim, c.global_head_dim)
  kernel, _ = choose(settings.compute, machine.platform, widest)
  load = learner_load(settings, attempts, kernel)
  frozen = bool(settings.lora)
  work = roofline.gradient(
    c, settings.compute, load, kernel=kernel, frozen=frozen
  )
  flops = machine.flops[settings.compute.dtype] * share
  bandwidth = machine.bandwidth * share
  weights = roofline.layers_weights(c) + roofline.head_weights(c)
  state = learner_residents(settings, mesh)
  passing = gradient_bytes(settings) - state_bytes(settings)
  return MachinePlan(
    machine=machine,
    parts={
      **state,
      **rollout_residents(settings, mesh, dtype="float32"),
      "activations of a gradient": int(passing),
    },
    rates=Rates(
      gradient_s=work.executed / flops,
      gradient_tokens=load.of_trajectories,
      forward_share=work.forward_share(frozen=frozen),
      apply_s=2 * (state["params"] + state["optimizer"]) / bandwidth,
      sampled_per_s=sum(settings.engine.slots)
      / _decode_s(settings, flops, bandwidth),
      prefilled_per_s=flops / (2 * weights),
    ),
  )


def _decode_s(settings: Settings, flops: float, bandwidth: float) -> float:
  """Seconds of a decode step in every policy slot: products, or memory."""
  c, engine = settings.model, settings.engine
  weights = roofline.layers_weights(c) + roofline.head_weights(c)
  size = jnp.dtype(settings.compute.dtype).itemsize
  read = size * weights
  if engine.weights != "full":
    read = weights + (size - 1) * c.tied_embedding * roofline.head_weights(c)
  cached = roofline.cached(
    c, lambda window: min(engine.context / 2, window or engine.context)
  )
  # A state is float32, and written as well.
  state = c.num_delta * c.delta_heads * c.delta_key_dim * c.delta_value_dim
  cached += 2 * 4 / size * state
  return sum(
    max(2 * weights * slots / flops, (read + size * slots * cached) / bandwidth)
    for slots in engine.slots
  )


def advise(
  config: ml_collections.ConfigDict, plan: MachinePlan, share: float
) -> Advice | None:
  """Returns keys to set, all at once, for a run that fits."""
  if plan.left >= 0:
    return None
  settings = read_settings(config)
  keys = [*rollout_keys(settings), *learner_keys(settings)]
  if not settings.lora:
    keys.append(("lora.rank", 16))
  return set_keys(
    config, keys, lambda s: plan_machine(s, plan.machine, None, share).left
  )


def refusal(plan: MachinePlan, advice: Advice | None) -> str:
  """Says what does not fit and what to change; "" if all fits."""
  if plan.left >= 0:
    return ""
  largest = sorted(plan.parts.items(), key=lambda part: -part[1])[:3]
  held = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest)
  remedy = (
    f"it fits with {advice.flags}" if advice else "no setting makes it fit"
  )
  return (
    f"the run needs {-plan.left / GIB:.1f} GiB more than {plan.machine.name} "
    f"has (most: {held} GiB): {remedy}"
  )


def show(console: Console, plan: MachinePlan) -> None:
  """Prints the bytes as a table."""
  table = make_table(f"Memory of {plan.machine.name}, GiB", "", "")
  for name, size in plan.parts.items():
    table.add_row(name, f"{size / GIB:.2f}")
  table.add_section()
  table.add_row("left", f"{plan.left / GIB:.2f}")
  console.print(table)
