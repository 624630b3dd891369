"""Rows of an embedding whose words and channels are split over devices.

The table never moves. Each device looks up the tokens of its `fsdp` group in
the words and channels that it holds, and then hands every token's channels to
the device that the token belongs to: what travels is the size of the result.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agentrl_jax.model import sharding


def embed(
  embedding_VD: jax.Array, token_BT: jax.Array, mesh: Mesh | None, dtype: str
) -> jax.Array:
  """Rows of the embedding for each token, [B, T, D] in `dtype`."""
  if not sharding.is_split(mesh):
    return jnp.take(embedding_VD, token_BT, axis=0).astype(dtype)
  return jax.shard_map(
    functools.partial(_embed, dtype=dtype),
    mesh=mesh,
    in_specs=(sharding.spec("vocab", "width"), sharding.BATCH_SPEC),
    out_specs=sharding.spec("rows", "tokens", None),
  )(embedding_VD, token_BT)


def _embed(here_VD: jax.Array, token_BT: jax.Array, *, dtype: str) -> jax.Array:
  # Rows of the whole group, few bytes, by the channels of this device.
  token_BT = jax.lax.all_gather(token_BT, "fsdp", axis=0, tiled=True)
  num_entries = here_VD.shape[0]
  word_BT = token_BT - jax.lax.axis_index("tensor") * num_entries
  is_here_BT = (word_BT >= 0) & (word_BT < num_entries)
  x_BTD = jnp.take(here_VD, jnp.where(is_here_BT, word_BT, 0), axis=0)
  x_BTD = jnp.where(is_here_BT[..., None], x_BTD, 0).astype(dtype)
  x_BTD = jax.lax.psum(x_BTD, "tensor")
  return jax.lax.all_to_all(x_BTD, "fsdp", 0, 2, tiled=True)
