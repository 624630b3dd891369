"""Gated delta layers (Qwen3-Next, Qwen3.5): a state in place of attention.

Of a token's normed input x (Gated Delta Networks, arXiv:2412.06464):

  q, k, v = silu(a short causal convolution of x W_query, x W_key, x W_value)
  g = -exp(decay_log) softplus(x W_decay + decay_bias)
  beta = sigmoid(x W_beta)
  y = W_o (norm(S^T q / sqrt(H)) silu(x W_gate)),  q and k of length 1

where S is the state after the token, by `recurrent.delta_rule`. Each key head
serves several value heads. A state and a window of the convolution's inputs
are all that is kept of a sequence: see `model.cache`.

Axes: B rows, T tokens of a row or of a chunk, K key heads, G value heads of
each, H channels of a key, V channels of a value, D width, W taps, C all
channels that a key head's convolution sees, 2 H + G V.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from agentrl_jax.model import sharding
from agentrl_jax.model.attention.cached import Chunk
from agentrl_jax.model.compute import ATTENDED
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.layers.projection import Projection, RMSNorm
from agentrl_jax.model.recurrent import convolution, delta_rule
from agentrl_jax.model.recurrent.ancestry import Ancestry

Array = jax.Array

_INPUTS = sharding.spec("rows", "tokens", "kv_heads", None)
_OUTPUTS = sharding.spec("rows", "tokens", "kv_heads", None, None)


class Inputs(NamedTuple):
  """A layer's tokens, as its state sees them."""

  x_BTKC: Array  # of the convolution: queries, keys and values of each head
  g_BTKG: Array  # float32, log of the decay
  beta_BTKG: Array  # float32
  taps_KCW: Array


class DeltaMixer(nnx.Module):
  """The params of a gated delta layer but for its MLP.

  Those of the decay stay float32: `sharding.FLOAT32`.
  """

  def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
    keys = (c.delta_key_heads, c.delta_key_dim)
    heads = (c.delta_key_heads, c.delta_heads // c.delta_key_heads)
    values = (*heads, c.delta_value_dim)

    def taps(shape: tuple[int, ...]) -> nnx.Param:
      drawn = jax.random.normal(rngs.params(), (*shape, c.delta_taps))
      return nnx.Param(drawn * c.delta_taps**-0.5)

    make = functools.partial(Projection, (c.width,), rngs=rngs)
    self.query, self.key, self.value = make(keys), make(keys), make(values)
    self.query_taps, self.key_taps, self.value_taps = map(
      taps, (keys, keys, values)
    )
    self.decay, self.beta, self.out_gate = (
      make(heads),
      make(heads),
      make(values),
    )
    # As its authors begin: from almost no decay to one that forgets at once.
    self.decay_log = nnx.Param(
      jnp.log(jax.random.uniform(rngs.params(), heads, minval=0.01, maxval=16))
    )
    self.decay_bias = nnx.Param(jnp.ones(heads))
    plain = dataclasses.replace(c, zero_centered_norm=False)
    self.norm = RMSNorm(c.delta_value_dim, plain)
    self.o = Projection(
      values, (c.width,), gain=(2 * c.num_layers) ** -0.5, rngs=rngs
    )

  def inputs(self, x_BTD: Array) -> Inputs:
    """Returns what the state sees of these tokens."""
    projected = self.query(x_BTD), self.key(x_BTD), self.value(x_BTD)
    taps = self.query_taps, self.key_taps, self.value_taps
    num_heads, _, num_taps = self.key_taps.shape
    heads = (*x_BTD.shape[:2], num_heads, -1)
    decay_BTKG = self.decay(x_BTD).astype(jnp.float32) + self.decay_bias[...]
    return Inputs(
      jnp.concatenate([x.reshape(heads) for x in projected], axis=-1),
      -jnp.exp(self.decay_log[...]) * jax.nn.softplus(decay_BTKG),
      jax.nn.sigmoid(self.beta(x_BTD).astype(jnp.float32)),
      jnp.concatenate(
        [x[...].reshape(num_heads, -1, num_taps) for x in taps], axis=1
      ).astype(x_BTD.dtype),
    )

  def gated(self, x_BTD: Array, mixed_BTKGV: Array) -> Array:
    """Norms what was read of the state, and weighs it by its gate."""
    gate_BTKGV = jax.nn.silu(self.out_gate(x_BTD).astype(jnp.float32))
    return (self.norm(mixed_BTKGV) * gate_BTKGV).astype(x_BTD.dtype)


def remember(
  inputs: Inputs, *, config: ModelConfig, rows: Ancestry, mesh: Mesh | None
) -> Array:
  """Reads the state after each token of packed rows, [B, T, K, G, V].

  On a mesh heads and rows are split, which never meet. Tokens do: a mesh cannot
  split them.
  """

  def on_device(inputs: Inputs, rows: Ancestry) -> Array:
    convolved = convolution.convolve(*_flat(inputs), rows)
    heads = _heads(convolved, inputs, config)
    mixed = delta_rule.chunked(*heads, rows)
    return mixed.reshape(*inputs.g_BTKG.shape, -1)

  if sharding.is_split(mesh):
    taps = sharding.spec("kv_heads", None, None)
    on_device = jax.shard_map(
      on_device,
      mesh=mesh,
      in_specs=(
        Inputs(_INPUTS, _INPUTS, _INPUTS, taps),
        jax.tree.map(lambda _: sharding.BATCH_SPEC, rows),
      ),
      out_specs=_OUTPUTS,
    )
  return checkpoint_name(on_device(inputs, rows), ATTENDED)


def continue_chunk(
  kept: tuple[Array, Array], inputs: Inputs, chunk: Chunk, c: ModelConfig
) -> tuple[Array, tuple[Array, Array]]:
  """Reads the state after each of some sequences' next tokens.

  `kept` are the states [N, K G, H, V] and windows [N, W - 1, K C] of a cache.
  A row of the chunk continues its own, or begins from zeros at position 0.
  Returns what is read, [B, T, K, G, V], and what is kept then; rows of length 0
  keep theirs.
  """
  number, length_B = len(kept[0]), chunk.length_B
  from_B = chunk.state_B
  assert from_B is not None, "rows of a model with states name theirs"
  fresh_B = jnp.where(chunk.start_B > 0, from_B, number)
  state, window = (x.at[fresh_B].get(mode="fill", fill_value=0) for x in kept)
  convolved, window = convolution.extend(*_flat(inputs), window, length_B)
  heads = _heads(convolved, inputs, c)
  mixed, state = delta_rule.extend(*heads, state, length_B)
  to_B = jnp.where(length_B > 0, from_B, number)
  states, windows = (
    x.at[to_B].set(new, mode="drop")
    for x, new in zip(kept, (state, window), strict=True)
  )
  return mixed.reshape(*inputs.g_BTKG.shape, -1), (states, windows)


def _flat(inputs: Inputs) -> tuple[Array, Array]:
  """Returns the convolution's inputs [B, T, K C], and its taps [W, K C]."""
  x, taps = inputs.x_BTKC, inputs.taps_KCW
  return x.reshape(*x.shape[:2], -1), taps.reshape(-1, taps.shape[-1]).T


def _heads(convolved_BTN: Array, inputs: Inputs, c: ModelConfig):
  """Returns what the delta rule takes, of each value head."""
  x_BTKC = jax.nn.silu(convolved_BTN).reshape(inputs.x_BTKC.shape)
  channels = c.delta_key_dim
  q, k, v = jnp.split(x_BTKC, (channels, 2 * channels), axis=-1)
  per_key = inputs.g_BTKG.shape[-1]
  q, k = (jnp.repeat(delta_rule.unit(x), per_key, axis=2) for x in (q, k))
  flat = (*x_BTKC.shape[:2], -1)
  return (
    q * channels**-0.5,
    k,
    v.reshape(*flat, c.delta_value_dim),
    inputs.g_BTKG.reshape(flat),
    inputs.beta_BTKG.reshape(flat),
  )
