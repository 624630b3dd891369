"""Arithmetic of a learner's mesh: memory, exchanges and time of its gradient.

Formulas, of one chip and micro-batch, with n chips, t tensor, f fsdp and s
sequence shares, N weights, B bytes of a number, T tokens in all, D width, L
layers: fsdp gathers the weights of its tensor share twice and sends gradients
once, 3 (f - 1) / f N B / t; tensor parallelism sums activations four times
forward and backward, and twice more if layers are computed again; sequence
parallelism gathers keys and values forward, backward and again. Between
slices they are those of `exchanged_between_slices`.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

import jax.numpy as jnp

from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.sharding import MESH_AXES, row_shares
from agentrl_jax.train.token_logprobs import TOKEN_CHUNK
from launch.config.settings import Settings
from launch.planning import roofline
from launch.planning.chips import Slice
from launch.planning.programs import learner_load
from launch.planning.roofline import Attempts, Roofline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """A mesh, and what arithmetic says of a micro-batch's gradient on it."""

  mesh: Mapping[str, int]
  rows: int
  tokens: int
  num_bytes: float  # of a chip
  roofline: Roofline
  fits: bool


def estimates(
  settings: Settings, slice_: Slice, attempts: Attempts | None = None
) -> list[Estimate]:
  """Every mesh of a slice that divides the model: those that fit come first,
  and of these the fastest.
  """
  found = [
    estimate(settings, mesh, slice_, attempts)
    for mesh in meshes_of(settings, slice_)
  ]
  return sorted(
    found,
    key=lambda e: (
      0 if e.fits else e.num_bytes,
      e.roofline.step_s / e.tokens,
      e.roofline.in_turn_s / e.tokens,
    ),
  )


def shape_name(mesh: Mapping[str, int]) -> str:
  """Name such as fsdp=16 tensor=2; axes of one share are left out."""
  parts = [f"{axis}={size}" for axis, size in mesh.items() if size > 1]
  return " ".join(parts) or "one chip"


def estimate(
  settings: Settings,
  mesh: Mapping[str, int],
  slice_: Slice,
  attempts: Attempts | None = None,
) -> Estimate:
  """Time and memory by formula; traffic in a chip's memory is left out."""
  changed = with_mesh(settings, mesh)
  load = learner_load(changed, attempts, "splash")
  work = roofline.gradient(
    changed.model, changed.compute, load, kernel="splash"
  )
  received = exchanged(changed) + summed(changed)
  crossing = exchanged_between_slices(changed, slice_.num_slices)
  num_bytes = gradient_bytes(changed)
  return Estimate(
    mesh=mesh,
    rows=changed.batch.micro_batch,
    tokens=load.tokens,
    num_bytes=num_bytes,
    roofline=Roofline(
      compute_s=work.of_busiest(slice_.num_devices) / slice_.chip.flops,
      memory_s=0.0,
      links_s=received / slice_.chip.link_bandwidth,
      waiting_s=0.0,
      network_s=crossing / slice_.chip.network_bandwidth,
    ),
    fits=num_bytes <= slice_.room,
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


def gradient_bytes(settings: Settings) -> float:
  """Bytes of a chip that a gradient takes, roughly.

  State; the input of every layer, or what it computed if it is not computed
  again; the output matrix gathered along fsdp; gradients of both vocabulary
  matrices, unsplit, and three tiles of logits in float32; two layers' weights;
  five activations of an MLP, and eight of the width of each token's experts;
  what one layer of states takes. Of mixtures, most of whose weights are in
  layers, also gradients of the scan beside their sum, and weights that are cast
  before it.
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
  # Of what layers read of a token, which are inputs too, also a gradient.
  kept = c.num_layers * (c.width + 2 * c.layer_input_dim)
  if settings.compute.remat in ("none", "dots"):
    kept = 7 * kept + 4 * roofline.mlp_channels(c)
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
    + number * (here * kept + entries * c.width)
    + 4 * 2 * entries * c.width
    + 4 * 3 * rows * chunk * entries
    + number * 2 * _gathered_layers(c, mesh) / c.num_layers
    + number * activations
    + here / mesh["tensor"] * roofline.delta_bytes(c, is_tree=batch.sharing > 1)
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
    channels = c.head_dim + (c.value_dim or c.head_dim)
    pairs = c.num_kv_heads * channels / mesh["tensor"]
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
  if settings.slices.over_slices == "data":
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
    if mesh[settings.slices.over_slices] % slice_.num_slices == 0:
      yield mesh


def _divides(settings: Settings, mesh: Mapping[str, int]) -> bool:
  c, length = settings.model, settings.batch.row_length
  return not (
    any(
      n % mesh["tensor"]
      for n in (c.shared_kv_heads, c.vocab_size, *c.mlp_parts.values())
    )
    or c.num_experts % (mesh["tensor"] * mesh["expert"])
    or (mesh["expert"] > 1 and not c.num_experts)
    or math.gcd(c.width, c.latent_dim, c.query_rank) % mesh["fsdp"]
    or length % (128 * mesh["sequence"])
  )


def _factors(product: int, parts: int) -> Iterator[tuple[int, ...]]:
  divisors = [n for n in range(1, product + 1) if product % n == 0]
  for head in itertools.product(divisors, repeat=parts - 1):
    if product % math.prod(head) == 0:
      yield (*head, product // math.prod(head))
