"""Mixtures of experts: each token's MLP is that of the few experts it chooses.

Axes: N tokens, E experts, K experts of a token, D width, F channels of an
expert. No token is dropped, and shapes are fixed. On a mesh the experts are
split over `expert` and `tensor`. `expert` splits rows too: a device gathers the
tokens of its `expert` group, adds up the outputs of its own experts, and the
sums are scattered back. For n devices in the group and tokens of D channels
this moves 2 (n - 1) N D numbers to each device; sending each token to its K
experts' devices alone would move up to 2 K N D (n - 1) / n, which is less only
for n > K.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from agentrl_jax.model import sharding
from agentrl_jax.model.attention.packed import platform_of
from agentrl_jax.model.config import ModelConfig


class Experts(nnx.Module):
  """The router's matrix, and one SwiGLU's matrices for each expert."""

  def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
    def matrix(*shape: int, gain: float = 1.0) -> nnx.Param:
      scale = gain * shape[-2] ** -0.5
      return nnx.Param(jax.random.normal(rngs.params(), shape) * scale)

    inwards = (c.num_experts, c.width, c.mlp_width)
    outwards = (c.num_experts, c.mlp_width, c.width)
    self.router = matrix(c.width, c.num_experts)
    self.gate, self.up = matrix(*inwards), matrix(*inwards)
    self.down = matrix(*outwards, gain=(2 * c.num_layers) ** -0.5)


def apply(
  experts: Experts,
  x_BTD: jax.Array,
  *,
  config: ModelConfig,
  mesh: Mesh | None,
  splits_rows: bool,
) -> jax.Array:
  """Adds up the outputs of each token's experts, [B, T, D].

  With `splits_rows`, rows and tokens are split over the mesh, as in training.
  """
  matrices = (experts.router, experts.gate, experts.up, experts.down)
  arrays = x_BTD, *(matrix[...].astype(x_BTD.dtype) for matrix in matrices)
  on_device = functools.partial(
    _apply_on_device,
    config=config,
    # Compilers for other platforms mask a dense product for each expert.
    is_grouped=platform_of(mesh) == "tpu",
  )
  if not sharding.is_split(mesh):
    return on_device(*arrays)
  axes = sharding.spec_on(mesh, "experts")[0]
  rows = sharding.spec("rows", "tokens", None) if splits_rows else jax.P()
  return jax.shard_map(
    functools.partial(on_device, axes=axes, splits_rows=splits_rows),
    mesh=mesh,
    in_specs=(rows, jax.P(), jax.P(axes), jax.P(axes), jax.P(axes)),
    out_specs=rows,
  )(*arrays)


def _apply_on_device(
  x_BTD: jax.Array,
  router_DE: jax.Array,
  *matrices: jax.Array,
  config: ModelConfig,
  is_grouped: bool,
  axes: tuple[str, ...] = (),
  splits_rows: bool = False,
) -> jax.Array:
  """Applies the experts of one device; `axes` of the mesh split them."""
  x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
  weight_NK, expert_NK = route(x_ND, router_DE, config)
  if splits_rows:
    x_ND, weight_NK, expert_NK = (
      jax.lax.all_gather(x, "expert", tiled=True)
      for x in (x_ND, weight_NK, expert_NK)
    )
  if axes:
    expert_NK -= jax.lax.axis_index(axes) * len(matrices[0])
  apply_experts = apply_grouped if is_grouped else apply_all
  y_ND = apply_experts(x_ND, weight_NK, expert_NK, *matrices)
  if splits_rows:
    y_ND = jax.lax.psum_scatter(y_ND, "expert", tiled=True)
    axes = tuple(axis for axis in axes if axis != "expert")
  if axes:
    y_ND = jax.lax.psum(y_ND, axes)
  return y_ND.reshape(x_BTD.shape)


def route(
  x_ND: jax.Array, router_DE: jax.Array, c: ModelConfig
) -> tuple[jax.Array, jax.Array]:
  """Chooses experts; returns their weights and numbers, [N, K], in float32.

  All products are in float32: in bfloat16 near experts change places.
  """
  logit_NE = jnp.matmul(
    x_ND.astype(jnp.float32),
    router_DE.astype(jnp.float32),
    precision=jax.lax.Precision.HIGHEST,
  )
  weight_NK, expert_NK = jax.lax.top_k(
    jax.nn.softmax(logit_NE), c.experts_per_token
  )
  if c.normed_experts:
    weight_NK /= weight_NK.sum(-1, keepdims=True)
  return weight_NK, expert_NK


def apply_grouped(
  x_ND: jax.Array,
  weight_NK: jax.Array,
  expert_NK: jax.Array,
  gate_EDF: jax.Array,
  up_EDF: jax.Array,
  down_EFD: jax.Array,
) -> jax.Array:
  """Sorts tokens by expert, and computes one product per group, [N, D].

  Experts whose number is not that of one of the matrices add nothing.
  """
  num_experts, (num_tokens, width) = len(gate_EDF), x_ND.shape
  is_ours_NK = (expert_NK >= 0) & (expert_NK < num_experts)
  expert_P = jnp.where(is_ours_NK, expert_NK, num_experts).reshape(-1)
  order_P = jnp.argsort(expert_P)
  place_P = jnp.argsort(order_P)
  size_E = jnp.bincount(expert_P, length=num_experts + 1)[:-1]
  # What stands behind the last group is undefined.
  is_ours_P1 = (jnp.arange(len(order_P)) < size_E.sum())[:, None]
  x_NKD = jnp.broadcast_to(x_ND[:, None], (*expert_NK.shape, width))
  x_PD = _moved(x_NKD.reshape(-1, width), order_P, place_P)
  x_PD = jnp.where(is_ours_P1, x_PD, 0)
  y_PF = jax.nn.silu(jax.lax.ragged_dot(x_PD, gate_EDF, size_E))
  y_PF *= jax.lax.ragged_dot(x_PD, up_EDF, size_E)
  y_PD = jax.lax.ragged_dot(y_PF, down_EFD, size_E)
  y_PD = _moved(jnp.where(is_ours_P1, y_PD, 0), place_P, order_P)
  y_NKD = y_PD.reshape(num_tokens, -1, width) * weight_NK[..., None]
  return y_NKD.sum(1).astype(x_ND.dtype)


def apply_all(
  x_ND: jax.Array,
  weight_NK: jax.Array,
  expert_NK: jax.Array,
  gate_EDF: jax.Array,
  up_EDF: jax.Array,
  down_EFD: jax.Array,
) -> jax.Array:
  """Computes `apply_grouped` by every expert of every token."""
  is_chosen_NKE = expert_NK[..., None] == jnp.arange(len(gate_EDF))
  weight_NE = jnp.sum(is_chosen_NKE * weight_NK[..., None], axis=1)
  y_NEF = jax.nn.silu(jnp.einsum("nd,edf->nef", x_ND, gate_EDF))
  y_NEF *= jnp.einsum("nd,edf->nef", x_ND, up_EDF)
  y_NEF *= weight_NE[..., None].astype(x_ND.dtype)
  return jnp.einsum("nef,efd->nd", y_NEF, down_EFD)


@jax.custom_vjp
def _moved(x_PD: jax.Array, order_P: jax.Array, back_P: jax.Array) -> jax.Array:
  """Permutes rows; `back_P` inverts `order_P`, so that none are scattered."""
  del back_P
  return x_PD[order_P]


_moved.defvjp(
  lambda x, order, back: (x[order], back),
  lambda back, slope: (slope[back], None, None),
)
