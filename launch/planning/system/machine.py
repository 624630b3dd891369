"""Predicts by arithmetic if a run fits one machine, and how fast it is there.

Nothing is compiled: what lies in memory between programs is counted exactly,
what a gradient needs beside it by the formulas of `launch.planning.search`.
Rates of GPUs are the makers' (dense products on tensor cores, float32 as TF32).
Those of a CPU are of this machine's cores, taken as a Xeon's at 2.5 GHz was
measured: 60 GFLOP/s of one core in products of matrices, 6 GB/s of memory.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import ml_collections
from rich.console import Console

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.attention.packed import choose
from launch.config.settings import Settings, read_settings
from launch.planning import roofline
from launch.planning.chips import GIB
from launch.planning.programs import learner_load
from launch.planning.report import make_table
from launch.planning.residents import learner_residents, rollout_residents
from launch.planning.roofline import Attempts
from launch.planning.search import gradient_bytes, state_bytes
from launch.planning.study import RESERVE

_CORE_FLOPS, _CORE_BANDWIDTH = 6e10, 6e9
_LIMIT = pathlib.Path("/sys/fs/cgroup/memory.max")


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
  gradient_s: float  # of one micro-batch
  gradient_tokens: float  # of trajectories in it
  decode_s: float  # of one step of all policy slots
  answers: int  # that a step continues

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
  if _LIMIT.is_file() and (limit := _LIMIT.read_text().strip()).isdecimal():
    memory = min(memory, int(limit))
  rate = _CORE_FLOPS * cores  # bfloat16 products are made of float32 ones
  return MachineRates(
    name=f"cpu, {cores} cores",
    platform="cpu",
    memory=memory,
    bandwidth=_CORE_BANDWIDTH * cores,
    flops={"bfloat16": rate, "float32": rate},
  )


def estimate(
  settings: Settings,
  machine: MachineRates,
  attempts: Attempts | None,
  utilisation: float,
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
  model = dataclasses.replace(
    settings.model, experts_per_token=settings.model.num_experts
  )
  settings = dataclasses.replace(settings, model=model)
  mesh = sharding.make_mesh({}, jax.devices()[:1])
  kernel, _ = choose(
    settings.compute, machine.platform, settings.model.head_dim
  )
  load = learner_load(settings, attempts, kernel)
  work = roofline.gradient(
    settings.model,
    settings.compute,
    load,
    kernel=kernel,
    frozen=bool(settings.lora),
  )
  rate = machine.flops[settings.compute.dtype] * utilisation
  return MachinePlan(
    machine=machine,
    parts=_parts(settings, mesh),
    gradient_s=work.executed / rate,
    gradient_tokens=load.of_trajectories,
    decode_s=_decode_s(settings, rate, machine.bandwidth * utilisation),
    answers=sum(settings.engine.slots),
  )


def _parts(settings: Settings, mesh: jax.sharding.Mesh) -> dict[str, int]:
  learner = learner_residents(settings, mesh)
  rollout = rollout_residents(settings, mesh, dtype="float32")
  passing = gradient_bytes(settings) - state_bytes(settings)
  if settings.compute.remat == "none":  # every layer keeps what it computed
    c, batch = settings.model, settings.batch
    tokens = batch.micro_batch * batch.row_length
    size = 4 if settings.compute.dtype == "float32" else 2
    channels = 6 * c.num_layers * c.width + 4 * roofline.mlp_channels(c)
    passing += size * tokens * channels
  return {**learner, **rollout, "activations of a gradient": int(passing)}


def _decode_s(settings: Settings, rate: float, bandwidth: float) -> float:
  """Seconds of a decode step in every policy slot: products, or memory."""
  c, engine = settings.model, settings.engine
  weights = roofline.layers_weights(c) + roofline.head_weights(c)
  size = 4 if settings.compute.dtype == "float32" else 2
  read = size * weights
  if engine.weights != "full":
    read = weights + (size - 1) * c.tied_embedding * roofline.head_weights(c)
  tokens = roofline.mean_over_layers(
    c, lambda window: min(engine.context / 2, window or engine.context)
  )
  cached = 2 * c.num_layers * c.num_kv_heads * c.head_dim * tokens
  return sum(
    max(2 * weights * slots / rate, (read + size * slots * cached) / bandwidth)
    for slots in engine.slots
  )


def advise(
  config: ml_collections.ConfigDict, machine: MachineRates, utilisation: float
) -> dict[str, Any]:
  """Returns keys to set, all at once, for a run that fits; {} if none does.

  Keys that do not change what is learned are tried first.
  """
  keys: dict[str, Any] = {}
  for key, value in _changes(config):
    changed = ml_collections.ConfigDict(config.to_dict())
    changed.update_from_flattened_dict({**keys, key: value})
    try:
      plan = estimate(read_settings(changed), machine, None, utilisation)
    except ConfigError:
      continue  # with this model or these tasks it means nothing
    keys[key] = value
    if plan.left >= 0:
      return keys
  return {}


def _changes(config: ml_collections.ConfigDict) -> Iterator[tuple[str, Any]]:
  """Yields keys and values that save memory, the cheapest first."""
  if config.compute.remat != "full":
    yield "compute.remat", "full"
  slots = tuple(config.engine.slots)
  while max(slots) > 8:
    slots = tuple(max(each // 2, 4) for each in slots)
    yield "engine.slots", slots
  if config.train.micro_batch > 1:
    yield "train.micro_batch", 1
  if config.loss.kl_coefficient and config.reference.place == "resident":
    yield "reference.place", "offloaded"
  if config.train.row_length > config.episode.max_tokens:
    yield "train.row_length", int(config.episode.max_tokens)
  if not config.lora.rank:
    yield "lora.rank", 16
  if config.compute.dtype == "float32":
    yield "compute.dtype", "bfloat16"


def refusal(plan: MachinePlan, keys: Mapping[str, Any]) -> str:
  """Says what does not fit and what to change; "" if all fits."""
  if plan.left >= 0:
    return ""
  largest = sorted(plan.parts.items(), key=lambda part: -part[1])[:3]
  held = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest)
  flags = " ".join(
    f"--config.{key}={str(value).replace(' ', '')}"
    for key, value in keys.items()
  )
  remedy = f"it fits with {flags}" if flags else "no setting makes it fit"
  return (
    f"the run needs {-plan.left / GIB:.1f} GiB more than {plan.machine.name} "
    f"has (most: {held} GiB): {remedy}"
  )


def show(console: Console, plan: MachinePlan, utilisation: float) -> None:
  """Prints bytes and rates as a table."""
  share = f"{utilisation:.0%} of its rates"
  table = make_table(f"One machine: {plan.machine.name}, at {share}", "", "")
  for name, size in plan.parts.items():
    table.add_row(f"GiB: {name}", f"{size / GIB:.2f}")
  table.add_row("GiB: left", f"{plan.left / GIB:.2f}")
  table.add_section()
  rate = plan.gradient_tokens / plan.gradient_s
  table.add_row("s of a gradient of a micro-batch", f"{plan.gradient_s:.3g}")
  table.add_row("trajectories' tokens/s, learner alone", f"{rate:,.0f}")
  table.add_row(
    f"s of a decode step of {plan.answers} answers", f"{plan.decode_s:.3g}"
  )
  table.add_row(
    "sampled tokens/s, every slot busy", f"{plan.answers / plan.decode_s:,.0f}"
  )
  console.print(table)
  console.print(
    "Estimated by arithmetic, nothing was compiled: activations by a formula, "
    "caches at their longest, rates as if programs reached the share above."
  )


def as_json(plan: MachinePlan, keys: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the same as values, and the keys that make it fit."""
  return {
    "device": plan.machine.name,
    "bytes": dict(plan.parts),
    "bytes_left": plan.left,
    "gradient_s": plan.gradient_s,
    "learner_tokens_per_s": plan.gradient_tokens / plan.gradient_s,
    "decode_s": plan.decode_s,
    "sampled_tokens_per_s": plan.answers / plan.decode_s,
    "keys": {key: str(value) for key, value in keys.items()},
  }
