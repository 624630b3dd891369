"""The gated delta rule over prefix trees: a branch begins at its fork's state.

Rows are cut into chunks as they stand. In depth-first order, the ancestors of a
token before its chunk are a path that comes out of one earlier chunk: the last
one with a token that it comes after, its context. Tokens of a chunk that share
a context are a part. As tokens go on, contexts close and never open again, so N
chunks have at most 2 N - 3 parts, whatever the tree.

Of a chunk that becomes a context, one path is still open at its end. Let E be
the state before that path begins, and u what each token writes to the state.
What tokens of a part recall from before their chunk, where w_t and D_ts are
decays as in `delta_rule`, is known from E and u of the context:

  recalled_t = w_t E^T k_t + sum_s D_ts (k_s . k_t) u_s

And so is the E of a chunk, with its path's first token in place of t. So a scan
over parts finds E and u of all chunks.

Axes: as in `delta_rule`, without B; M parts, C tokens of a part's chunk, S of
its context, L those of the chunk and the beginning of its path.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.model import sharding
from agentrl_jax.model.recurrent.chunks import Chunks, Inside, exact

_Memory = tuple[jax.Array, jax.Array]  # E [..., H, K, V] and u [..., H, C, V]


class _Parts(NamedTuple):
  """Parts of a row, in order; those that there are not have no tokens."""

  chunk_M: jax.Array
  context_M: jax.Array
  target_ML: jax.Array  # places of the chunk's tokens, and of its path's first
  is_its_ML: jax.Array  # of those, the ones that belong to the part


class _Links(NamedTuple):
  """The linear map from a context's memory to a part of the chunk's."""

  kept_MH: jax.Array
  added_MHKS: jax.Array
  asked_MHCK: jax.Array
  corrected_MHCS: jax.Array

  def __call__(self, memory: _Memory) -> _Memory:
    """Returns what the part adds to its chunk's memory."""
    before, u = memory
    return (
      self.kept_MH[..., None, None] * before + self.added_MHKS @ u,
      -(self.asked_MHCK @ before + self.corrected_MHCS @ u),
    )


def follow(c: Chunks, inside: Inside) -> jax.Array:
  """Returns the outputs, [B, N, H, C, V], of rows of trees."""
  of_rows = Chunks(*[0] * 6, place_NC=None)
  return jax.vmap(_of_row, in_axes=(of_rows, 0))(c, inside)


def _of_row(c: Chunks, inside: Inside) -> jax.Array:
  parts = _parts(c.end_BNC, c.place_NC)
  own, other = (
    [x[at] for x in c[:5]] for at in (parts.chunk_M, parts.context_M)
  )
  q_MHCK, k_MHCK, _, _, beta_MHC = own
  _, k_MHSK, _, g_MHS, _ = other
  sees_MLS = parts.is_its_ML[..., None] & (
    parts.target_ML[..., None] < c.end_BNC[parts.context_M][:, None]
  )
  passed_MHLS = sees_MLS[:, None] * g_MHS[:, :, None]
  age_MHL = jnp.pad(inside.age_BNHC[parts.chunk_M], ((0, 0), (0, 0), (0, 1)))
  reach_MHL = parts.is_its_ML[:, None] * jnp.exp(
    age_MHL + jnp.sum(passed_MHLS, axis=-1)
  )
  after_SS = jnp.tril(jnp.ones(sees_MLS.shape[-1:] * 2), -1)
  decay_MHLS = sees_MLS[:, None] * jnp.exp(
    age_MHL[..., None] + exact(passed_MHLS, after_SS)
  )
  reach_MHC1, decay_MHCS = reach_MHL[..., :-1, None], decay_MHLS[..., :-1, :]
  inverse_MHCC = inside.inverse_BNHCS[parts.chunk_M] * beta_MHC[..., None, :]
  across_MHKS = jnp.swapaxes(k_MHSK, -1, -2)
  links = _Links(
    kept_MH=reach_MHL[..., -1],
    added_MHKS=across_MHKS * decay_MHLS[..., -1:, :],
    asked_MHCK=inverse_MHCC @ (reach_MHC1 * k_MHCK),
    corrected_MHCS=inverse_MHCC @ (decay_MHCS * exact(k_MHCK, across_MHKS)),
  )
  given_NHCV = inside.inverse_BNHCS @ (c.beta_BNHC[..., None] * c.v_BNHCV)
  before, u = _carry(links, parts.chunk_M, parts.context_M, given_NHCV)
  score_NHCS = c.q_BNHCK @ jnp.swapaxes(c.k_BNHCK, -1, -2)
  out_NHCV = (score_NHCS * inside.decay_BNHCS) @ u
  out_MHCV = (reach_MHC1 * q_MHCK) @ before[parts.context_M]
  out_MHCV += (decay_MHCS * (q_MHCK @ across_MHKS)) @ u[parts.context_M]
  return out_NHCV.at[parts.chunk_M].add(out_MHCV)


def _parts(end_NC: jax.Array, place_NC: jax.Array) -> _Parts:
  """Lists the parts of a row."""
  num_chunks, chunk = end_NC.shape
  most = max(2 * num_chunks - 3, 0)
  number_N = jnp.arange(num_chunks)
  is_open_NCN = (number_N < number_N[:, None, None]) & (
    place_NC[..., None] < jnp.max(end_NC, axis=1)
  )
  context_NC = jnp.max(jnp.where(is_open_NCN, number_N, -1), axis=2)
  begins_NC = (context_NC >= 0) & (
    context_NC
    != jnp.pad(context_NC[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
  )
  part_NC = jnp.cumsum(begins_NC).reshape(begins_NC.shape) - 1
  part_NC = jnp.where(context_NC >= 0, part_NC, -1)
  chunk_M, at_M = jnp.nonzero(begins_NC, size=most, fill_value=0)
  # The first token of the path that is open at a chunk's end.
  first_N = jnp.argmax(end_NC > place_NC[:, -1:] + 1, axis=1)[:, None]
  place_NL, part_NL = (
    jnp.concatenate([x, jnp.take_along_axis(x, first_N, axis=1)], axis=1)
    for x in (place_NC, part_NC)
  )
  is_its_ML = part_NL[chunk_M] == jnp.arange(most)[:, None]
  context_M = jnp.maximum(context_NC[chunk_M, at_M], 0)
  return _Parts(chunk_M, context_M, place_NL[chunk_M], is_its_ML)


@jax.custom_vjp
def _carry(
  links: _Links, chunk_M: jax.Array, context_M: jax.Array, given_NHCV: jax.Array
) -> _Memory:
  """Returns the memory of all chunks, [N, H, ...]; u is `given` if alone.

  The derivative of a scan that changes an array in place would copy that array
  in each step; here slopes are added in place, too.
  """

  def step(memory: _Memory, part):
    link, chunk, context = part
    added = link(jax.tree.map(lambda x: x[context], memory))
    return jax.tree.map(lambda x, y: x.at[chunk].add(y), memory, added), None

  num_chunks, *_, values = given_NHCV.shape
  heads_and_keys = links.added_MHKS.shape[1:3]
  before = jnp.zeros((num_chunks, *heads_and_keys, values))
  before = sharding.varying_like(before, given_NHCV)
  memory, _ = jax.lax.scan(
    step, (before, given_NHCV), (links, chunk_M, context_M)
  )
  return memory


def _carry_forward(links, chunk_M, context_M, given_NHCV):
  memory = _carry(links, chunk_M, context_M, given_NHCV)
  return memory, (links, chunk_M, context_M, memory)


def _carry_backward(kept, slopes: _Memory):
  links, chunk_M, context_M, memory = kept

  def step(slopes: _Memory, part):
    link, chunk, context = part
    _, pull = jax.vjp(
      lambda link, memory: link(memory),
      link,
      jax.tree.map(lambda x: x[context], memory),
    )
    link_slope, added = pull(jax.tree.map(lambda x: x[chunk], slopes))
    return (
      jax.tree.map(lambda x, y: x.at[context].add(y), slopes, added),
      link_slope,
    )

  slopes, link_slopes = jax.lax.scan(
    step, slopes, (links, chunk_M, context_M), reverse=True
  )
  return link_slopes, None, None, slopes[1]


_carry.defvjp(_carry_forward, _carry_backward)
