"""A decoder-only transformer of the Qwen / Llama / GLM shape in flax.nnx.

RMSNorm, rotary positions, grouped-query attention, to all tokens or in some
layers to a window of them (Gemma 3), a gated MLP, or several of which each
token chooses some (Qwen3-MoE, `model.experts`), also beside one for all tokens
(GLM-4.5); optional norm on queries and keys (Qwen3), bias on their projections
(Qwen2.5, GLM-4), sinks (gpt-oss), and norm after each branch, also (GLM-4) or
alone (OLMo 2). Modules are merged and split at trace time only: all other code
sees plain params, through `model.policy`, which also decides how layers follow
one another.

Axes of products: R rows, M inputs, N outputs.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from agentrl_jax.model import quantization
from agentrl_jax.model.attention import reference
from agentrl_jax.model.config import STACKS, ModelConfig
from agentrl_jax.model.experts import Experts
from agentrl_jax.model.lora import INPUT_AXES, LoraConfig

Array = jax.Array


ACTIVATE = {
  "silu": jax.nn.silu,
  "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


class RMSNorm(nnx.Module):
  """x / rms(x) * scale over the last axis (arXiv:1910.07467), in float32.

  Where it is `zero_centered`, the scale is 1 more than the parameter.
  """

  def __init__(self, size: int, c: ModelConfig):
    self.epsilon, self.zero_centered = c.norm_epsilon, c.zero_centered_norm
    self.scale = nnx.Param(
      (jnp.zeros if self.zero_centered else jnp.ones)(size)
    )

  def __call__(self, x: Array) -> Array:
    """Normalises x; its shape and dtype stay."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(
      jnp.mean(y * y, axis=-1, keepdims=True) + self.epsilon
    )
    scale = self.scale[...]
    if self.zero_centered:
      scale = 1 + scale
    return (y * scale).astype(x.dtype)


class Projection(nnx.Module):
  """x W, plus b if there is a bias; input and output may have several axes."""

  adapter_scale = 0.0  # of the adapter, where there is one

  def __init__(
    self,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    *,
    gain: float = 1.0,
    bias: bool = False,
    rngs: nnx.Rngs,
  ):
    fan_in = math.prod(inputs)
    self.kernel = nnx.Param(
      jax.random.normal(rngs.params(), inputs + outputs) * gain * fan_in**-0.5
    )
    self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None
    self.inputs, self.outputs = inputs, outputs

  def add_adapter(self, config: LoraConfig) -> None:
    """Adds two low-rank factors, already merged into the kernel in use."""
    self.lora_a = nnx.Param(jnp.zeros((*self.inputs, config.rank)))
    self.lora_b = nnx.Param(jnp.zeros((config.rank, *self.outputs)))
    self.adapter_scale = config.scale

  def turn(self) -> None:
    """Stores the kernel with its outputs first, for decoding on a CPU."""
    self.kernel = None
    self.turned = nnx.Param(jnp.zeros(self.outputs + self.inputs))

  def __call__(self, x: Array) -> Array:
    """Contracts the last axes of x with those of the kernel."""
    y = self._product(x)
    if self.bias is not None:
      y = y + self.bias[...].astype(x.dtype)
    return y

  def _product(self, x: Array) -> Array:
    num_axes = len(self.inputs)
    if self.kernel is None:
      return quantization.project(project_turned, x, self.turned[...], num_axes)
    if not self.adapter_scale:
      return quantization.project(project, x, self.kernel[...], num_axes)
    kernel = self.kernel[...].astype(x.dtype)
    a, b = (p[...].astype(x.dtype) for p in (self.lora_a, self.lora_b))
    return project_adapted(x, kernel, a, b, num_axes, self.adapter_scale)


class Attention(nnx.Module):
  """Projections, norms and rotation of a layer's queries, keys and values."""

  def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
    self.config = c
    kv_shape = (c.num_kv_heads, c.head_dim)
    q_shape = (c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim)
    bias = c.qkv_bias
    self.q = Projection((c.width,), q_shape, bias=bias, rngs=rngs)
    self.k = Projection((c.width,), kv_shape, bias=bias, rngs=rngs)
    self.v = Projection((c.width,), kv_shape, bias=bias, rngs=rngs)
    self.o = Projection(
      q_shape,
      (c.width,),
      gain=(2 * c.num_layers) ** -0.5,
      bias=c.o_bias,
      rngs=rngs,
    )
    if c.qk_norm:
      q_heads, k_heads = (
        (c.num_heads, c.num_kv_heads) if c.joint_qk_norm else (1, 1)
      )
      self.q_norm = RMSNorm(q_heads * c.head_dim, c)
      self.k_norm = RMSNorm(k_heads * c.head_dim, c)
    if c.sinks:
      self.sinks = nnx.Param(jnp.zeros(q_shape[:2]))

  def project(
    self, x_BTD: Array, position_BT: Array, is_local: bool | Array = False
  ):
    """Returns queries and keys, normed and rotated, and values.

    `is_local` layers may rotate by frequencies of their own.
    """
    c = self.config
    q, k, v = self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)
    if c.joint_qk_norm:
      q = self.q_norm(q.reshape(*q.shape[:2], -1)).reshape(q.shape)
      k = self.k_norm(k.reshape(*k.shape[:2], -1)).reshape(k.shape)
    elif c.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    if c.query_pre_attn_scalar:
      q *= (c.head_dim / c.query_pre_attn_scalar) ** 0.5
    heads = (*q.shape[:2], c.num_heads, c.head_dim)
    turn = functools.partial(
      reference.rotate,
      position_BT=position_BT,
      frequency_R=_frequencies(c, is_local),
      factor=c.rope_attention_factor,
    )
    return turn(q.reshape(heads)).reshape(q.shape), turn(k), v

  def mix(self, attend: Callable[..., Array], *qkv: Array) -> Array:
    """Returns the values that `attend` mixes, given the sinks, if any."""
    if not self.config.sinks:
      return attend(*qkv)
    return attend(*qkv, sink_KG=self.sinks[...].astype(jnp.float32))


def _frequencies(c: ModelConfig, is_local: bool | Array) -> Array:
  of = functools.partial(reference.rotary_frequencies, c)
  if not c.local_rope_theta or isinstance(is_local, bool):
    return of(is_local=bool(c.local_rope_theta and is_local))
  return jnp.where(is_local, of(is_local=True), of(is_local=False))


def _unchanged(x: Array) -> Array:
  return x


class Layer(nnx.Module):
  """Attention and a gated MLP (arXiv:2002.05202), each a normed branch."""

  def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
    norm = functools.partial(RMSNorm, c.width, c)
    self.activate = ACTIVATE[c.activation]
    self.attention_norm = norm() if c.pre_norm else _unchanged
    self.attention = Attention(c, rngs)
    self.mlp_norm = norm() if c.pre_norm else _unchanged
    if c.num_experts:
      self.experts = Experts(c, rngs)
    # Shared experts are one MLP beside those that tokens choose.
    mlp_width = c.shared_width if c.num_experts else c.mlp_width
    if mlp_width:
      self.gate = Projection((c.width,), (mlp_width,), rngs=rngs)
      self.up = Projection((c.width,), (mlp_width,), rngs=rngs)
      self.down = Projection(
        (mlp_width,), (c.width,), gain=(2 * c.num_layers) ** -0.5, rngs=rngs
      )
    if c.sandwich_norm:
      self.after_attention_norm, self.after_mlp_norm = norm(), norm()
    self.sandwich = c.sandwich_norm

  def add_adapters(self, config: LoraConfig) -> None:
    """Adds adapters to the projections that the config names."""
    for name in config.targets:
      self._projection(name).add_adapter(config)

  def turn(self) -> None:
    """Turns all kernels; see `Projection.turn`."""
    for name in INPUT_AXES:
      if (projection := self._projection(name)) is not None:
        projection.turn()

  def _projection(self, name: str) -> Projection | None:
    owner = self.attention if hasattr(self.attention, name) else self
    return getattr(owner, name, None)

  def train(
    self,
    x_BTD: Array,
    position_BT: Array,
    attend: Callable[..., Array],
    apply_experts: Callable[[Experts, Array], Array],
    place: Callable[..., Array],
    is_local: bool | Array,
  ) -> Array:
    """Applies the layer to packed rows.

    `attend` maps q, k and v to the mixed values; `apply_experts` is called if
    there are any; `place` constrains an activation to the sharding of its named
    axes; `is_local` layers see the window alone.
    """
    qkv = self.attention.project(
      self.attention_norm(x_BTD), position_BT, is_local
    )
    mixed = self.attention.mix(attend, *qkv)
    return place(
      self._finish(x_BTD, mixed, apply_experts, place), "rows", "tokens", None
    )

  def extend(
    self,
    x_BCD: Array,
    pair: tuple[Array, Array],
    position_BC: Array,
    write: Callable[[Array, Array], Array],
    attend: Callable[..., Array],
    apply_experts: Callable[[Experts, Array], Array],
    is_local: bool,
  ) -> tuple[Array, tuple[Array, Array]]:
    """Applies the layer to new tokens of each slot; returns the new cache too.

    `write` adds entries to keys or values, a `pair`; `attend` maps q, keys and
    values to the mixed values; `apply_experts` is called if there are any;
    `is_local` layers see the window alone.
    """
    q, k, v = self.attention.project(
      self.attention_norm(x_BCD), position_BC, is_local
    )
    keys, values = write(pair[0], k), write(pair[1], v)
    mixed = self.attention.mix(attend, q, keys, values)
    return self._finish(x_BCD, mixed, apply_experts, lambda x, *_: x), (
      keys,
      values,
    )

  def _finish(
    self,
    x_BTD: Array,
    mixed_BTKGH: Array,
    apply_experts: Callable[[Experts, Array], Array],
    place: Callable[..., Array],
  ) -> Array:
    """Adds the attention branch, then the MLP branch."""
    branch_BTD = place(self.attention.o(mixed_BTKGH), "rows", "tokens", None)
    if self.sandwich:
      branch_BTD = self.after_attention_norm(branch_BTD)
    x_BTD = x_BTD + branch_BTD
    y_BTD = self.mlp_norm(x_BTD)
    branches = []
    if hasattr(self, "experts"):
      branches.append(apply_experts(self.experts, y_BTD))
    if hasattr(self, "gate"):
      y_BTF = self.activate(self.gate(y_BTD)) * self.up(y_BTD)
      branches.append(self.down(place(y_BTF, "rows", "tokens", "mlp")))
    branch_BTD = functools.reduce(jnp.add, branches)
    if self.sandwich:
      branch_BTD = self.after_mlp_norm(branch_BTD)
    return x_BTD + branch_BTD


class Stem(nnx.Module):
  """All but the layers: token ids to hidden states, hidden states to logits."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    c = config
    self.config = c
    self.embedding = nnx.Param(
      jax.random.normal(rngs.params(), (c.vocab_size, c.width)) * c.width**-0.5
    )
    self.final_norm = RMSNorm(c.width, c)

  def add_outputs(self, rngs: nnx.Rngs) -> None:
    """Adds an output matrix that is not the embedding, and the critic."""
    c = self.config
    if not c.tied_embedding:
      self.head = Projection((c.width,), (c.vocab_size,), rngs=rngs)
    if c.value_head:
      # Zero, so that an untrained critic expects nothing.
      self.critic = Projection((c.width,), (1,), gain=0, bias=True, rngs=rngs)

  def unembed(self, hidden: Array) -> Array:
    """Logits [..., V] in float32."""
    if self.config.tied_embedding:
      output_VD = self.embedding[...].astype(hidden.dtype)
      return jnp.einsum(
        "...d,vd->...v", hidden, output_VD, preferred_element_type=jnp.float32
      )
    return self.head(hidden).astype(jnp.float32)

  def value(self, hidden: Array) -> Array:
    """Computes the critic's estimate of the return [...] in float32."""
    return self.critic(hidden.astype(jnp.float32))[..., 0]


def make_modules(
  config: ModelConfig, rngs: nnx.Rngs, copies: int | None = None
) -> tuple[Stem, dict[str, list[Layer]]]:
  """Makes a decoder's stem and the layers of each stack, with fresh params.

  They are float32. `copies` replaces the number of layers of each stack.
  """
  stem = Stem(config, rngs)
  layers = {
    stack: [Layer(c, rngs) for _ in range(copies or len(numbers))]
    for stack, (c, numbers) in config.stacks.items()
  }
  stem.add_outputs(rngs)
  return stem, layers


def copying(params: dict[str, Any], gain: float) -> dict[str, Any]:
  """Lets all layers but the first begin with heads that copy tokens.

    o = gain v^T / G

  A head adds a projection of the tokens that it attends to, which raises their
  own logits where embeddings are tied. From random params a policy has to find
  this map by training, one frequent token after another. The product of values
  and outputs near the identity is what "mimetic initialization" takes from
  trained models (arXiv:2305.09828); here the factors stay random, and a gain
  makes the copy as large as what the layer adds to.

  Args:
    params: fresh ones, with stacked layers.
    gain: 1 copies with about the norm of the attended states, of the part that
      the heads see.

  Returns:
    The same params but for the output kernels of attention, [L, K, G, H, D]:
    L layers, K key/value heads, G query heads of each, H channels, D width.
  """
  is_first = True
  for stack in STACKS:
    if stack in params:
      layers = _copying(params[stack], gain, is_first=is_first)
      params, is_first = params | {stack: layers}, False
  return params


def _copying(
  layers: dict[str, Any], gain: float, *, is_first: bool
) -> dict[str, Any]:
  attention = layers["attention"]
  v_LDKH, o_LKGHD = attention["v"]["kernel"], attention["o"]["kernel"]
  transposed_LK1HD = jnp.moveaxis(v_LDKH, 1, 3)[:, :, None]
  copying_LKGHD = jnp.broadcast_to(
    gain / o_LKGHD.shape[2] * transposed_LK1HD, o_LKGHD.shape
  )
  o_LKGHD = jnp.concatenate([o_LKGHD[:is_first], copying_LKGHD[is_first:]])
  o = attention["o"] | {"kernel": o_LKGHD}
  return layers | {"attention": attention | {"o": o}}


# Name of a kernel with its outputs first, as `decoder.Projection` has it.
TURNED = "turned"


def unstacked(layers: dict[str, Any]) -> list[dict[str, Any]]:
  """Splits stacked params into those of each layer, first to last."""
  leaves, tree = jax.tree.flatten(layers)
  # One split per leaf, whose transpose is one join; slices would each be
  # padded to the whole stack and added up.
  parts = [jax.lax.split(leaf, (1,) * leaf.shape[0]) for leaf in leaves]
  return [
    jax.tree.unflatten(tree, [jnp.squeeze(part, 0) for part in layer])
    for layer in zip(*parts, strict=True)
  ]


def turned(layer: dict[str, Any]) -> dict[str, Any]:
  """Turns all kernels of a layer's params; see `Projection.turn`."""
  return {
    name: _turned(name, part) if isinstance(part, dict) else part
    for name, part in layer.items()
  }


def is_turned(layer: Any) -> bool:
  """Says if any of a layer's kernels has its outputs first."""
  return isinstance(layer, dict) and any(
    name == TURNED or is_turned(part) for name, part in layer.items()
  )


def _turned(name: str, part: dict[str, Any]) -> dict[str, Any]:
  if "kernel" not in part:
    return turned(part)
  rest = {name: x for name, x in part.items() if name != "kernel"}
  inputs = range(INPUT_AXES[name])
  last = [n - len(inputs) for n in inputs]
  return rest | {
    TURNED: jax.tree.map(
      lambda x: jnp.moveaxis(x, inputs, last), part["kernel"]
    )
  }


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def project(x: jax.Array, kernel: jax.Array, num_axes: int) -> jax.Array:
  """Multiplies the last `num_axes` axes of x by the first ones of the kernel.

  Equal to `tensordot`, but for its gradient: `jax.grad` of `tensordot` computes
  the kernel's gradient transposed, for which XLA on a CPU copies the gradient
  of the output, at nearly the price of the product itself.
  """
  return jnp.tensordot(x, kernel, axes=num_axes)


def _project_forward(x, kernel, num_axes):
  return project(x, kernel, num_axes), (x, kernel)


def _project_backward(num_axes, kept, gradient):
  x, kernel = kept
  rows = tuple(range(x.ndim - num_axes))
  outputs = tuple(range(num_axes, kernel.ndim))
  last = tuple(range(len(rows), gradient.ndim))
  of_x = jax.lax.dot_general(gradient, kernel, ((last, outputs), ((), ())))
  of_kernel = jax.lax.dot_general(x, gradient, ((rows, rows), ((), ())))
  return of_x, of_kernel


project.defvjp(_project_forward, _project_backward)

# Rows for which packing a kernel takes longer than it saves.
_FEW = 64


def project_turned(x: jax.Array, kernel: jax.Array, num_axes: int) -> jax.Array:
  """Computes `project` by a kernel with its outputs first; no gradient.

  XLA's products on a CPU take their left factor as it is stored, and pack the
  right one into tiles anew in every call. For a few rows packing the kernel
  costs more than it saves, so the kernel is the left factor, y^T = W x^T. The
  barriers keep XLA from transposing the product back.
  """
  outputs = kernel.shape[: kernel.ndim - num_axes]
  rows = x.shape[: x.ndim - num_axes]
  kernel_NM = kernel.reshape(math.prod(outputs), -1)
  x_RM = x.reshape(math.prod(rows), -1)
  if len(x_RM) > _FEW:
    y_RN = jnp.einsum("rm,nm->rn", x_RM, kernel_NM)
  else:
    x_MR = jax.lax.optimization_barrier(x_RM.T)
    y_RN = jax.lax.optimization_barrier(kernel_NM @ x_MR).T
  return y_RN.reshape(*rows, *outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def project_adapted(
  x: jax.Array,
  kernel: jax.Array,
  a: jax.Array,
  b: jax.Array,
  num_axes: int,
  scale: float,
) -> jax.Array:
  """Computes `project` by a kernel that already contains `scale` a b.

  The gradient goes to x, a [inputs, r] and b [r, outputs] and not to the
  kernel: products as thin as r replace one as wide as the kernel.
  """
  del a, b, scale
  return project(x, kernel, num_axes)


def _adapted_forward(x, kernel, a, b, num_axes, scale):
  y = project_adapted(x, kernel, a, b, num_axes, scale)
  return y, (x, kernel, a, b)


def _adapted_backward(num_axes, scale, kept, gradient):
  x, kernel, a, b = kept
  of_x, _ = _project_backward(num_axes, (x, kernel), gradient)
  low, back_to_a = jax.vjp(lambda a: project(x, a, num_axes), a)
  _, back_to_b = jax.vjp(lambda low, b: project(low, b, 1), low, b)
  of_low, of_b = back_to_b(gradient * scale)
  (of_a,) = back_to_a(of_low)
  return of_x, jnp.zeros_like(kernel), of_a, of_b


project_adapted.defvjp(_adapted_forward, _adapted_backward)
