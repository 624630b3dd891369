"""The policy as pure functions of plain params.

The flax module is split once. From then on params are a nested dict of arrays
that jit, grad, optax and orbax take as they are, and nobody else meets nnx.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from agentrl_jax.model import cache as kv
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.decoder import Decoder

Params = dict[str, Any]


class Policy:
  """What can be computed with a policy's params; holds none of them.

  Axes: B rows or lanes, T tokens of a row, C tokens of a chunk, D width,
  V vocabulary.
  """

  def __init__(self, config: ModelConfig):
    self.config = config
    abstract = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(params=0)))
    self._graph, self._state = nnx.split(abstract)

  def init(self, key: jax.Array) -> Params:
    """Fresh float32 params."""
    model = Decoder(self.config, nnx.Rngs(params=key))
    return nnx.to_pure_dict(nnx.state(model))

  def abstract_params(self) -> Params:
    """The shapes and dtypes of params, with nothing behind them."""
    return jax.eval_shape(self.init, jax.random.key(0))

  def hidden(
    self,
    params: Params,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
  ) -> jax.Array:
    """Hidden states [B, T, D] of packed rows; segment 0 is padding.

    Tokens see earlier tokens of their own segment only; positions count from
    0 within each.
    """
    return self._module(params).hidden(token_BT, position_BT, segment_BT)

  def logits(
    self,
    params: Params,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
  ) -> jax.Array:
    """Logits [B, T, V]; entry t is about token t + 1."""
    module = self._module(params)
    return module.unembed(module.hidden(token_BT, position_BT, segment_BT))

  def unembed(self, params: Params, hidden: jax.Array) -> jax.Array:
    """Hidden states [..., D] to logits [..., V] in float32."""
    return self._module(params).unembed(hidden)

  def value(self, params: Params, hidden: jax.Array) -> jax.Array:
    """Hidden states [..., D] to the critic's estimate of the return [...]."""
    return self._module(params).value(hidden)

  def output_matrix(self, params: Params) -> jax.Array:
    """What `unembed` multiplies by, [D, V]."""
    if self.config.tied_embedding:
      return params["embedding"].T
    return params["head"]["kernel"]

  def empty_cache(self, num_lanes: int, num_slots: int) -> kv.KVCache:
    """A cache for `num_lanes` sequences of up to `num_slots` tokens."""
    return kv.empty_cache(self.config, num_lanes, num_slots)

  def extend(
    self,
    params: Params,
    cache: kv.KVCache,
    token_BC: jax.Array,
    start_B: jax.Array,
    length_B: jax.Array,
  ) -> tuple[jax.Array, kv.KVCache]:
    """Feeds each lane its next tokens: hidden states [B, C, D] and the cache.

    Lane b's first `length_B[b]` tokens go to positions from `start_B[b]` on;
    the rest of its row is padding. A lane of length 0 stays as it was.
    """
    return self._module(params).extend(cache, token_BC, start_B, length_B)

  def _module(self, params: Params) -> Decoder:
    state = nnx.clone(self._state)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(self._graph, state)


def num_params(params: Params) -> int:
  """How many numbers there are to train."""
  return sum(int(jnp.size(leaf)) for leaf in jax.tree.leaves(params))
