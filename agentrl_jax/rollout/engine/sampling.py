"""The distribution that a token is drawn from, and the draw itself.

Pure functions on one row of logits per slot. Each setting is an array with one
entry per slot, so requests with different settings share a batch and a compiled
program. A draw depends only on the key of its slot, never on other slots.

The order is: biases and penalties (`Shaping`), the mask of a grammar,
temperature, truncation. Truncation keeps tokens with at least `min_p` of the
probability of the likeliest one (arXiv:2407.01082), of these the `top_k`
likeliest, and of these the smallest set with probability `top_p`; tokens that
tie with the last one kept are kept too. Behavior log-probabilities are under
the resulting distribution, raw ones under the policy at temperature 1, without
a mask. A learner that divides by the behavior's probability has to apply
`truncate` to its own scaled logits.

Axes: B slots of the cache, P slots taken out, V vocabulary, N entries of a
bias, K alternatives.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.rollout.api import MAX_BIASES, MAX_TOP, SamplingParams

_BLOCK = 128  # tokens of the vocabulary whose weights are summed first


@chex.dataclass(frozen=True)
class Sample:
  """One token per slot; log-probabilities in nats."""

  token_B: jax.Array
  behavior_logprob_B: jax.Array  # under the distribution drawn from
  raw_logprob_B: jax.Array  # at temperature 1, of all tokens
  # Alternatives, where any slot is shaped; see `top_logprobs`.
  top_token_BK: jax.Array | None = None
  top_logprob_BK: jax.Array | None = None


@chex.dataclass(frozen=True)
class Shaping:
  """Penalties, biases and alternatives per slot; 0 for slots without.

    logit'_j = logit_j + bias_j - frequency c_j - presence [c_j > 0]

  with c_j the number of times that the request has sampled token j, prompt
  tokens not counted (OpenAI's definition). A bias is added to logits, so the
  same bias for all tokens changes nothing.

  The arrays have a row of the vocabulary per slot, so they are allocated only
  while a request needs them, and programs with them are compiled separately.
  """

  count_BV: jax.Array  # int32, times that the slot's request sampled a token
  bias_BV: jax.Array  # float32
  frequency_B: jax.Array
  presence_B: jax.Array
  num_top_B: jax.Array  # int32, alternatives to return
  is_raw_B: jax.Array  # bool: alternatives of the policy, or of the draw


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
) -> Sample:
  """Draws one token per slot; temperature 0 takes the likeliest.

  Args:
    logits_BV: of the policy.
    temperature_B: 0 is greedy: the token has behavior probability 1.
    top_k_B: 0 keeps all tokens.
    top_p_B: 1 keeps all tokens.
    min_p_B: 0 keeps all tokens.
    key_B: one random key per slot; see `slot_keys`.
    allowed_BW: masks of grammars as `data.grammar` packs them, with at least
      one allowed token per slot; None allows all tokens.
    shaping: applied before everything else.
  """
  of_slots = [temperature_B, top_k_B, top_p_B, min_p_B]
  chex.assert_rank([logits_BV, *of_slots], [2, 1, 1, 1, 1])
  logits_BV = logits_BV.astype(jnp.float32)
  greedy_B = temperature_B <= 0
  raw_BV = logits_BV
  if shaping is not None:
    logits_BV = shape_logits(logits_BV, shaping)
  if allowed_BW is not None:
    allowed_BV = _unpack_bits(allowed_BW)[:, : logits_BV.shape[-1]]
    logits_BV = jnp.where(allowed_BV, logits_BV, -jnp.inf)
  scaled_BV = logits_BV / jnp.where(greedy_B, 1, temperature_B)[:, None]
  scaled_BV = jax.lax.cond(
    jnp.any((top_k_B > 0) | (top_p_B < 1) | (min_p_B > 0)),
    lambda: truncate(scaled_BV, top_k_B, top_p_B, min_p_B),
    lambda: scaled_BV,
  )
  largest_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
  likeliest_B = _first_true(logits_BV == largest_B1)
  token_B = jax.lax.cond(
    jnp.all(greedy_B),
    lambda: likeliest_B,
    lambda: jnp.where(greedy_B, likeliest_B, _invert_cdf(scaled_BV, key_B)),
  ).astype(jnp.int32)
  behavior_logprob_B = jnp.where(greedy_B, 0, _logprob(scaled_BV, token_B))
  top: dict[str, jax.Array] = {}
  if shaping is not None:
    top["top_token_BK"], top["top_logprob_BK"] = top_logprobs(
      raw_BV, scaled_BV, greedy_B, token_B, shaping
    )
  return Sample(
    token_B=token_B,
    behavior_logprob_B=behavior_logprob_B,
    raw_logprob_B=_logprob(raw_BV, token_B),
    **top,
  )


def truncate(
  scaled_BV: jax.Array,
  top_k_B: jax.Array,
  top_p_B: jax.Array,
  min_p_B: jax.Array,
) -> jax.Array:
  """Sets tokens outside `min_p`, `top_k` (0: all), `top_p` (1: all) to -inf.

  A `min_p` of 0 asks for a log-probability of at least -inf, which all have.
  """
  least_B1 = (
    jnp.max(scaled_BV, axis=-1, keepdims=True) + jnp.log(min_p_B)[:, None]
  )
  scaled_BV = jnp.where(scaled_BV >= least_B1, scaled_BV, -jnp.inf)
  order_BV = _sortable_bits(scaled_BV)
  one_BV = jnp.ones_like(scaled_BV)
  threshold_B = _threshold(order_BV, one_BV, top_k_B.astype(jnp.float32))
  within_BV = (order_BV >= threshold_B[:, None]) | (top_k_B <= 0)[:, None]
  scaled_BV = jnp.where(within_BV, scaled_BV, -jnp.inf)
  weight_BV = jax.nn.softmax(scaled_BV, axis=-1)
  threshold_B = _threshold(order_BV, weight_BV, top_p_B)
  within_BV = (order_BV >= threshold_B[:, None]) | (top_p_B >= 1)[:, None]
  return jnp.where(within_BV, scaled_BV, -jnp.inf)


def slot_keys(
  seed_high_B: jax.Array, seed_low_B: jax.Array, position_B: jax.Array
) -> jax.Array:
  """Makes one key per slot from its request's seed and the token's position.

  Both halves of a 64-bit seed count. Threefry is named, so that a change of
  jax's default generator changes no rollout.
  """
  seed_B2 = jnp.stack([seed_high_B, seed_low_B], axis=-1)
  key_B = jax.random.wrap_key_data(
    jax.lax.bitcast_convert_type(seed_B2, jnp.uint32), impl="threefry2x32"
  )
  return jax.vmap(jax.random.fold_in)(key_B, position_B)


def empty_shaping(num_slots: int, vocab_size: int) -> Shaping:
  """Allocates the arrays of slots without penalties, biases, alternatives."""
  shape = (num_slots, vocab_size)
  return Shaping(
    count_BV=jnp.zeros(shape, jnp.int32),
    bias_BV=jnp.zeros(shape, jnp.float32),
    frequency_B=jnp.zeros(num_slots, jnp.float32),
    presence_B=jnp.zeros(num_slots, jnp.float32),
    num_top_B=jnp.zeros(num_slots, jnp.int32),
    is_raw_B=jnp.zeros(num_slots, bool),
  )


def set_shaping(
  shaping: Shaping, slot: int, sampling: SamplingParams
) -> Shaping:
  """Writes the row of a slot whose request starts; donates `shaping`."""
  id_N = np.full(MAX_BIASES, -1, np.int32)
  bias_N = np.zeros(MAX_BIASES, np.float32)
  for number, (token, bias) in enumerate(sampling.logit_bias):
    id_N[number], bias_N[number] = token, bias
  return _set_shaping(
    shaping,
    np.int32(slot),
    id_N,
    bias_N,
    np.float32(sampling.frequency_penalty),
    np.float32(sampling.presence_penalty),
    np.int32(sampling.num_top),
    np.bool_(sampling.top_is_raw),
  )


def set_counts(shaping: Shaping, slot: int, token_N: np.ndarray) -> Shaping:
  """Counts tokens that a slot's request has sampled; donates `shaping`."""
  vocab_size = shaping.count_BV.shape[1]
  count_V = np.bincount(token_N, minlength=vocab_size).astype(np.int32)
  return _set_counts(shaping, np.int32(slot), count_V)


@functools.partial(jax.jit, donate_argnames=("shaping",))
def _set_counts(
  shaping: Shaping, slot: jax.Array, count_V: jax.Array
) -> Shaping:
  count_BV = shaping.count_BV.at[slot].set(count_V)
  return shaping.replace(count_BV=count_BV)


@functools.partial(jax.jit, donate_argnames=("shaping",))
def _set_shaping(
  shaping: Shaping,
  slot: jax.Array,
  id_N: jax.Array,
  bias_N: jax.Array,
  frequency: jax.Array,
  presence: jax.Array,
  num_top: jax.Array,
  is_raw: jax.Array,
) -> Shaping:
  vocab_size = shaping.bias_BV.shape[1]
  # Unused entries point beyond the vocabulary, where writes are dropped.
  index_N = jnp.where(id_N < 0, vocab_size, id_N)
  bias_V = jnp.zeros(vocab_size).at[index_N].set(bias_N, mode="drop")
  return Shaping(
    count_BV=shaping.count_BV.at[slot].set(0),
    bias_BV=shaping.bias_BV.at[slot].set(bias_V),
    frequency_B=shaping.frequency_B.at[slot].set(frequency),
    presence_B=shaping.presence_B.at[slot].set(presence),
    num_top_B=shaping.num_top_B.at[slot].set(num_top),
    is_raw_B=shaping.is_raw_B.at[slot].set(is_raw),
  )


def take_shaping(shaping: Shaping, slot_P: jax.Array) -> Shaping:
  """Takes the rows of some slots; 0 for slots that do not exist."""
  return jax.tree.map(
    lambda x: x.at[slot_P].get(mode="fill", fill_value=0), shaping
  )


def put_counts(
  shaping: Shaping, slot_P: jax.Array, count_PV: jax.Array
) -> Shaping:
  """Writes the counts of slots that `take_shaping` took out."""
  count_BV = shaping.count_BV.at[slot_P].set(count_PV, mode="drop")
  return shaping.replace(count_BV=count_BV)


def count_tokens(
  shaping: Shaping, token_B: jax.Array, active_B: jax.Array
) -> Shaping:
  """Counts the token that each active slot has sampled."""
  slot_B = jnp.arange(token_B.shape[0])
  count_BV = shaping.count_BV.at[slot_B, token_B].add(active_B)
  return shaping.replace(count_BV=count_BV)


def shape_logits(logits_BV: jax.Array, shaping: Shaping) -> jax.Array:
  """Applies bias and penalties; float32."""
  chex.assert_equal_shape([logits_BV, shaping.bias_BV, shaping.count_BV])
  count_BV = shaping.count_BV.astype(jnp.float32)
  return (
    logits_BV
    + shaping.bias_BV
    - shaping.frequency_B[:, None] * count_BV
    - shaping.presence_B[:, None] * (count_BV > 0)
  )


def top_logprobs(
  raw_BV: jax.Array,
  scaled_BV: jax.Array,
  greedy_B: jax.Array,
  token_B: jax.Array,
  shaping: Shaping,
) -> tuple[jax.Array, jax.Array]:
  """Returns the likeliest tokens of each slot and their log-probabilities.

  They are those of `raw_BV` at temperature 1, or of the distribution that the
  token was drawn from: logits `scaled_BV`, or all probability on the token if
  decoding is greedy. Ties go to the lower id; probability 0 is -inf.
  """
  size = num_alternatives(raw_BV.shape[-1])

  def top():
    is_token_BV = jnp.arange(raw_BV.shape[-1]) == token_B[:, None]
    one_hot_BV = jnp.where(is_token_BV, 0.0, -jnp.inf)
    drawn_BV = jnp.where(greedy_B[:, None], one_hot_BV, scaled_BV)
    chosen_BV = jnp.where(shaping.is_raw_B[:, None], raw_BV, drawn_BV)
    logit_BK, id_BK = jax.lax.top_k(chosen_BV, size)
    total_B1 = jax.nn.logsumexp(chosen_BV, axis=-1, keepdims=True)
    return id_BK.astype(jnp.int32), logit_BK - total_B1

  def none():
    shape = (raw_BV.shape[0], size)
    return jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32)

  return jax.lax.cond(jnp.any(shaping.num_top_B > 0), top, none)


def num_alternatives(vocab_size: int) -> int:
  """K of a program; each request receives as many of these as it asks for."""
  return min(MAX_TOP, vocab_size)


def _unpack_bits(word_BW: jax.Array) -> jax.Array:
  """Unpacks uint32 words, the lowest bit of each first: bool [B, 32 W]."""
  bit_BW32 = word_BW[:, :, None] >> jnp.arange(32, dtype=jnp.uint32) & 1
  return bit_BW32.reshape(word_BW.shape[0], -1) > 0


def _sortable_bits(x: jax.Array) -> jax.Array:
  """Maps float32 to unsigned integers of the same order."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  sign = jnp.uint32(1 << 31)
  return jnp.where(bits >= sign, ~bits, bits | sign)


def _threshold(
  order_BV: jax.Array, weight_BV: jax.Array, needed_B: jax.Array
) -> jax.Array:
  """Finds the largest threshold above which weights sum to `needed` or more.

  One bit at a time, 32 passes over the vocabulary: exact, and many times
  faster than sorting.
  """

  def decide(i, threshold_B):
    higher_B = threshold_B | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
    reached_BV = order_BV >= higher_B[:, None]
    weight_B = jnp.sum(weight_BV, axis=-1, where=reached_BV)
    return jnp.where(weight_B >= needed_B, higher_B, threshold_B)

  return jax.lax.fori_loop(
    0, 32, decide, jnp.zeros(order_BV.shape[:1], jnp.uint32)
  )


def _invert_cdf(scaled_BV: jax.Array, key_B: jax.Array) -> jax.Array:
  """Inverts the cumulative distribution at one uniform number per slot.

  Weights are summed by blocks, and token by token only in the block that holds
  the number: a running sum over the whole vocabulary would take longer than
  everything else that is done to logits.
  """
  num_slots, vocab_size = scaled_BV.shape
  weight_BV = jnp.exp(scaled_BV - jnp.max(scaled_BV, axis=-1, keepdims=True))
  padding = ((0, 0), (0, -vocab_size % _BLOCK))
  weight_BNS = jnp.pad(weight_BV, padding).reshape(num_slots, -1, _BLOCK)
  sum_BN = jnp.sum(weight_BNS, axis=-1)
  total_BN = jnp.cumsum(sum_BN, axis=-1)
  uniform_B = jax.vmap(jax.random.uniform)(key_B)
  threshold_B1 = uniform_B[:, None] * total_BN[:, -1:]
  block_B1 = _first_above(sum_BN, total_BN, threshold_B1)
  before_B1 = _gather(total_BN, block_B1) - _gather(sum_BN, block_B1)
  weight_BS = _gather(weight_BNS, block_B1[:, :, None])[:, 0]
  index_B1 = _first_above(
    weight_BS, jnp.cumsum(weight_BS, axis=-1), threshold_B1 - before_B1
  )
  return (block_B1 * _BLOCK + index_B1)[:, 0]


def _first_above(
  weight_BN: jax.Array, total_BN: jax.Array, threshold_B1: jax.Array
) -> jax.Array:
  """Index of the first weight whose running total is above the threshold.

  A parallel sum of floats need not grow monotonically, so weights of 0 are
  never chosen, and if rounding lifts the threshold above the total, the last
  positive weight is.
  """
  is_positive_BN = weight_BN > 0
  reached_BN = is_positive_BN & (total_BN > threshold_B1)
  index_N = jnp.arange(weight_BN.shape[-1])
  last_B = jnp.max(jnp.where(is_positive_BN, index_N, 0), axis=-1)
  return jnp.minimum(_first_true(reached_BN), last_B)[:, None]


def _gather(x: jax.Array, index: jax.Array) -> jax.Array:
  return jnp.take_along_axis(x, index, axis=1)


def _first_true(is_true_BV: jax.Array) -> jax.Array:
  """Index of the first True; the last index if there is none.

  As a plain minimum it takes a tenth of the time of `argmax` on a CPU.
  """
  last = is_true_BV.shape[-1] - 1
  return jnp.min(jnp.where(is_true_BV, jnp.arange(last + 1), last), axis=-1)


def _logprob(logits_BV: jax.Array, token_B: jax.Array) -> jax.Array:
  return _gather(logits_BV, token_B[:, None])[:, 0] - jax.nn.logsumexp(
    logits_BV, axis=-1
  )
