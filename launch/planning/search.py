"""Searches the shapes of a mesh, and the largest batches that fit.

Every shape that divides the model is estimated by formula first; the most
promising ones are compiled, and only compiled shapes that fit are ranked.

Formulas, of one chip and micro-batch, with n chips, t tensor, f fsdp and s
sequence shares, N weights, B bytes of a number, T tokens in all, D width, L
layers: fsdp gathers the weights of its tensor share twice and sends gradients
once, 3 (f - 1) / f N B / t; tensor parallelism sums activations four times
forward and backward, and twice more if layers are computed again; sequence
parallelism gathers keys and values forward, backward and again. Between
slices they are those of `exchanged_between_slices`.

A program's memory grows linearly with its rows or slots. Two compiled programs
give the line; the size at which it reaches the chip's memory is compiled too,
and only compiled sizes are reported.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping

import jax.numpy as jnp

from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.sharding import MESH_AXES, row_shares
from agentrl_jax.train.token_logprobs import TOKEN_CHUNK
from launch.config.settings import Settings
from launch.planning import roofline
from launch.planning.chips import Slice
from launch.planning.programs import learner_load
from launch.planning.roofline import Attempts
from launch.planning.study import Judgement, Planner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
  """A mesh, its estimate, and its compiled result."""

  mesh: Mapping[str, int]
  rows: int
  estimate_s: float  # per token
  exchanged_s: float = 0.0  # per token, by formula: orders equal estimates
  judged: Judgement | None = None
  is_own: bool = False  # the mesh of the config

  @property
  def seconds_per_token(self) -> float:
    """The bound of its gradient, if it was compiled and fits."""
    if self.judged is None or not self.judged.fits:
      return float("inf")
    bound = self.judged.roofline
    return bound.step_s / self.judged.tokens if bound else float("inf")


def search(
  planner: Planner,
  settings: Settings,
  *,
  num_compiled: int,
  own: Judgement | None = None,
  tell: Callable[[str], None] = lambda _: None,
) -> list[Candidate]:
  """Compiles the `num_compiled` most promising meshes; returns fastest first.

  The config's own mesh is among them if its gradient was compiled: `own`. It is
  not compiled again.
  """
  slice_ = planner.deployment.learner
  candidates = estimates(settings, slice_, planner.deployment.attempts)
  found = []
  if own is not None:
    candidate = estimate(
      settings, settings.mesh, slice_, planner.deployment.attempts
    )
    found.append(dataclasses.replace(candidate, judged=own, is_own=True))
    candidates = [c for c in candidates if c.mesh != candidate.mesh]
  for candidate in candidates[:num_compiled]:
    tell(shape_name(candidate.mesh))
    found.append(compiled(planner, settings, candidate))
  return sorted(found, key=lambda c: (c.seconds_per_token, c.estimate_s))


def compiled(
  planner: Planner, settings: Settings, candidate: Candidate
) -> Candidate:
  """Returns the candidate with its gradient compiled, of as many rows."""
  changed = with_rows(with_mesh(settings, candidate.mesh), candidate.rows)
  gradient = planner.programs(changed, ("learner",))[0]
  judged = planner.judge(changed, gradient)
  return dataclasses.replace(candidate, judged=judged)


def estimates(
  settings: Settings, slice_: Slice, attempts: Attempts | None = None
) -> list[Candidate]:
  """Every mesh of a slice that divides the model, the most promising first."""
  candidates = [
    estimate(settings, mesh, slice_, attempts)
    for mesh in meshes_of(settings, slice_)
  ]
  return sorted(candidates, key=lambda c: (c.estimate_s, c.exchanged_s))


def shape_name(mesh: Mapping[str, int]) -> str:
  """Name such as fsdp=16 tensor=2; axes of one share are left out."""
  parts = [f"{axis}={size}" for axis, size in mesh.items() if size > 1]
  return " ".join(parts) or "one chip"


def estimate(
  settings: Settings,
  mesh: Mapping[str, int],
  slice_: Slice,
  attempts: Attempts | None = None,
) -> Candidate:
  """Seconds per token by formula; infinite if the state alone does not fit."""
  changed = with_mesh(settings, mesh)
  load = learner_load(changed, attempts, "splash")
  work = roofline.gradient(
    changed.model, changed.compute, load, kernel="splash"
  )
  received = exchanged(changed) + summed(changed)
  links_s = received / slice_.chip.link_bandwidth
  network_s = (
    exchanged_between_slices(changed, slice_.num_slices)
    / slice_.chip.network_bandwidth
  )
  compute_s = work.of_busiest(slice_.num_devices) / slice_.chip.flops
  estimate_s = max(compute_s, links_s, network_s) / load.tokens
  if state_bytes(changed) > slice_.chip.memory:
    estimate_s = float("inf")
  return Candidate(
    mesh=mesh,
    rows=changed.batch.micro_batch,
    estimate_s=estimate_s,
    exchanged_s=(links_s + network_s) / load.tokens,
  )


def state_bytes(settings: Settings) -> float:
  """Params, two moments and gradients in float32, and the reference.

  Under adapters, frozen params in the dtype of the computation instead.
  """
  each = float(_number_bytes(settings)) if settings.lora else 4 * 4.0
  total = each * _params_of_chip(settings.model, settings.mesh)
  if settings.loss.kl_coefficient and settings.reference.place == "resident":
    model = settings.reference_model
    total += _number_bytes(settings) * _params_of_chip(model, settings.mesh)
  return total


def _params_of_chip(c: ModelConfig, mesh: Mapping[str, int]) -> float:
  """Returns the numbers of params that a chip holds."""
  return _gathered(c, mesh) / mesh["fsdp"]


def _gathered(c: ModelConfig, mesh: Mapping[str, int]) -> float:
  """Returns the numbers of params that a chip has gathered along fsdp."""
  embeddings = roofline.embedding_params(c) / mesh["tensor"]
  return _gathered_layers(c, mesh) + embeddings


def _gathered_layers(c: ModelConfig, mesh: Mapping[str, int]) -> float:
  """Returns those of layers alone, of which `expert` splits experts."""
  experts = roofline.expert_params(c, c.num_experts)
  elsewhere = experts * (1 - 1 / mesh["expert"])
  return (roofline.layer_params(c) - elsewhere) / mesh["tensor"]


def kept_bytes(settings: Settings) -> float:
  """Bytes that a gradient has on a chip at least, beside the state.

  The input of every layer, which each choice of compute.remat keeps, and the
  output matrix gathered along fsdp.
  """
  c = settings.model
  number = _number_bytes(settings)
  inputs = c.num_layers * _tokens_of_chip(settings) * c.width
  head = c.vocab_size * c.width / settings.mesh["tensor"]
  return number * (inputs + head)


def gradient_bytes(settings: Settings) -> float:
  """Bytes of a chip that a gradient with compute.remat="full" takes, roughly.

  State and `kept_bytes`; gradients of both vocabulary matrices, unsplit, and
  three tiles of logits in float32; two layers' weights; five activations of an
  MLP, and eight of the width of each token's experts. Of mixtures, most of
  whose weights are in layers, also gradients of the scan beside their sum, and
  weights that are cast before it. docs/plan.md compares the terms with a
  compiled program.
  """
  c, mesh, batch = settings.model, settings.mesh, settings.batch
  number = _number_bytes(settings)
  rows = batch.micro_batch / row_shares(mesh)
  chunk = min(
    settings.loss.token_chunk or TOKEN_CHUNK,
    batch.row_length / mesh["sequence"],
  )
  entries = c.vocab_size / mesh["tensor"]
  here = _tokens_of_chip(settings)
  scanned = 0.0
  for_all = c.shared_width if c.num_experts else c.mlp_width
  activations = 5 * here * for_all / mesh["tensor"]
  if c.num_experts:
    # A device has a row for each expert that any token of its group may choose.
    rows_of_experts = here * mesh["expert"] * c.experts_per_token
    activations += rows_of_experts * (5 * c.mlp_width + 8 * c.width)
    each = 4 if number == 4 else 4 + number  # in float32 nothing is cast
    scanned = each * _gathered_layers(c, mesh) / mesh["fsdp"]
  return (
    state_bytes(settings)
    + scanned
    + kept_bytes(settings)
    + 4 * 2 * entries * c.width
    + 4 * 3 * rows * chunk * entries
    + number * 2 * _gathered_layers(c, mesh) / c.num_layers
    + number * activations
  )


def _tokens_of_chip(settings: Settings) -> float:
  mesh, batch = settings.mesh, settings.batch
  shares = row_shares(mesh) * mesh["sequence"]
  return batch.micro_batch * batch.row_length / shares


def exchanged(settings: Settings) -> float:
  """Bytes that a chip receives for the gradient of one micro-batch."""
  c, mesh = settings.model, settings.mesh
  number = _number_bytes(settings)
  weights = _gathered(c, mesh) * number
  here = _tokens_of_chip(settings)
  again = settings.compute.remat != "none"
  size = 0.0
  if mesh["fsdp"] > 1:
    size += 3 * weights * (mesh["fsdp"] - 1) / mesh["fsdp"]
  if mesh["data"] * mesh["sequence"] > 1:
    size += 2 * weights / mesh["fsdp"]
  elif mesh["expert"] > 1:  # splits no other params
    others = roofline.num_params(c) - roofline.expert_params(c, c.num_experts)
    size += 2 * others * number / mesh["fsdp"] / mesh["tensor"]
  if mesh["expert"] > 1:
    gathered = (mesh["expert"] - 1) * here * c.width * number
    size += (4 + again) * gathered * c.num_mixtures
  if mesh["tensor"] > 1:
    sums = (4 + 2 * again) * c.num_layers
    if c.shared_experts:  # beside those of the other experts
      sums += (2 + again) * c.num_mixtures
    share = (mesh["tensor"] - 1) / mesh["tensor"]
    size += 2 * sums * here * c.width * number * share
  if mesh["sequence"] > 1:
    pairs = 2 * c.num_kv_heads * c.head_dim / mesh["tensor"]
    rest = mesh["sequence"] - 1
    size += (2 + again) * here * rest * pairs * number * c.num_layers
  return size


# Rows of a matrix, of a bfloat16 tile in a TPU's memory.
_TILE_ROWS = 16


def summed(settings: Settings) -> float:
  """Bytes that a chip receives beyond `exchanged` where no tile is whole.

  If a chip's share of the width is no multiple of a tile's rows, the compiler
  sums gradients on all chips and cuts them, in place of scattering them.
  """
  mesh, width = settings.mesh, settings.model.width
  shares = mesh["fsdp"]
  if shares == 1 or width // shares % _TILE_ROWS == 0:
    return 0.0
  weights = _gathered(settings.model, mesh) * _number_bytes(settings)
  return weights * (shares - 1) / shares


def exchanged_between_slices(settings: Settings, num_slices: int) -> float:
  """Bytes that a chip receives from other slices for the same.

  Each chip exchanges its share of what its slice has: copies within a slice sum
  parts of the gradients before these cross. Over `fsdp` the compiler sums the
  gradients of layers where it could scatter them (libtpu 0.0.42.1).
  """
  c, mesh, batch = settings.model, settings.mesh, settings.batch
  number, rest = _number_bytes(settings), (num_slices - 1) / num_slices
  layers, head = roofline.layer_params(c), roofline.head_weights(c)
  shares = row_shares(mesh) * mesh["sequence"]
  # Of the weights, in the gradients that a chip sums.
  share = num_slices / shares / mesh["tensor"]
  if settings.slices.over == "data":
    # The embedding's gradient is in float32.
    return 2 * rest * share * (number * (layers + head) + 4 * head)
  gathered = num_slices / mesh["fsdp"] / mesh["tensor"]
  held = _gathered_layers(c, mesh) * mesh["tensor"]
  weights = (2 * held + head) * gathered + (2 * layers + head) * share
  here = batch.micro_batch * batch.row_length / shares  # tokens of a chip
  return rest * number * (weights + 2 * here * c.width)


def _number_bytes(settings: Settings) -> int:
  return int(jnp.dtype(settings.compute.dtype).itemsize)


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
  shares = row_shares(mesh)
  rows = max(settings.batch.micro_batch // shares, 1) * shares
  return with_rows(dataclasses.replace(settings, mesh=dict(mesh)), rows)


def meshes(settings: Settings, num_chips: int) -> Iterator[dict[str, int]]:
  """Yields every mesh of `num_chips` that divides the model and its rows."""
  for sizes in _factors(num_chips, len(MESH_AXES)):
    mesh = dict(zip(MESH_AXES, sizes, strict=True))
    if _divides(settings, mesh):
      yield mesh


def meshes_of(settings: Settings, slice_: Slice) -> Iterator[dict[str, int]]:
  """Yields those of a slice; an axis that spans slices has a part in each."""
  for mesh in meshes(settings, slice_.num_devices):
    if mesh[settings.slices.over] % slice_.num_slices == 0:
      yield mesh


def _divides(settings: Settings, mesh: Mapping[str, int]) -> bool:
  c, length = settings.model, settings.batch.row_length
  return not (
    any(
      n % mesh["tensor"]
      for n in (c.num_kv_heads, c.vocab_size, *c.mlp_parts.values())
    )
    or c.num_experts % (mesh["tensor"] * mesh["expert"])
    or (mesh["expert"] > 1 and not c.num_experts)
    or c.width % mesh["fsdp"]
    or length % (128 * mesh["sequence"])
  )


def _factors(product: int, parts: int) -> Iterator[tuple[int, ...]]:
  divisors = [n for n in range(1, product + 1) if product % n == 0]
  for head in itertools.product(divisors, repeat=parts - 1):
    if product % math.prod(head) == 0:
      yield (*head, product // math.prod(head))


_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Largest:
  """The largest size that was compiled and fits."""

  setting: str
  size: int  # 0: not even the smallest fits
  judged: Judgement  # at that size


def most_rows(planner: Planner, settings: Settings) -> Largest:
  """Finds the largest train.micro_batch, a multiple of the rows' shares."""
  step = row_shares(settings.mesh)

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
  setting: str, judge: Callable[[int], Judgement], start: int, step: int
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
