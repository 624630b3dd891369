"""A decoder-only transformer of the Qwen / Llama / GLM shape in flax.nnx.

RMSNorm, rotary positions, grouped-query attention, to all tokens or in some
layers to a window of them (Gemma 3), a gated MLP, or several of which each
token chooses some (Qwen3-MoE, `model.experts`), also beside one for all tokens
(GLM-4.5); optional norm on queries and keys (Qwen3), bias on their projections
(Qwen2.5, GLM-4), sinks (gpt-oss), a gate of what heads read (Qwen3-Next, most
layers of which do not attend: `layers.delta`), and norm after each branch, also
(GLM-4) or alone (OLMo 2). Modules are merged and split at trace time only: all
other code sees plain params, through `model.policy`; `layers.loop` decides how
layers follow one another.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from agentrl_jax.model.attention import reference
from agentrl_jax.model.attention.latent import LatentAttention
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.experts import Experts
from agentrl_jax.model.layers.delta import DeltaMixer
from agentrl_jax.model.layers.projection import (
  ACTIVATE,
  Projection,
  RMSNorm,
  normed,
)
from agentrl_jax.model.lora import INPUT_AXES, LoraConfig, Path

Array = jax.Array

# Params that are not trained: no gradient reaches them.
FIXED = ("layer_scale",)


def capped(logits: Array, cap: float) -> Array:
  """Keeps logits within a cap, cap tanh(logits / cap); 0 is none."""
  return cap * jnp.tanh(logits / cap) if cap else logits


class Attention(nnx.Module):
  """Projections, norms and rotation of a layer's queries, keys and values."""

  def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
    self.config = c
    kv_shape = (c.num_kv_heads, c.head_dim)
    q_shape = (c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim)
    bias = c.qkv_bias
    channels = c.head_dim * (2 if c.attention_gate else 1)
    self.q = Projection(
      (c.width,), (*q_shape[:2], channels), bias=bias, rngs=rngs
    )
    if not c.shares_kv:
      self.k = Projection((c.width,), kv_shape, bias=bias, rngs=rngs)
    if not (c.keys_as_values or c.shares_kv):
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
      if not c.shares_kv:
        self.k_norm = RMSNorm(k_heads * c.head_dim, c)
    if c.sinks:
      self.sinks = nnx.Param(jnp.zeros(q_shape[:2]))

  def project(
    self, x_BTD: Array, position_BT: Array, is_local: bool | Array = False
  ):
    """Returns queries and keys, normed and rotated, and values.

    They are queries alone where keys and values are those of another layer.
    `is_local` layers may rotate by frequencies of their own. Gates follow the
    queries' channels, where there are any. Values that keys stand for have
    another norm, and no rotation: a cache has to hold both.
    """
    c = self.config
    q, gate = jnp.split(self.q(x_BTD), [c.head_dim], axis=-1)
    q = self._normed("q_norm", q)
    if c.query_pre_attn_scalar:
      q *= (c.head_dim / c.query_pre_attn_scalar) ** 0.5
    heads = (*q.shape[:2], c.num_heads, c.head_dim)
    turn = functools.partial(
      reference.rotate,
      position_BT=position_BT,
      frequency_R=_frequencies(c, is_local),
      factor=c.rope_attention_factor,
    )
    q = turn(q.reshape(heads)).reshape(q.shape)
    q = jnp.concatenate([q, gate], axis=-1)
    if c.shares_kv:
      return (q,)
    k = self.k(x_BTD)
    v = k if c.keys_as_values else self.v(x_BTD)
    if c.value_norm:
      v = normed(v, c.norm_epsilon).astype(v.dtype)
    return q, turn(self._normed("k_norm", k)), v

  def _normed(self, norm: str, x: Array) -> Array:
    """Norms queries or keys, of each head or of all at once, if at all."""
    if not self.config.qk_norm:
      return x
    joint = (*x.shape[:2], -1) if self.config.joint_qk_norm else x.shape
    return getattr(self, norm)(x.reshape(joint)).reshape(x.shape)

  def extend(
    self,
    x_BCD: Array,
    cache: tuple[Array, ...],
    position_BC: Array,
    write: Callable[[Array, Array], Array],
    attend: Callable[..., Array],
    is_local: bool,
  ) -> tuple[Array, tuple[Array, ...]]:
    """Mixes values of a cache; see `Layer.extend`.

    A layer without keys reads the cache of another, and leaves it as it is.
    """
    q, *entries = self.project(x_BCD, position_BC, is_local)
    if entries:
      cache = tuple(map(write, cache, entries))
    return self.mix(attend, q, *cache), cache

  def mix(self, attend: Callable[..., Array], q: Array, *kv: Array) -> Array:
    """Returns the values that `attend` mixes, given the sinks, if any.

    They are weighed by the gates that follow the queries.
    """
    c, sinks = self.config, {}
    if c.sinks:
      sinks = {"sink_KG": self.sinks[...].astype(jnp.float32)}
    mixed = attend(q[..., : c.head_dim], *kv, **sinks)
    if not c.attention_gate:
      return mixed
    return mixed * jax.nn.sigmoid(q[..., c.head_dim :])


def _frequencies(c: ModelConfig, is_local: bool | Array) -> Array:
  of = functools.partial(reference.rotary_frequencies, c)
  if not c.local_rope_theta or isinstance(is_local, bool):
    return of(is_local=bool(c.local_rope_theta and is_local))
  return jnp.where(is_local, of(is_local=True), of(is_local=False))


class Layer(nnx.Module):
  """Attention and a gated MLP (arXiv:2002.05202), each a normed branch."""

  def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
    norm = functools.partial(RMSNorm, c.width, c)
    self.config = c
    self.attention_norm = norm() if c.pre_norm else jax.nn.identity
    if c.is_delta:
      self.delta = DeltaMixer(c, rngs)
    else:
      self.attention = (LatentAttention if c.latent_dim else Attention)(c, rngs)
    self.mlp_norm = norm() if c.pre_norm else jax.nn.identity
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
    if c.shared_gate:
      self.shared_gate = Projection((c.width,), (1,), rngs=rngs)
    if c.sandwich_norm:
      self.after_attention_norm, self.after_mlp_norm = norm(), norm()
    if c.normed_branches:
      self.after_experts_norm, self.after_shared_norm = norm(), norm()
    self._add_last(c, rngs)

  def _add_last(self, c: ModelConfig, rngs: nnx.Rngs) -> None:
    """Adds what comes after attention and MLP: see `_last`."""
    size = c.layer_input_dim
    if size:
      self.input_gate = Projection((c.width,), (size,), rngs=rngs)
      self.input_out = Projection(
        (size,), (c.width,), gain=(2 * c.num_layers) ** -0.5, rngs=rngs
      )
      self.after_input_norm = RMSNorm(c.width, c)
    if c.layer_scale:
      self.layer_scale = nnx.Param(jnp.ones(1))

  def add_adapters(self, config: LoraConfig, kernels: Iterable[Path]) -> None:
    """Adds adapters to the kernels at these paths."""
    for *owner, name in kernels:
      module = functools.reduce(getattr, owner, self)
      module.add_adapter(config, name)

  def turn(self) -> None:
    """Turns all kernels; see `Projection.turn`."""
    for name in INPUT_AXES:
      for owner in ((), ("attention",), ("delta",)):
        if (projection := self._projection((*owner, name))) is not None:
          projection.turn()

  def _projection(self, path: tuple[str, ...]) -> Projection | None:
    found = functools.reduce(lambda of, x: getattr(of, x, None), path, self)
    return found if isinstance(found, Projection) else None

  def train(
    self,
    x_BTD: Array,
    position_BT: Array,
    attend: Callable[..., Array],
    apply_experts: Callable[[Experts, Array], Array],
    place: Callable[..., Array],
    is_local: bool | Array,
    input_BTP: Array | None = None,
    shared: tuple[Array, ...] | None = None,
  ) -> tuple[Array, tuple[Array, ...]]:
    """Applies the layer to packed rows.

    `attend` maps q, k and v to the mixed values, or a delta layer's inputs;
    `apply_experts` is called if there are any; `place` constrains an activation
    to the sharding of its named axes; `is_local` layers see the window alone.
    `input_BTP` is what it reads of the tokens themselves, `shared` the keys and
    values of a layer before it. Returns its own keys and values too.
    """
    y_BTD, kv = self.attention_norm(x_BTD), []
    if hasattr(self, "delta"):
      mixed = self.delta.gated(y_BTD, attend(self.delta.inputs(y_BTD)))
    else:
      q, *kv = self.attention.project(y_BTD, position_BT, is_local)
      mixed = self.attention.mix(attend, q, *(kv or shared))
    x_BTD = self._finish(x_BTD, mixed, apply_experts, place, input_BTP)
    return place(x_BTD, "rows", "tokens", None), tuple(kv)

  def extend(
    self,
    x_BCD: Array,
    cache: tuple[Array, ...],
    position_BC: Array,
    write: Callable[[Array, Array], Array],
    attend: Callable[..., Array],
    apply_experts: Callable[[Experts, Array], Array],
    is_local: bool,
    input_BCP: Array | None = None,
  ) -> tuple[Array, tuple[Array, ...]]:
    """Applies the layer to new tokens of each slot; returns the new cache too.

    `write` adds entries to an array of the `cache`; `attend` maps q, keys and
    values to the mixed values; `apply_experts` is called if there are any;
    `is_local` layers see the window alone; `input_BCP` is what it reads of the
    tokens themselves. A delta layer's pair are states and
    windows, which `attend` takes with its inputs, and returns with the values.
    """
    y_BCD = self.attention_norm(x_BCD)
    if hasattr(self, "delta"):
      mixed, cache = attend(self.delta.inputs(y_BCD), cache)
      mixed = self.delta.gated(y_BCD, mixed)
    else:
      mixed, cache = self.attention.extend(
        y_BCD, cache, position_BC, write, attend, is_local
      )
    x_BCD = self._finish(
      x_BCD, mixed, apply_experts, lambda x, *_: x, input_BCP
    )
    return x_BCD, cache

  def _finish(
    self,
    x_BTD: Array,
    mixed_BTKGH: Array,
    apply_experts: Callable[[Experts, Array], Array],
    place: Callable[..., Array],
    input_BTP: Array | None,
  ) -> Array:
    """Adds the branches: attention, the MLP, and what reads the token."""
    mixer = self.delta if hasattr(self, "delta") else self.attention
    branch_BTD = place(mixer.o(mixed_BTKGH), "rows", "tokens", None)
    if self.config.sandwich_norm:
      branch_BTD = self.after_attention_norm(branch_BTD)
    x_BTD = x_BTD + branch_BTD
    y_BTD = self.mlp_norm(x_BTD)
    branches = []
    if hasattr(self, "experts"):
      branches.append(self._of_experts(x_BTD, y_BTD, apply_experts))
    if hasattr(self, "gate"):
      y_BTF = ACTIVATE[self.config.activation](self.gate(y_BTD))
      y_BTF *= self.up(y_BTD)
      branch_BTD = self.down(place(y_BTF, "rows", "tokens", "mlp"))
      if hasattr(self, "shared_gate"):
        branch_BTD *= jax.nn.sigmoid(self.shared_gate(y_BTD))
      if self.config.normed_branches:
        branch_BTD = self.after_shared_norm(branch_BTD)
      branches.append(branch_BTD)
    branch_BTD = functools.reduce(jnp.add, branches)
    if self.config.sandwich_norm:
      branch_BTD = self.after_mlp_norm(branch_BTD)
    return self._last(x_BTD + branch_BTD, input_BTP)

  def _last(self, x_BTD: Array, input_BTP: Array | None) -> Array:
    """Adds what the layer makes of the token itself, and scales the sum."""
    if hasattr(self, "input_gate"):
      y_BTP = ACTIVATE[self.config.activation](self.input_gate(x_BTD))
      branch_BTD = self.input_out(y_BTP * input_BTP)
      x_BTD = x_BTD + self.after_input_norm(branch_BTD)
    if hasattr(self, "layer_scale"):
      # It is no parameter of the published models, and stays as it is.
      scale = jax.lax.stop_gradient(self.layer_scale[...])
      x_BTD = x_BTD * scale.astype(x_BTD.dtype)
    return x_BTD

  def _of_experts(
    self,
    x_BTD: Array,
    y_BTD: Array,
    apply_experts: Callable[[Experts, Array], Array],
  ) -> Array:
    """Applies experts to y, or to x if they have norms of their own."""
    if not self.config.normed_branches:
      return apply_experts(self.experts, y_BTD)
    y_BTD = normed(x_BTD, self.config.norm_epsilon).astype(x_BTD.dtype)
    return self.after_experts_norm(apply_experts(self.experts, y_BTD))


class LayerInputs(nnx.Module):
  """Inputs of every layer that are made of a token itself (Gemma 4).

    (norm(W x / sqrt(D)) + sqrt(P) e) / sqrt(2)

  e is the token's entry in `Stem.layer_embedding`, of P channels for each of L
  layers, and x its embedding in hidden states, of D channels.
  """

  def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
    shape = (c.num_layers, c.layer_input_dim)
    self.projection = Projection((c.width,), shape, rngs=rngs)
    self.norm = RMSNorm(c.layer_input_dim, c)

  def __call__(self, x_BTD: Array, entry_BTM: Array) -> Array:
    """Returns [L, B, T, P] of embeddings, and of entries for all layers."""
    of_state = self.norm(self.projection(x_BTD) * x_BTD.shape[-1] ** -0.5)
    of_token = entry_BTM.reshape(of_state.shape) * of_state.shape[-1] ** 0.5
    return jnp.moveaxis((of_state + of_token) * 2**-0.5, 2, 0)


class Stem(nnx.Module):
  """All but the layers: token ids to hidden states, hidden states to logits."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    c = config
    self.config = c
    self.embedding = nnx.Param(
      jax.random.normal(rngs.params(), (c.vocab_size, c.width)) * c.width**-0.5
    )
    self.final_norm = RMSNorm(c.width, c)
    if c.layer_input_dim:
      shape = (c.vocab_size, c.num_layers * c.layer_input_dim)
      table_VM = jax.random.normal(rngs.params(), shape)
      self.layer_embedding = nnx.Param(table_VM * c.layer_input_dim**-0.5)
      self.layer_inputs = LayerInputs(c, rngs)

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
      logits = jnp.einsum(
        "...d,vd->...v", hidden, output_VD, preferred_element_type=jnp.float32
      )
    else:
      logits = self.head(hidden).astype(jnp.float32)
    return capped(logits, self.config.logit_cap)

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


# Name of a kernel with its outputs first, as `Projection` has it.
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
  if "kernel" not in part or name not in INPUT_AXES:
    return turned(part)
  rest = {name: x for name, x in part.items() if name != "kernel"}
  inputs = range(INPUT_AXES[name])
  last = [n - len(inputs) for n in inputs]
  return rest | {
    TURNED: jax.tree.map(
      lambda x: jnp.moveaxis(x, inputs, last), part["kernel"]
    )
  }
