"""The gated delta rule over prefix trees: a branch begins at its fork's state.

Rows are cut into chunks as they stand. In depth-first order, the ancestors of a
token before its chunk are a path that comes out of one earlier chunk: the last
one with a token that it comes after, its context. Tokens of a chunk that share
a context are a part. As tokens go on, contexts close and never open again, so N
chunks have at most 2 N - 3 parts, whatever the tree.

Only one path of a context goes on: that of its last token. Let E be the state
before this path enters the chunk, and u what each token writes to the state.
Tokens of a part recall from before their chunk, with decays w_t and D_ts as in
`delta_rule`:

  w_t E^T k_t + sum_s D_ts (k_s . k_t) u_s

The E of a chunk is just as linear in the memory of its context, which is E and
u together. So a scan over parts finds the memory of all chunks.

Axes: as in `delta_rule`, without B; M parts, C tokens of a part's chunk, S of
its context, L those of the chunk and where its path enters it; R rows of a
memory, K of E and C of u.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.model.recurrent.chunks import Chunks, Inside, exact


class _Parts(NamedTuple):
  """Parts of a row, in order; those that there are not have no tokens."""

  chunk_M: jax.Array
  context_M: jax.Array
  place_ML: jax.Array  # of the chunk's tokens, and of its last again
  is_its_ML: jax.Array  # those that belong to the part


def follow(c: Chunks, inside: Inside) -> jax.Array:
  """Returns the outputs, [B, N, H, C, V], of rows of trees."""
  of_rows = Chunks(*[0] * 6, place_NC=None)
  return jax.vmap(_of_row, in_axes=(of_rows, 0))(c, inside)


def _of_row(c: Chunks, inside: Inside) -> jax.Array:
  parts = _parts(c.end_BNC, c.place_NC)
  chunk_M, context_M = parts.chunk_M, parts.context_M
  reach_MHL, decay_MHLS = _decays(c, inside, parts)
  seen_MHKS = jnp.swapaxes(c.k_BNHCK[context_M], -1, -2)

  def across(x_NHCK: jax.Array) -> jax.Array:
    """Returns what a part's tokens read of the memory, [M, H, C, R]."""
    x_MHCK = x_NHCK[chunk_M]
    score_MHCS = decay_MHLS[..., :-1, :] * exact(x_MHCK, seen_MHKS)
    before_MHCK = reach_MHL[..., :-1, None] * x_MHCK
    return jnp.concatenate([before_MHCK, score_MHCS], axis=-1)

  num_keys = seen_MHKS.shape[2]
  entry_MHKR = jnp.concatenate(
    [
      reach_MHL[..., -1:, None] * jnp.eye(num_keys),
      decay_MHLS[..., -1:, :] * seen_MHKS,
    ],
    axis=-1,
  )
  corrected_MHCR = -inside.inverse_BNHCS[chunk_M] @ across(c.k_BNHCK)
  memory_NHRV = _carry(
    jnp.concatenate([entry_MHKR, corrected_MHCR], axis=-2),
    chunk_M,
    context_M,
    jnp.pad(
      inside.inverse_BNHCS @ c.v_BNHCV, ((0, 0), (0, 0), (num_keys, 0), (0, 0))
    ),
  )
  out_NHCV = inside.mixed_BNHCS @ memory_NHRV[..., num_keys:, :]
  return out_NHCV.at[chunk_M].add(across(c.q_BNHCK) @ memory_NHRV[context_M])


def _decays(
  c: Chunks, inside: Inside, parts: _Parts
) -> tuple[jax.Array, jax.Array]:
  """Returns w of parts, [M, H, L], and their D to the context, [M, H, L, S].

  The last entries of L are up to where the chunk's path enters it.
  """
  sees_MLS = parts.is_its_ML[..., None] & (
    parts.place_ML[..., None] < c.end_BNC[parts.context_M][:, None]
  )
  age_MHL = jnp.pad(inside.age_BNHC[parts.chunk_M], ((0, 0), (0, 0), (0, 1)))
  passed_MHLS = sees_MLS[:, None] * c.g_BNHC[parts.context_M][:, :, None]
  after_SS = jnp.tril(jnp.ones(sees_MLS.shape[-1:] * 2), -1)
  log_MHLS = age_MHL[..., None] + exact(passed_MHLS, after_SS)
  log_MHL = age_MHL + jnp.sum(passed_MHLS, axis=-1)
  return (
    parts.is_its_ML[:, None] * jnp.exp(log_MHL),
    sees_MLS[:, None] * jnp.exp(log_MHLS),
  )


def _parts(end_NC: jax.Array, place_NC: jax.Array) -> _Parts:
  """Lists the parts of a row."""
  num_chunks = len(end_NC)
  most = max(2 * num_chunks - 3, 0)
  number_N = jnp.arange(num_chunks)
  is_open_NCN = (number_N < number_N[:, None, None]) & (
    place_NC[..., None] < jnp.max(end_NC, axis=1)
  )
  context_NC = jnp.max(jnp.where(is_open_NCN, number_N, -1), axis=2)
  before_NC = jnp.pad(context_NC[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
  begins_NC = (context_NC >= 0) & (context_NC != before_NC)
  part_NC = jnp.cumsum(begins_NC).reshape(begins_NC.shape) - 1
  part_NC = jnp.where(context_NC >= 0, part_NC, -1)
  chunk_M, at_M = jnp.nonzero(begins_NC, size=most, fill_value=0)
  # Where a path enters a chunk, its last token comes after the same ancestors.
  place_NL, part_NL = (
    jnp.pad(x, ((0, 0), (0, 1)), mode="edge") for x in (place_NC, part_NC)
  )
  is_its_ML = part_NL[chunk_M] == jnp.arange(most)[:, None]
  context_M = jnp.maximum(context_NC[chunk_M, at_M], 0)
  return _Parts(chunk_M, context_M, place_NL[chunk_M], is_its_ML)


@jax.custom_vjp
def _carry(
  link_MHRR: jax.Array,
  chunk_M: jax.Array,
  context_M: jax.Array,
  alone_NHRV: jax.Array,
) -> jax.Array:
  """Adds to the memory of chunks what parts link to their context's.

  The derivative of a scan that changes an array in place would copy that array
  in each step; here slopes are added in place, too.
  """

  def step(memory_NHRV: jax.Array, part):
    link_HRR, chunk, context = part
    added_HRV = link_HRR @ memory_NHRV[context]
    return memory_NHRV.at[chunk].add(added_HRV), None

  return jax.lax.scan(step, alone_NHRV, (link_MHRR, chunk_M, context_M))[0]


def _carry_forward(link_MHRR, chunk_M, context_M, alone_NHRV):
  memory_NHRV = _carry(link_MHRR, chunk_M, context_M, alone_NHRV)
  return memory_NHRV, (link_MHRR, chunk_M, context_M, memory_NHRV)


def _carry_backward(kept, slope_NHRV):
  link_MHRR, chunk_M, context_M, memory_NHRV = kept

  def step(slope_NHRV: jax.Array, part):
    link_HRR, chunk, context = part
    slope_HRV = jnp.swapaxes(link_HRR, -1, -2) @ slope_NHRV[chunk]
    return slope_NHRV.at[context].add(slope_HRV), None

  slope_NHRV, _ = jax.lax.scan(
    step, slope_NHRV, (link_MHRR, chunk_M, context_M), reverse=True
  )
  across_MHVR = jnp.swapaxes(memory_NHRV[context_M], -1, -2)
  return slope_NHRV[chunk_M] @ across_MHVR, None, None, slope_NHRV


_carry.defvjp(_carry_forward, _carry_backward)
