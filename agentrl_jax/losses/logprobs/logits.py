"""Log-probability and entropy of tokens, from logits.

Everything is in nats, and computed in float32 at least, whatever the dtype of
the model. Entry [b, t] of the logits must be the prediction *of* token [b, t]:
the caller has to shift them. `fused` starts from hidden states instead.

Axes: B rows, T tokens, V vocabulary.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import require, widen


def token_logprob(
  logits_BTV: jax.Array,
  token_BT: jax.Array,
  temperature: float | jax.Array = 1.0,
) -> jax.Array:
  """Log-probability of each token: log softmax(z / tau)[token].

  With tau the sampler's temperature this is the log-probability under the
  distribution that was sampled from. A logit of -inf excludes a vocabulary
  entry, as truncated sampling does.

    d logprob / d z_v = (1[v = token] - p_v) / tau

  Args:
    logits_BTV: z, at temperature 1.
    token_BT: integers in [0, V).
    temperature: tau, positive, for all tokens alike.

  Returns:
    logprob_BT.
  """
  chex.assert_rank([logits_BTV, token_BT], [3, 2])
  chex.assert_equal_shape_prefix([logits_BTV, token_BT], 2)
  log_weight_BTV = _log_weights(logits_BTV, temperature)
  # A select and a sum, not a gather: it stays local when V is sharded.
  entry_11V = jnp.arange(logits_BTV.shape[-1])[None, None, :]
  chosen_BT = jnp.sum(
    log_weight_BTV, axis=-1, where=entry_11V == token_BT[:, :, None]
  )
  return chosen_BT - jnp.log(jnp.sum(jnp.exp(log_weight_BTV), axis=-1))


def entropy(
  logits_BTV: jax.Array, temperature: float | jax.Array = 1.0
) -> jax.Array:
  """Entropy of the policy's distribution of each token.

    H = -sum_v p_v log p_v = logsumexp(z / tau) - sum_v p_v z_v / tau

  with p = softmax(z / tau); between 0 and log V. Excluded entries
  (logit -inf) contribute nothing.

  Returns:
    entropy_BT.
  """
  chex.assert_rank(logits_BTV, 3)
  log_weight_BTV = _log_weights(logits_BTV, temperature)
  weight_BTV = jnp.exp(log_weight_BTV)
  total_BT = jnp.sum(weight_BTV, axis=-1)
  # 0 * -inf is NaN, in value and gradient, so -inf is replaced first.
  finite_BTV = jnp.where(jnp.isneginf(log_weight_BTV), 0, log_weight_BTV)
  mean_BT = jnp.sum(weight_BTV * finite_BTV, axis=-1) / total_BT
  return jnp.log(total_BT) - mean_BT


def check_temperature(temperature: float | jax.Array) -> None:
  """Raises `ValueError` unless a number is positive; trusts arrays."""
  require(
    "temperature",
    temperature,
    "positive: a greedy answer (temperature 0) has no log-probability to train "
    "on. Sample training data at a positive temperature.",
    lambda x: x > 0,
  )


def _log_weights(
  logits_BTV: jax.Array, temperature: float | jax.Array
) -> jax.Array:
  """Returns z / tau, shifted so that the likeliest entry has 0.

  Shifting first avoids the rounding of a difference of large numbers.
  """
  check_temperature(temperature)
  scaled_BTV = widen(logits_BTV) / temperature
  largest_BT1 = jnp.max(scaled_BTV, axis=-1, keepdims=True)
  return scaled_BTV - jax.lax.stop_gradient(largest_BT1)
