"""The distribution that a token is drawn from, and the draw itself.

Pure functions on one row of logits per slot. Every setting is an array with one
entry per slot, so requests with different settings share a batch and nothing is
recompiled. A draw depends on its slot's key alone, never on its neighbours.

Biases and penalties come first, where a request has any (`shaping`). A grammar
comes next: what it does not allow has no weight, and temperature and
truncation know nothing of it. Log-probabilities of the behavior are under what
is left; raw ones are over the whole vocabulary, grammar or not.

Truncation comes after temperature: first what weighs at least `min_p` of the
likeliest token (arXiv:2407.01082), of that the `top_k` likeliest, and of what
they weigh together the smallest set that holds `top_p`. Tokens that tie with
the last one kept are kept too. The learner that divides by the
behavior's probability has to apply `truncate` to its own scaled logits.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.rollout.engine.shaping import Shaping, shaped, top_logprobs

_BLOCK = 128  # tokens whose weights are added up first


@chex.dataclass(frozen=True)
class Drawn:
  """One token per slot; log-probabilities in nats."""

  token_B: jax.Array
  behavior_logprob_B: jax.Array  # under the distribution drawn from
  raw_logprob_B: jax.Array  # at temperature 1, of all tokens
  # The likeliest tokens, where any slot is shaped; see `shaping`.
  top_token_BK: jax.Array | None = None
  top_logprob_BK: jax.Array | None = None


def sample(
  logits_BV: jax.Array,
  *,
  temperature_B: jax.Array,
  top_k_B: jax.Array,
  top_p_B: jax.Array,
  min_p_B: jax.Array,
  key_B: jax.Array,
  allowed_BW: jax.Array | None = None,
  shaping: Shaping | None = None,
) -> Drawn:
  """Draws one token per slot; temperature 0 takes the likeliest.

  `allowed_BW` has the tokens that a grammar allows, as `data.grammar` writes
  them, at least one per slot; without, all are allowed. `shaping` has
  penalties and biases, which come before all else; raw log-probabilities know
  nothing of them.

  What greedy decoding does has probability 1: its behavior log-probability
  is 0.
  """
  of_slots = [temperature_B, top_k_B, top_p_B, min_p_B]
  chex.assert_rank([logits_BV, *of_slots], [2, 1, 1, 1, 1])
  logits_BV = logits_BV.astype(jnp.float32)
  greedy_B = temperature_B <= 0
  raw_BV = logits_BV
  if shaping is not None:
    logits_BV = shaped(logits_BV, shaping)
  if allowed_BW is not None:
    allowed_BV = _bits(allowed_BW)[:, : logits_BV.shape[-1]]
    logits_BV = jnp.where(allowed_BV, logits_BV, -jnp.inf)
  scaled_BV = logits_BV / jnp.where(greedy_B, 1, temperature_B)[:, None]
  scaled_BV = jax.lax.cond(
    jnp.any((top_k_B > 0) | (top_p_B < 1) | (min_p_B > 0)),
    lambda: truncate(scaled_BV, top_k_B, top_p_B, min_p_B),
    lambda: scaled_BV,
  )
  likeliest_B = _first(_is_largest(logits_BV))
  token_B = jax.lax.cond(
    jnp.all(greedy_B),
    lambda: likeliest_B,
    lambda: jnp.where(greedy_B, likeliest_B, _invert(scaled_BV, key_B)),
  ).astype(jnp.int32)
  behavior_logprob_B = jnp.where(greedy_B, 0, _logprob(scaled_BV, token_B))
  top: dict[str, jax.Array] = {}
  if shaping is not None:
    top["top_token_BK"], top["top_logprob_BK"] = top_logprobs(
      raw_BV, scaled_BV, greedy_B, token_B, shaping
    )
  return Drawn(
    token_B=token_B,
    behavior_logprob_B=behavior_logprob_B,
    raw_logprob_B=_logprob(raw_BV, token_B),
    **top,
  )


def _bits(word_BW: jax.Array) -> jax.Array:
  """The bits of uint32 words, the lowest of each first: bool [B, 32 W]."""
  bit_BW32 = word_BW[:, :, None] >> jnp.arange(32, dtype=jnp.uint32) & 1
  return bit_BW32.reshape(word_BW.shape[0], -1) > 0


def truncate(
  scaled_BV: jax.Array,
  top_k_B: jax.Array,
  top_p_B: jax.Array,
  min_p_B: jax.Array,
) -> jax.Array:
  """Sets what `min_p`, `top_k` (0: all) and `top_p` (1: all) leave out to -inf.

  A `min_p` of 0 asks for a log-probability of -inf or more, which all have.
  """
  least_B1 = (
    jnp.max(scaled_BV, axis=-1, keepdims=True) + jnp.log(min_p_B)[:, None]
  )
  scaled_BV = jnp.where(scaled_BV >= least_B1, scaled_BV, -jnp.inf)
  order_BV = _order_bits(scaled_BV)
  one_BV = jnp.ones_like(scaled_BV)
  least_B = _least_kept(order_BV, one_BV, top_k_B.astype(jnp.float32))
  within_BV = (order_BV >= least_B[:, None]) | (top_k_B <= 0)[:, None]
  scaled_BV = jnp.where(within_BV, scaled_BV, -jnp.inf)
  weight_BV = jax.nn.softmax(scaled_BV, axis=-1)
  least_B = _least_kept(order_BV, weight_BV, top_p_B)
  within_BV = (order_BV >= least_B[:, None]) | (top_p_B >= 1)[:, None]
  return jnp.where(within_BV, scaled_BV, -jnp.inf)


def _order_bits(x: jax.Array) -> jax.Array:
  """Unsigned integers in the same order as the float32 they come from."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  sign = jnp.uint32(1 << 31)
  return jnp.where(bits >= sign, ~bits, bits | sign)


def _least_kept(
  order_BV: jax.Array, weight_BV: jax.Array, needed_B: jax.Array
) -> jax.Array:
  """The largest threshold that what reaches it weighs at least `needed`.

  One bit at a time, 32 passes over the vocabulary: exact, and many times
  faster than sorting it.
  """

  def decide(i, least_B):
    higher_B = least_B | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
    reached_BV = order_BV >= higher_B[:, None]
    weight_B = jnp.sum(weight_BV, axis=-1, where=reached_BV)
    return jnp.where(weight_B >= needed_B, higher_B, least_B)

  return jax.lax.fori_loop(
    0, 32, decide, jnp.zeros(order_BV.shape[:1], jnp.uint32)
  )


def slot_keys(
  seed_high_B: jax.Array, seed_low_B: jax.Array, position_B: jax.Array
) -> jax.Array:
  """One key per slot, decided by its request's seed and the token's position.

  Both halves of a 64-bit seed count. Threefry is named, so that a change of
  jax's default generator changes no rollout.
  """
  seed_B2 = jnp.stack([seed_high_B, seed_low_B], axis=-1)
  key_B = jax.random.wrap_key_data(
    jax.lax.bitcast_convert_type(seed_B2, jnp.uint32), impl="threefry2x32"
  )
  return jax.vmap(jax.random.fold_in)(key_B, position_B)


def _invert(scaled_BV: jax.Array, key_B: jax.Array) -> jax.Array:
  """Inverts the cumulative distribution at one uniform number per slot.

  One number per slot rather than one per token of the vocabulary. Weights are
  added up by blocks, and one by one only in the block that is met: a running
  sum over a vocabulary takes longer than all else that is done to logits.
  """
  num_slots, vocab_size = scaled_BV.shape
  weight_BV = jnp.exp(scaled_BV - jnp.max(scaled_BV, axis=-1, keepdims=True))
  padding = ((0, 0), (0, -vocab_size % _BLOCK))
  weight_BNS = jnp.pad(weight_BV, padding).reshape(num_slots, -1, _BLOCK)
  sum_BN = jnp.sum(weight_BNS, axis=-1)
  total_BN = jnp.cumsum(sum_BN, axis=-1)
  uniform_B = jax.vmap(jax.random.uniform)(key_B)
  threshold_B1 = uniform_B[:, None] * total_BN[:, -1:]
  block_B1 = _meet(sum_BN, total_BN, threshold_B1)
  before_B1 = _at(total_BN, block_B1) - _at(sum_BN, block_B1)
  weight_BS = _at(weight_BNS, block_B1[:, :, None])[:, 0]
  place_B1 = _meet(
    weight_BS, jnp.cumsum(weight_BS, axis=-1), threshold_B1 - before_B1
  )
  return (block_B1 * _BLOCK + place_B1)[:, 0]


def _meet(
  weight_BN: jax.Array, total_BN: jax.Array, threshold_B1: jax.Array
) -> jax.Array:
  """Index of the first weight whose running total is above the threshold.

  A parallel sum of floats need not grow monotonically, so what has no weight is
  never eligible, and a threshold that rounding lifts above the total means the
  last that has weight.
  """
  has_weight_BN = weight_BN > 0
  reached_BN = has_weight_BN & (total_BN > threshold_B1)
  index_N = jnp.arange(weight_BN.shape[-1])
  last_B = jnp.max(jnp.where(has_weight_BN, index_N, 0), axis=-1)
  return jnp.minimum(_first(reached_BN), last_B)[:, None]


def _at(x: jax.Array, index: jax.Array) -> jax.Array:
  return jnp.take_along_axis(x, index, axis=1)


def _is_largest(x_BV: jax.Array) -> jax.Array:
  return x_BV == jnp.max(x_BV, axis=-1, keepdims=True)


def _first(is_it_BV: jax.Array) -> jax.Array:
  """Index of the first True; the last index if there is none.

  As a plain minimum it takes a tenth of `argmax`'s time on a CPU.
  """
  last = is_it_BV.shape[-1] - 1
  return jnp.min(jnp.where(is_it_BV, jnp.arange(last + 1), last), axis=-1)


def _logprob(logits_BV: jax.Array, token_B: jax.Array) -> jax.Array:
  return _at(logits_BV, token_B[:, None])[:, 0] - jax.nn.logsumexp(
    logits_BV, axis=-1
  )
