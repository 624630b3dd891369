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
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from agentrl_jax.model import lora, quantization, sharding
from agentrl_jax.model.attention.packed import platform_of
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.layers.projection import ACTIVATE
from agentrl_jax.model.lora import LoraConfig

Activation = Callable[[jax.Array], jax.Array]


class Experts(nnx.Module):
  """The router's matrix, and one SwiGLU's matrices for each expert.

  The params of a router by sigmoids stay float32: `sharding.FLOAT32`.
  """

  def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
    def matrix(*shape: int, gain: float = 1.0) -> nnx.Param:
      scale = gain * shape[-2] ** -0.5
      return nnx.Param(jax.random.normal(rngs.params(), shape) * scale)

    inwards = (c.num_experts, c.width, c.mlp_width)
    outwards = (c.num_experts, c.mlp_width, c.width)
    if c.sigmoid_router:
      self.exact_router = matrix(c.width, c.num_experts)
      self.correction_bias = nnx.Param(jnp.zeros(c.num_experts))
    else:
      self.router = matrix(c.width, c.num_experts)
    self.gate, self.up = matrix(*inwards), matrix(*inwards)
    self.down = matrix(*outwards, gain=(2 * c.num_layers) ** -0.5)
    if c.normed_branches:
      self.input_scale, self.router_scale, self.expert_scale = (
        nnx.Param(jnp.ones(n)) for n in (c.width, c.width, c.num_experts)
      )
    self.has_bias = c.expert_bias
    if self.has_bias:
      self.router_bias = nnx.Param(jnp.zeros(c.num_experts))
      self.gate_bias, self.up_bias, self.down_bias = (
        nnx.Param(jnp.zeros((c.num_experts, size)))
        for size in (c.mlp_width, c.mlp_width, c.width)
      )

  def router_params(self, dtype: jnp.dtype) -> tuple[jax.Array, ...]:
    """Returns the arrays that `route` takes, then Gemma 4's scale of inputs.

    These are a router, and where it has one, a number of each expert. Gemma 4's
    router reads the normed states times a scale of its own over the root of
    the width, which is a factor of the router's rows.
    """
    if hasattr(self, "exact_router"):
      return self.exact_router[...], self.correction_bias[...]
    if hasattr(self, "input_scale"):
      scale_D = self.router_scale[...] * len(self.router_scale[...]) ** -0.5
      router_DE = self.router[...] * scale_D[:, None]
      return router_DE, self.expert_scale[...], self.input_scale[...]
    params = (self.router,)
    if self.has_bias:
      params += (self.router_bias,)
    return tuple(param[...].astype(dtype) for param in params)

  def expert_params(self, dtype: jnp.dtype) -> tuple[Any, ...]:
    """Returns the params that `apply_grouped` takes, of all experts."""
    params = tuple(self._matrix(n, dtype) for n in ("gate", "up", "down"))
    if not self.has_bias:
      return params
    biases = self.gate_bias, self.up_bias, self.down_bias
    return params + tuple(bias[...].astype(dtype) for bias in biases)

  def _matrix(self, name: str, dtype: jnp.dtype) -> Any:
    kernel = quantization.converted(getattr(self, name)[...], dtype)
    factors = [getattr(self, *at, None) for at in lora.factors_of((name,))]
    if factors[0] is None:
      return kernel
    a, b = (factor[...].astype(dtype) for factor in factors)
    return lora.Adapted(kernel, a, b, self.adapter_scale)

  def add_adapter(self, config: LoraConfig, name: str) -> None:
    """Adds low-rank factors of each expert; see `Projection.add_adapter`."""
    num_experts, inputs, outputs = getattr(self, name).shape
    (at_a,), (at_b,) = lora.factors_of((name,))
    shape_a = (num_experts, inputs, config.rank)
    shape_b = (num_experts, config.rank, outputs)
    setattr(self, at_a, nnx.Param(jnp.zeros(shape_a)))
    setattr(self, at_b, nnx.Param(jnp.zeros(shape_b)))
    self.adapter_scale = config.scale


def apply(
  experts: Experts,
  x_BTD: jax.Array,
  *,
  config: ModelConfig,
  mesh: Mesh | None,
  splits_rows: bool,
  replayed_BTK: jax.Array | None = None,
  gives_choice: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
  """Adds up the outputs of each token's experts, [B, T, D].

  With `splits_rows`, rows and tokens are split over the mesh, as in training.
  Tokens are routed to the experts of `replayed_BTK`, with weights by the own
  router (rollout routing replay, arXiv:2510.11370); a token that has a number
  of no expert there, to those that the router chooses. With `gives_choice`
  the router's choice is returned too, [B, T, K], else None.
  """
  router = experts.router_params(x_BTD.dtype)
  params = experts.expert_params(x_BTD.dtype)
  on_device = functools.partial(
    _apply_on_device,
    config=config,
    # Compilers for other platforms mask a dense product for each expert.
    is_grouped=platform_of(mesh) == "tpu",
    gives_choice=gives_choice,
  )
  if not sharding.is_split(mesh):
    return on_device(replayed_BTK, x_BTD, router, *params)
  axes = sharding.spec_on(mesh, "experts")[0]
  rows = sharding.spec("rows", "tokens", None) if splits_rows else jax.P()
  return jax.shard_map(
    functools.partial(on_device, axes=axes, splits_rows=splits_rows),
    mesh=mesh,
    in_specs=(rows, rows, jax.P(), *[jax.P(axes)] * len(params)),
    out_specs=(rows, rows),
  )(replayed_BTK, x_BTD, router, *params)


def _apply_on_device(
  replayed_BTK: jax.Array | None,
  x_BTD: jax.Array,
  router: tuple[jax.Array, ...],
  *params: jax.Array,
  config: ModelConfig,
  is_grouped: bool,
  gives_choice: bool,
  axes: tuple[str, ...] = (),
  splits_rows: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
  """Applies the experts of one device; `axes` of the mesh split them."""
  x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
  router, input_scales = router[:2], router[2:]
  weight_NK, expert_NK = route(x_ND, *router, c=config)
  choice_BTK = None
  if gives_choice:
    choice_BTK = expert_NK.reshape(*x_BTD.shape[:2], -1)
  if replayed_BTK is not None:
    replayed_NK = replayed_BTK.reshape(expert_NK.shape).astype(jnp.int32)
    is_replayed_N1 = (replayed_NK < config.num_experts).all(-1, keepdims=True)
    expert_NK = jnp.where(is_replayed_N1, replayed_NK, expert_NK)
    weight_NK, _ = route(x_ND, *router, c=config, expert_NK=expert_NK)
  for scale_D in input_scales:
    x_ND = (x_ND * scale_D).astype(x_ND.dtype)
  # Typed as varying here, so that gradients are summed over devices for each of
  # their tokens, and not again for each of its experts.
  x_ND, weight_NK = sharding.varying_like(
    (x_ND, weight_NK), *jax.tree.leaves(params)
  )
  if splits_rows:
    x_ND, weight_NK, expert_NK = (
      jax.lax.all_gather(x, "expert", tiled=True)
      for x in (x_ND, weight_NK, expert_NK)
    )
  if axes:
    expert_NK -= jax.lax.axis_index(axes) * len(params[0])
  apply_experts = apply_grouped if is_grouped else apply_all
  y_ND = apply_experts(
    x_ND,
    weight_NK,
    expert_NK,
    *params,
    limit=config.swiglu_limit,
    activate=ACTIVATE[config.activation],
  )
  if splits_rows:
    y_ND = jax.lax.psum_scatter(y_ND, "expert", tiled=True)
    axes = tuple(axis for axis in axes if axis != "expert")
  if axes:
    y_ND = jax.lax.psum(y_ND, axes)
  return y_ND.reshape(x_BTD.shape), choice_BTK


def route(
  x_ND: jax.Array,
  router_DE: jax.Array,
  per_expert_E: jax.Array | None = None,
  *,
  c: ModelConfig,
  expert_NK: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Chooses experts; returns their weights and numbers, [N, K], in float32.

  All products are in float32: in bfloat16 near experts change places. What
  `per_expert_E` is depends on the router: DeepSeek-V3's by sigmoids adds it to
  scores when it chooses, gpt-oss's adds it to logits, and Gemma 4's multiplies
  weights by it. With `expert_NK` these are the experts, and only their weights
  are computed.
  """
  logit_NE = jnp.matmul(
    x_ND.astype(jnp.float32),
    router_DE.astype(jnp.float32),
    precision=jax.lax.Precision.HIGHEST,
  )
  if per_expert_E is not None and not c.normed_branches:
    if c.sigmoid_router:
      return _route_by_sigmoids(
        jax.nn.sigmoid(logit_NE), per_expert_E, c, expert_NK
      )
    logit_NE += per_expert_E.astype(jnp.float32)
  score_NE = jax.nn.softmax(logit_NE)
  if expert_NK is None:
    weight_NK, expert_NK = jax.lax.top_k(score_NE, c.experts_per_token)
  else:
    weight_NK = jnp.take_along_axis(score_NE, expert_NK, axis=-1)
  if c.normed_experts:
    weight_NK /= weight_NK.sum(-1, keepdims=True)
  if c.normed_branches:
    weight_NK *= per_expert_E.astype(jnp.float32)[expert_NK]
  return weight_NK, expert_NK


def _route_by_sigmoids(
  score_NE: jax.Array,
  bias_E: jax.Array,
  c: ModelConfig,
  expert_NK: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
  """Chooses by score + bias, weights by the score (arXiv:2412.19437, 2.1.2).

  The bias has no gradient; in its place stands the load of its expert, which
  the learner takes to even them out.
  """
  if expert_NK is None:
    expert_NK = _best_by_sigmoids(score_NE, bias_E, c)
  weight_NK = jnp.take_along_axis(score_NE, expert_NK, axis=-1)
  if c.normed_experts:
    weight_NK /= weight_NK.sum(-1, keepdims=True) + 1e-20
  weight_NK *= c.expert_scale
  bias_E = sharding.varying_like(bias_E, weight_NK)
  return _with_load(weight_NK, bias_E, expert_NK), expert_NK


def _best_by_sigmoids(
  score_NE: jax.Array, bias_E: jax.Array, c: ModelConfig
) -> jax.Array:
  """Chooses from the experts of the best groups.

  These are the groups with the largest sums of their two best experts.
  """
  rank_NE = jax.lax.stop_gradient(score_NE + bias_E)
  if c.groups_per_token < c.expert_groups:
    rank_NGE = rank_NE.reshape(len(rank_NE), c.expert_groups, -1)
    group_NG = jax.lax.top_k(rank_NGE, 2)[0].sum(-1)
    _, best_NC = jax.lax.top_k(group_NG, c.groups_per_token)
    is_best_NG = (best_NC[..., None] == jnp.arange(c.expert_groups)).any(1)
    rank_NGE = jnp.where(is_best_NG[..., None], rank_NGE, -jnp.inf)
    rank_NE = rank_NGE.reshape(rank_NE.shape)
  return jax.lax.top_k(rank_NE, c.experts_per_token)[1]


@jax.custom_vjp
def _with_load(
  weight_NK: jax.Array, bias_E: jax.Array, expert_NK: jax.Array
) -> jax.Array:
  """Returns the weights; the slope of the bias is the load of each expert.

  That is the number of tokens that chose it, of those on which the loss
  depends. Micro-batches and devices add it up as they do gradients.
  """
  del bias_E, expert_NK
  return weight_NK


def _load_backward(
  kept: tuple[jax.Array, jax.Array], slope_NK: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
  expert_NK, bias_E = kept
  is_counted_NKE = expert_NK[..., None] == jnp.arange(len(bias_E))
  is_counted_NKE &= (slope_NK != 0).any(1)[:, None, None]
  return slope_NK, is_counted_NKE.sum((0, 1)).astype(bias_E.dtype), None


_with_load.defvjp(
  lambda weight, bias, expert: (weight, (expert, bias)), _load_backward
)


def is_same(choice_BTK: jax.Array, other_BTK: jax.Array) -> jax.Array:
  """Tests if tokens have the same experts, in any order, [B, T]."""
  choice_BTK, other_BTK = (
    jnp.sort(x.astype(jnp.int32), -1) for x in (choice_BTK, other_BTK)
  )
  return (choice_BTK == other_BTK).all(-1)


def apply_grouped(
  x_ND: jax.Array,
  weight_NK: jax.Array,
  expert_NK: jax.Array,
  gate_EDF: jax.Array,
  up_EDF: jax.Array,
  down_EFD: jax.Array,
  *biases: jax.Array,
  limit: float = 0.0,
  activate: Activation = jax.nn.silu,
) -> jax.Array:
  """Sorts tokens by expert, and computes one product per group, [N, D].

  Experts whose number is not that of one of the matrices add nothing. `biases`
  [E, ...] are of the three matrices; for `limit` see `_gated`.
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

  def product(x_PI: jax.Array, matrix_EIO: jax.Array, bias: int) -> jax.Array:
    y_PO = _multiplied(_GROUPED, x_PI, matrix_EIO, size_E)
    if not biases:
      return y_PO
    # By a product, whose gradient is one, too; undefined rows stay out of it.
    hot_PE = jax.nn.one_hot(expert_P[order_P], num_experts, dtype=y_PO.dtype)
    return jnp.where(is_ours_P1, y_PO + hot_PE @ biases[bias], 0)

  y_PF = _gated(product(x_PD, gate_EDF, 0), limit, activate)
  y_PF *= _raised(product(x_PD, up_EDF, 1), limit)
  y_PD = product(y_PF, down_EFD, 2)
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
  *biases: jax.Array,
  limit: float = 0.0,
  activate: Activation = jax.nn.silu,
) -> jax.Array:
  """Computes `apply_grouped` by every expert of every token."""
  is_chosen_NKE = expert_NK[..., None] == jnp.arange(len(gate_EDF))
  weight_NE = jnp.sum(is_chosen_NKE * weight_NK[..., None], axis=1)

  def product(matrix_EDF: jax.Array, bias: int) -> jax.Array:
    y_NEF = _multiplied(_EACH, x_ND, matrix_EDF)
    return y_NEF + biases[bias] if biases else y_NEF

  y_NEF = _gated(product(gate_EDF, 0), limit, activate)
  y_NEF *= _raised(product(up_EDF, 1), limit)
  y_NEF *= weight_NE[..., None].astype(x_ND.dtype)
  y_ND = _multiplied(_SUMMED, y_NEF, down_EFD)
  return y_ND + weight_NE.astype(x_ND.dtype) @ biases[2] if biases else y_ND


def _einsum(
  equation: str, x: jax.Array, matrix: jax.Array | quantization.Quantized
) -> jax.Array:
  """Multiplies by matrices of any form."""
  return jnp.einsum(equation, x, quantization.dequantized(matrix, x.dtype))


# What `lora.multiply` takes: products with the matrices, with A, and with B.
# Of groups; of all experts; and of all, added up.
_GROUPED = (quantization.ragged_dot,) * 3
_EACH, _SUMMED = (
  tuple(functools.partial(_einsum, equation) for equation in equations)
  for equations in (
    ("nd,edf->nef", "nd,edr->ner", "ner,erf->nef"),
    ("nef,efd->nd", "nef,efr->ner", "ner,erd->nd"),
  )
)


def _multiplied(
  products: Any, x: jax.Array, matrix: Any, *more: jax.Array
) -> jax.Array:
  """Multiplies by matrices of any form, and by those with adapters."""
  if not isinstance(matrix, lora.Adapted):
    return products[0](x, matrix, *more)
  w = matrix
  return lora.multiply(products, w.scale, x, w.kernel, w.a, w.b, *more)


_ALPHA = 1.702  # of gpt-oss's gate, whose sigmoid is near to GELU's curve


def _gated(x: jax.Array, limit: float, activate: Activation) -> jax.Array:
  """SwiGLU's gate; gpt-oss's, if there is a limit of its input."""
  if not limit:
    return activate(x)
  x = jnp.minimum(x, limit)
  return x * jax.nn.sigmoid(_ALPHA * x)


def _raised(x: jax.Array, limit: float) -> jax.Array:
  """SwiGLU's other factor; of gpt-oss limited, and 1 more."""
  return jnp.clip(x, -limit, limit) + 1 if limit else x


@jax.custom_vjp
def _moved(x_PD: jax.Array, order_P: jax.Array, back_P: jax.Array) -> jax.Array:
  """Permutes rows; `back_P` inverts `order_P`, so that none are scattered."""
  del back_P
  return x_PD[order_P]


_moved.defvjp(
  lambda x, order, back: (x[order], back),
  lambda back, slope: (slope[back], None, None),
)
