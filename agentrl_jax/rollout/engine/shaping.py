"""Penalties, biases and alternatives: settings that few requests have.

  logit'_j = logit_j + bias_j - frequency c_j - presence [c_j > 0]

with c_j how often the request has sampled token j so far, prompt tokens not
counted. It is OpenAI's definition; the bias belongs to it, not to a share of
probability, so a bias for all tokens alike changes nothing. Everything else
comes after: grammar, temperature, truncation.

Arrays have a row per slot of the vocabulary, so they exist on a device only
while a request needs them, and a program with them is another than the one
without, which stays as it is. A slot's row is written anew when a request
begins in it.

Axes: B slots of the cache, V tokens of the vocabulary, N entries of a bias, K
alternatives.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.rollout.api import MAX_BIASES, MAX_TOP, SamplingSpec


@chex.dataclass(frozen=True)
class Shaping:
  """What shapes each slot's distribution; of slots without, all is 0."""

  count_BV: jax.Array  # int32, tokens that the slot's request has sampled
  bias_BV: jax.Array  # float32
  frequency_B: jax.Array
  presence_B: jax.Array
  num_top_B: jax.Array  # int32, alternatives to tell
  is_raw_B: jax.Array  # bool: of the policy itself, or of what is drawn from


def empty(num_slots: int, vocab_size: int) -> Shaping:
  """The arrays of slots that nothing shapes."""
  shape = (num_slots, vocab_size)
  return Shaping(
    count_BV=jnp.zeros(shape, jnp.int32),
    bias_BV=jnp.zeros(shape, jnp.float32),
    frequency_B=jnp.zeros(num_slots, jnp.float32),
    presence_B=jnp.zeros(num_slots, jnp.float32),
    num_top_B=jnp.zeros(num_slots, jnp.int32),
    is_raw_B=jnp.zeros(num_slots, bool),
  )


def begun(shaping: Shaping, slot: int, spec: SamplingSpec) -> Shaping:
  """The arrays once a request begins in a slot; `shaping` is donated."""
  id_N = np.full(MAX_BIASES, -1, np.int32)
  bias_N = np.zeros(MAX_BIASES, np.float32)
  for number, (token, bias) in enumerate(spec.logit_bias):
    id_N[number], bias_N[number] = token, bias
  return _begun(
    shaping,
    np.int32(slot),
    id_N,
    bias_N,
    np.float32(spec.frequency_penalty),
    np.float32(spec.presence_penalty),
    np.int32(spec.num_top),
    np.bool_(spec.top_is_raw),
  )


@functools.partial(jax.jit, donate_argnames=("shaping",))
def _begun(
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
  # Entries that are none lie beyond the vocabulary, and are dropped there.
  place_N = jnp.where(id_N < 0, vocab_size, id_N)
  bias_V = jnp.zeros(vocab_size).at[place_N].set(bias_N, mode="drop")
  return Shaping(
    count_BV=shaping.count_BV.at[slot].set(0),
    bias_BV=shaping.bias_BV.at[slot].set(bias_V),
    frequency_B=shaping.frequency_B.at[slot].set(frequency),
    presence_B=shaping.presence_B.at[slot].set(presence),
    num_top_B=shaping.num_top_B.at[slot].set(num_top),
    is_raw_B=shaping.is_raw_B.at[slot].set(is_raw),
  )


def rows(shaping: Shaping, slot_P: jax.Array | None) -> Shaping:
  """The slots named, in this order; None: all. Of no slot, all is 0."""
  if slot_P is None:
    return shaping
  return jax.tree.map(
    lambda x: x.at[slot_P].get(mode="fill", fill_value=0), shaping
  )


def put_back(
  shaping: Shaping, slot_P: jax.Array | None, count_PV: jax.Array
) -> Shaping:
  """The arrays with the counts that slots taken out have now."""
  if slot_P is None:
    return shaping.replace(count_BV=count_PV)
  count_BV = shaping.count_BV.at[slot_P].set(count_PV, mode="drop")
  return shaping.replace(count_BV=count_BV)


def counted(
  shaping: Shaping, token_B: jax.Array, active_B: jax.Array
) -> Shaping:
  """The arrays after each active slot has sampled a token."""
  slot_B = jnp.arange(token_B.shape[0])
  count_BV = shaping.count_BV.at[slot_B, token_B].add(active_B)
  return shaping.replace(count_BV=count_BV)


def shaped(logits_BV: jax.Array, shaping: Shaping) -> jax.Array:
  """Logits after bias and penalties; float32."""
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
  drawn_BV: jax.Array,
  greedy_B: jax.Array,
  token_B: jax.Array,
  shaping: Shaping,
) -> tuple[jax.Array, jax.Array]:
  """The likeliest tokens of each slot and their log-probabilities [B, K].

  Of `raw_BV` at temperature 1, or of the distribution that the token was drawn
  from: logits `drawn_BV`, or all weight on the token where decoding is greedy.
  Ties go to the lower id; what has no weight has -inf.
  """
  size = num_alternatives(raw_BV.shape[-1])

  def found():
    is_token_BV = jnp.arange(raw_BV.shape[-1]) == token_B[:, None]
    only_BV = jnp.where(is_token_BV, 0.0, -jnp.inf)
    drawn = jnp.where(greedy_B[:, None], only_BV, drawn_BV)
    of_BV = jnp.where(shaping.is_raw_B[:, None], raw_BV, drawn)
    logit_BK, id_BK = jax.lax.top_k(of_BV, size)
    total_B1 = jax.nn.logsumexp(of_BV, axis=-1, keepdims=True)
    return id_BK.astype(jnp.int32), logit_BK - total_B1

  def none():
    shape = (raw_BV.shape[0], size)
    return jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32)

  return jax.lax.cond(jnp.any(shaping.num_top_B > 0), found, none)


def num_alternatives(vocab_size: int) -> int:
  """K, of a program; requests are told as many of them as they ask for."""
  return min(MAX_TOP, vocab_size)
