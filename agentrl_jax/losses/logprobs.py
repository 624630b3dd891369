"""What the policy says about each token: log-probability and entropy.

Everything is computed in float32, in nats, whatever the dtype of the model.
This file knows nothing of models: it starts from logits, or from the last
hidden states and the output matrix, and aligns nothing. Entry [b, t] of the
logits must be the prediction *of* token [b, t], so the caller has shifted.

Axes: B rows, T tokens, V vocabulary, D width.
"""

import functools

import chex
import jax
import jax.numpy as jnp


def token_logprob(
  logits_BTV: jax.Array,
  token_BT: jax.Array,
  temperature: float | jax.Array = 1.0,
) -> jax.Array:
  """How likely the policy found each token: log softmax(z / tau)[token].

  With tau the temperature that the token was sampled at, so that the result is
  the log-probability under the distribution that was sampled from. A logit of
  -inf bars a word, as truncated sampling does.

    d logprob / d z_v = (1[v = token] - p_v) / tau

  Args:
    logits_BTV: z, at temperature 1.
    token_BT: integers in [0, V).
    temperature: tau, positive, for all tokens alike.

  Returns:
    logprob_BT, float32.
  """
  chex.assert_rank([logits_BTV, token_BT], [3, 2])
  chex.assert_equal_shape_prefix([logits_BTV, token_BT], 2)
  log_weight_BTV = _log_weights(logits_BTV, temperature)
  # A select and a sum, not a gather: it stays local when V is sharded.
  word_11V = jnp.arange(logits_BTV.shape[-1])[None, None, :]
  chosen_BT = jnp.sum(
    log_weight_BTV, axis=-1, where=word_11V == token_BT[:, :, None]
  )
  return chosen_BT - jnp.log(jnp.sum(jnp.exp(log_weight_BTV), axis=-1))


def entropy(
  logits_BTV: jax.Array, temperature: float | jax.Array = 1.0
) -> jax.Array:
  """How undecided the policy was before each token.

    H = -sum_v p_v log p_v = logsumexp(z / tau) - sum_v p_v z_v / tau

  with p = softmax(z / tau); between 0 and log V. Barred words (logit -inf)
  contribute nothing.

  Returns:
    entropy_BT in nats, float32.
  """
  chex.assert_rank(logits_BTV, 3)
  log_weight_BTV = _log_weights(logits_BTV, temperature)
  weight_BTV = jnp.exp(log_weight_BTV)
  total_BT = jnp.sum(weight_BTV, axis=-1)
  # 0 * -inf is NaN, in value and in gradient, unless the -inf goes first.
  finite_BTV = jnp.where(jnp.isneginf(log_weight_BTV), 0, log_weight_BTV)
  mean_BT = jnp.sum(weight_BTV * finite_BTV, axis=-1) / total_BT
  return jnp.log(total_BT) - mean_BT


def chunked_token_logprob(
  hidden_BTD: jax.Array,
  output_DV: jax.Array,
  token_BT: jax.Array,
  *,
  temperature: float | jax.Array = 1.0,
  chunk_size: int,
) -> tuple[jax.Array, jax.Array]:
  """`token_logprob` and `entropy` of hidden @ output, without the logits.

  The logits of a long batch are its largest array by far (18 GiB for 4 rows of
  8192 tokens over 150 000 words). Here they exist for `chunk_size` tokens of
  every row at a time, forwards, and are computed again, chunk by chunk,
  backwards. The chunks run along T, so rows may be sharded.

  The product is taken in the dtype of `hidden_BTD` and accumulated in float32.
  The gradient of `output_DV` adds up over chunks in its own dtype: hand over
  the float32 parameter, not a copy of it in bfloat16.

  Returns:
    (logprob_BT, entropy_BT), float32.
  """
  chex.assert_rank([hidden_BTD, output_DV, token_BT], [3, 2, 2])
  chex.assert_equal_shape_prefix([hidden_BTD, token_BT], 2)
  if chunk_size < 1:
    raise ValueError(
      f"chunk_size={chunk_size} must be at least 1: it is the number of tokens "
      "of each row whose logits are held at a time"
    )
  chunked = functools.partial(_chunks_of_tokens, chunk_size=chunk_size)

  @jax.checkpoint
  def one_chunk(
    chunk: tuple[jax.Array, jax.Array],
  ) -> tuple[jax.Array, jax.Array]:
    hidden_BCD, token_BC = chunk
    logits_BCV = jnp.einsum(
      "bcd,dv->bcv",
      hidden_BCD,
      output_DV.astype(hidden_BCD.dtype),
      preferred_element_type=jnp.float32,
    )
    return (
      token_logprob(logits_BCV, token_BC, temperature),
      entropy(logits_BCV, temperature),
    )

  logprob_XBC, entropy_XBC = jax.lax.map(
    one_chunk, (chunked(hidden_BTD), chunked(token_BT))
  )
  num_tokens = token_BT.shape[1]
  return (
    _rows_of_chunks(logprob_XBC)[:, :num_tokens],
    _rows_of_chunks(entropy_XBC)[:, :num_tokens],
  )


def _log_weights(
  logits_BTV: jax.Array, temperature: float | jax.Array
) -> jax.Array:
  """z / tau in float32, shifted so that the likeliest word has 0.

  Shifting first keeps the digits that a difference of large numbers loses.
  """
  if isinstance(temperature, int | float) and not temperature > 0:
    raise ValueError(
      f"temperature={temperature} must be positive: a greedy answer "
      "(temperature 0) has no log-probability to train on. Sample what you "
      "train on at a positive temperature."
    )
  scaled_BTV = logits_BTV.astype(jnp.float32) / temperature
  largest_BT1 = jnp.max(scaled_BTV, axis=-1, keepdims=True)
  return scaled_BTV - jax.lax.stop_gradient(largest_BT1)


def _chunks_of_tokens(x: jax.Array, *, chunk_size: int) -> jax.Array:
  """[B, T, ...] to [T / chunk_size, B, chunk_size, ...], padded with zeros."""
  num_rows, num_tokens, *rest = x.shape
  num_chunks = -(-num_tokens // chunk_size)
  padding = [(0, 0), (0, num_chunks * chunk_size - num_tokens)]
  x = jnp.pad(x, padding + [(0, 0)] * len(rest))
  return jnp.moveaxis(x.reshape(num_rows, num_chunks, chunk_size, *rest), 1, 0)


def _rows_of_chunks(x_XBC: jax.Array) -> jax.Array:
  num_chunks, num_rows, chunk_size = x_XBC.shape
  return jnp.moveaxis(x_XBC, 0, 1).reshape(num_rows, num_chunks * chunk_size)
