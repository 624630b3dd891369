"""The gated delta rule: a state that forgets, and corrects what it recalls.

Of a head, with keys of length 1, a log decay g <= 0 and a rate beta in [0, 1]
(Gated Delta Networks, arXiv:2412.06464, equation 10):

  S_t = exp(g_t) S_{t-1} + k_t u_t^T
  u_t = beta_t (v_t - exp(g_t) S_{t-1}^T k_t)
  o_t = S_t^T q_t

`recurrent` computes just this, token by token. `chunked` computes the same for
packed rows by products of matrices, with one step of a scan for each chunk of C
tokens (`recurrent.chunks`). With S the state before a chunk and w_t the decay
from there to token t, 0 if a sequence began in between:

  u = (I + A)^-1 beta (v - w k S)
  o_t = w_t q_t S + sum_s (q_t . k_s) D_ts u_s

Axes: B rows, T tokens, H heads, K key channels, V value channels; N chunks of C
tokens, of which S are those that are seen.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.model import sharding
from agentrl_jax.model.recurrent import chunks, trees
from agentrl_jax.model.recurrent.ancestry import Ancestry, ancestry

# In shorter chunks products are too small, in longer ones the square of the
# chunk weighs more than the state.
CHUNK = 64
# The most tokens of a sequence that the recurrence continues faster.
_SHORT = 8


def unit(x: jax.Array, epsilon: float = 1e-6) -> jax.Array:
  """x / |x| over the last axis in float32, as queries and keys need it."""
  x = x.astype(jnp.float32)
  return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + epsilon)


def recurrent(
  q_BTHK: jax.Array,
  k_BTHK: jax.Array,
  v_BTHV: jax.Array,
  g_BTH: jax.Array,
  beta_BTH: jax.Array,
  state_BHKV: jax.Array,
  length_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Continues sequences token by token.

  The first `length_B[b]` tokens of row b count: others leave the state as it
  was, and their outputs mean nothing. Returns the outputs [B, T, H, V] of v's
  dtype, and the float32 state after them.
  """
  is_real_BT = jnp.arange(q_BTHK.shape[1]) < length_B[:, None]

  def step(state_BHKV: jax.Array, token):
    q, k, v, g, beta = token
    state_BHKV = jnp.exp(g)[..., None, None] * state_BHKV
    recalled_BHV = jnp.sum(state_BHKV * k[..., None], axis=-2)
    u_BHV = beta[..., None] * (v - recalled_BHV)
    state_BHKV += k[..., None] * u_BHV[..., None, :]
    return state_BHKV, jnp.sum(state_BHKV * q[..., None], axis=-2)

  tokens = chunks.cleaned(is_real_BT, (q_BTHK, k_BTHK, v_BTHV, g_BTH, beta_BTH))
  state_BHKV, out_TBHV = jax.lax.scan(
    step, state_BHKV, [jnp.moveaxis(x, 1, 0) for x in tokens]
  )
  return jnp.moveaxis(out_TBHV, 0, 1).astype(v_BTHV.dtype), state_BHKV


def extend(
  q_BTHK: jax.Array,
  k_BTHK: jax.Array,
  v_BTHV: jax.Array,
  g_BTH: jax.Array,
  beta_BTH: jax.Array,
  state_BHKV: jax.Array,
  length_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Computes `recurrent` in the faster way for as many tokens."""
  tokens = (q_BTHK, k_BTHK, v_BTHV, g_BTH, beta_BTH)
  length = q_BTHK.shape[1]
  if length <= _SHORT:
    return recurrent(*tokens, state_BHKV, length_B)
  is_real_BT = jnp.arange(length) < length_B[:, None]
  rows = ancestry(is_real_BT.astype(jnp.int32))
  cut = chunks.cut(rows, CHUNK, tokens)
  out, state_BHKV = _follow(cut, chunks.solve(cut), state_BHKV)
  return chunks.joined(out, length).astype(v_BTHV.dtype), state_BHKV


def chunked(
  q_BTHK: jax.Array,
  k_BTHK: jax.Array,
  v_BTHV: jax.Array,
  g_BTH: jax.Array,
  beta_BTH: jax.Array,
  rows: Ancestry,
  *,
  chunk: int = CHUNK,
) -> jax.Array:
  """Computes packed rows, whose sequences and trees begin from zero.

  `chunk` is a power of two, in tokens. Padding changes nothing, whatever it
  holds. Returns the outputs [B, T, H, V] of v's dtype; those of padding mean
  nothing.
  """
  num_rows, length, *heads = k_BTHK.shape
  tokens = (q_BTHK, k_BTHK, v_BTHV, g_BTH, beta_BTH)
  cut = chunks.cut(rows, chunk, tokens)
  inside = chunks.solve(cut)
  if rows.parent_BT is not None:
    out = trees.follow(cut, inside)
  else:
    zeros = jnp.zeros((num_rows, *heads, v_BTHV.shape[-1]))
    out, _ = _follow(cut, inside, sharding.varying_like(zeros, k_BTHK))
  return chunks.joined(out, length).astype(v_BTHV.dtype)


def _follow(
  c: chunks.Chunks, inside: chunks.Inside, state_BHKV: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns outputs [B, N, H, C, V] and the state after the rows."""
  # The state is of the sequence that the token before the chunk is of.
  end_BN = jnp.concatenate([c.end_BNC[:, :1, 0], c.end_BNC[:, :-1, -1]], axis=1)
  is_its_BNC = c.place_NC < end_BN[..., None]
  reach_BNHC = is_its_BNC[:, :, None] * jnp.exp(inside.age_BNHC)
  # Of what the system gives, one part is known and one waits for the state.
  given_BNHCV = inside.inverse_BNHCS @ c.v_BNHCV
  asked_BNHCK = inside.inverse_BNHCS @ (reach_BNHC[..., None] * c.k_BNHCK)
  kept_BNHKC = jnp.swapaxes(
    inside.decay_BNHCS[..., -1, :, None] * c.k_BNHCK, -1, -2
  )

  def step(state_BHKV: jax.Array, chunk):
    given, asked, kept, reach = chunk
    u_BHCV = given - asked @ state_BHKV
    after = reach[..., None, None] * state_BHKV + kept @ u_BHCV
    return after, (state_BHKV, u_BHCV)

  over = (given_BNHCV, asked_BNHCK, kept_BNHKC, reach_BNHC[..., -1])
  state_BHKV, (before, u) = jax.lax.scan(
    step, state_BHKV, [jnp.moveaxis(x, 1, 0) for x in over]
  )
  out_BNHCV = inside.mixed_BNHCS @ jnp.moveaxis(u, 0, 1)
  out_BNHCV += (reach_BNHC[..., None] * c.q_BNHCK) @ jnp.moveaxis(before, 0, 1)
  return out_BNHCV, state_BHKV
