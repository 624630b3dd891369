"""Chunks of rows for the gated delta rule, and what happens within each.

Within a chunk, D_ts is the decay from token s to token t, 1 for t itself and 0
unless t comes after s. What its tokens write to the state, u, solves a
triangular system, the WY form of arXiv:2406.06484:

  (I + A) u = beta (v - recalled from before the chunk)
  A_ts = beta_t (k_t . k_s) D_ts for s before t

The system is inverted block by block, as exactly as by substitution: in a power
series of A, repeated keys make terms as large as binomials, whose sum has no
digits left. Logs of decays are sums along the path from s to t, never
differences of sums from the row's start, so a strong decay beside a weak one
costs no digits.

Axes: as in `delta_rule`; C tokens of a chunk, of which S are seen.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.model.recurrent.ancestry import Ancestry

# Exponents and systems are not rounded to bfloat16, as TPUs do by default.
exact = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


class Chunks(NamedTuple):
  """Rows of tokens in chunks, float32; padding is 0."""

  q_BNHCK: jax.Array
  k_BNHCK: jax.Array
  v_BNHCV: jax.Array
  g_BNHC: jax.Array
  beta_BNHC: jax.Array
  end_BNC: jax.Array  # as in `Ancestry`; above all places if it is the row's
  place_NC: jax.Array  # of tokens in their row

  @property
  def sees_BN1CS(self) -> jax.Array:
    """Tells if a token s is t or an ancestor of t."""
    s_N1C, t_NC1 = self.place_NC[:, None], self.place_NC[..., None]
    sees_BNCS = (s_N1C <= t_NC1) & (t_NC1 < self.end_BNC[:, :, None])
    return sees_BNCS[:, :, None]


class Inside(NamedTuple):
  """Relations of the tokens within each chunk."""

  decay_BNHCS: jax.Array  # D
  age_BNHC: jax.Array  # log of the decay from before the chunk to a token
  inverse_BNHCS: jax.Array  # (I + A)^-1 diag(beta)
  mixed_BNHCS: jax.Array  # weights of u in outputs


def cut(rows: Ancestry, chunk: int, tokens: tuple[jax.Array, ...]) -> Chunks:
  """Cuts q, k, v, g and beta, [B, T, H, ...] each, into chunks.

  `chunk` is a power of two; chunks are shorter if the row is. The last one is
  filled up with tokens of the row's last sequence.
  """
  length = rows.end_BT.shape[1]
  chunk = min(chunk, 1 << (length - 1).bit_length())
  end_BT = jnp.where(rows.end_BT < length, rows.end_BT, 2 * length)
  end_BNC = _in_chunks(end_BT, chunk, 2 * length)
  place_NC = jnp.arange(end_BNC[0].size).reshape(end_BNC.shape[1:])
  parts = (
    jnp.moveaxis(_in_chunks(x, chunk), 3, 2)
    for x in cleaned(rows.is_real_BT, tokens)
  )
  return Chunks(*parts, end_BNC, place_NC)


def joined(out_BNHCV: jax.Array, length: int) -> jax.Array:
  """Returns what `cut` has cut, [B, T, H, V]."""
  out_BNCHV = jnp.moveaxis(out_BNHCV, 2, 3)
  num_rows, _, _, *rest = out_BNCHV.shape
  return out_BNCHV.reshape(num_rows, -1, *rest)[:, :length]


def cleaned(
  is_real_BT: jax.Array, tokens: tuple[jax.Array, ...]
) -> list[jax.Array]:
  """Returns [B, T, ...] in float32, with 0 in place of padding's values."""
  return [
    jnp.where(
      is_real_BT.reshape(*is_real_BT.shape, *[1] * (x.ndim - 2)), x, 0
    ).astype(jnp.float32)
    for x in tokens
  ]


def solve(c: Chunks) -> Inside:
  """Computes what does not depend on what is before a chunk."""
  sees = c.sees_BN1CS
  is_self = jnp.eye(sees.shape[-1], dtype=bool)
  passed = sees * c.g_BNHC[..., None, :]  # on the way to t
  decay = sees * jnp.exp(exact(passed, (sees & ~is_self).astype(jnp.float32)))
  keys_BNHKS = jnp.swapaxes(c.k_BNHCK, -1, -2)
  system = c.beta_BNHC[..., None] * decay * exact(c.k_BNHCK, keys_BNHKS)
  inverse = _inverse(system) * c.beta_BNHC[..., None, :]
  mixed = decay * (c.q_BNHCK @ keys_BNHKS)
  return Inside(decay, jnp.sum(passed, axis=-1), inverse, mixed)


@jax.custom_vjp
def _inverse(system: jax.Array) -> jax.Array:
  """Inverts I + A, of which `system` holds A below the diagonal.

    | P 0 |^-1   |   P^-1          0   |
    | Q R |    = | -R^-1 Q P^-1   R^-1 |

  Both blocks of a level are inverted as one batch. Sizes are powers of two.
  Entries stay as small as those of the inverse itself. On a CPU it is several
  times as fast as `jax.lax.linalg.triangular_solve`.
  """
  half = system.shape[-1] // 2
  if not half:
    return jnp.ones_like(system)
  blocks = [system[..., :half, :half], system[..., half:, half:]]
  inverse = _inverse(jnp.stack(blocks, axis=-3))
  first, second = inverse[..., 0, :, :], inverse[..., 1, :, :]
  below = -exact(second, exact(system[..., half:, :half], first))
  rows = (
    jnp.concatenate([first, jnp.zeros_like(first)], axis=-1),
    jnp.concatenate([below, second], axis=-1),
  )
  return jnp.concatenate(rows, axis=-2)


def _inverse_forward(system: jax.Array) -> tuple[jax.Array, jax.Array]:
  inverse = _inverse(system)
  return inverse, inverse


def _inverse_backward(inverse: jax.Array, slope: jax.Array) -> tuple[jax.Array]:
  turned = jnp.swapaxes(inverse, -1, -2)
  return (-jnp.tril(exact(turned, exact(slope, turned)), -1),)


_inverse.defvjp(_inverse_forward, _inverse_backward)


def _in_chunks(x: jax.Array, chunk: int, fill: int = 0) -> jax.Array:
  """Cuts axis 1 into two, filled up: [B, N, C, ...]."""
  widths = ((0, 0), (0, -x.shape[1] % chunk), *[(0, 0)] * (x.ndim - 2))
  x = jnp.pad(x, widths, constant_values=fill)
  return x.reshape(x.shape[0], -1, chunk, *x.shape[2:])
