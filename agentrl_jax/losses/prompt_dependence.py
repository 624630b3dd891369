"""Dependence of answers on their prompts: mutual information and retrieval.

A policy may give varied answers that no longer depend on the prompt. Its
entropy stays high then, and these two measures fall (RAGEN-2,
arXiv:2604.06268, which calls this template collapse). Both read the same
matrix: the log-probability of each answer under each prompt. Both are
constants, and means over answers: masks of whole rows give those of a task.

Axes: N pairs of a prompt and the answer that was sampled for it. Row i of
[N, N] is about answer i, column j about prompt j.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import check_masked, require, widen
from agentrl_jax.losses.reductions import Mean


def mutual_information(
  logprob_NN: jax.Array,
  valid_NN: jax.Array,
  *,
  num_tokens_N: jax.Array | None = None,
) -> dict[str, Mean]:
  """Estimates how much an answer says about the prompt that it was given to.

    I = mean_i [log p(z_i | x_i) - log (1 / N_i) sum_j p(z_i | x_j)]

  over answers z_i and the N_i prompts x_j that answer i was scored under. It is
  at most the mean of log N_i, which is reached if each answer is possible under
  its own prompt alone, and 0 if answers do not depend on the prompt. The mutual
  information itself is never negative; the estimate from few pairs may be. If
  it is near the bound, only more prompts tell how large it is.

  Args:
    logprob_NN: log p(z_i | x_j) in nats, summed over the answer's tokens; -inf
      for an answer that is impossible under a prompt.
    valid_NN: bool, the entries that were scored. An answer counts if its own
      prompt, on the diagonal, is one of them.
    num_tokens_N: tokens of each answer. If given, log-probabilities are means
      over tokens, log p / num_tokens: then long answers do not dominate, and
      the result is RAGEN-2's estimate per token, which is no mutual
      information, but has the same bound.

  Returns:
    The estimate as "information" and the mean of log N_i as "bound", each a
    Mean over answers, in nats.

  Raises:
    AssertionError: if the matrix is not square, or shapes differ.
  """
  logprob_NN, counted_N = _check(logprob_NN, valid_NN)
  if num_tokens_N is not None:
    chex.assert_equal_shape([num_tokens_N, counted_N])
    num_tokens_N = jnp.maximum(widen(num_tokens_N), 1)
    logprob_NN = logprob_NN / num_tokens_N[:, None]
  # Only rows that count reach the logarithms: the others may be empty.
  scored_NN = valid_NN | ~counted_N[:, None]
  bound_N = jnp.log(jnp.sum(scored_NN, axis=1, dtype=logprob_NN.dtype))
  total_N = jax.nn.logsumexp(logprob_NN, axis=1, where=scored_NN)
  information_N = jnp.diagonal(logprob_NN) - (total_N - bound_N)
  return {
    "information": _mean(information_N, counted_N),
    "bound": _mean(bound_N, counted_N),
  }


def retrieval_accuracy(
  logprob_NN: jax.Array, valid_NN: jax.Array, *, k: int
) -> dict[str, Mean]:
  """Measures how often an answer's own prompt is among its k likeliest.

  The prompt is found if fewer than k others give the answer a higher
  probability. Of t prompts with exactly the same probability, the own prompt
  among them, each order is as likely, so the answer counts by the share of the
  orders in which its prompt is found. (RAGEN-2, arXiv:2604.06268, with k of 1,
  2, 4 and 8.)

  Args:
    logprob_NN, valid_NN: as in `mutual_information`; whether log-probabilities
      are summed or averaged over tokens changes nothing.
    k: at least 1.

  Returns:
    The share as "accuracy", and that of a random order, min(k / N_i, 1), as
    "chance", each a Mean over answers.

  Raises:
    ValueError: if `k` is below 1.
    AssertionError: if the matrix is not square, or shapes differ.
  """
  require("k", k, "1 or more", lambda x: x >= 1)
  logprob_NN, counted_N = _check(logprob_NN, valid_NN)
  own_N = jnp.diagonal(logprob_NN)
  own_N1 = own_N[:, None]

  def number(chosen_NN: jax.Array) -> jax.Array:
    return jnp.sum(chosen_NN & valid_NN, axis=1, dtype=logprob_NN.dtype)

  num_above_N = number(logprob_NN > own_N1)
  num_equal_N = jnp.maximum(number(logprob_NN == own_N1), 1)
  found_N = jnp.clip((k - num_above_N) / num_equal_N, 0, 1)
  # A comparison with NaN is false, which would count as found.
  broken_N = jnp.any(jnp.isnan(logprob_NN) & valid_NN, axis=1)
  found_N = jnp.where(broken_N, jnp.nan, found_N)
  num_prompts_N = jnp.maximum(jnp.sum(valid_NN, axis=1), 1)
  return {
    "accuracy": _mean(found_N, counted_N),
    "chance": _mean(jnp.minimum(k / num_prompts_N, 1), counted_N),
  }


def _check(
  logprob_NN: jax.Array, valid_NN: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the matrix, 0 where it is not valid, and counted_N."""
  check_masked(valid_NN, logprob_NN)
  chex.assert_equal(*logprob_NN.shape)
  logprob_NN = jnp.where(valid_NN, widen(logprob_NN), 0)
  return jax.lax.stop_gradient(logprob_NN), jnp.diagonal(valid_NN)


def _mean(x_N: jax.Array, counted_N: jax.Array) -> Mean:
  weight = jnp.sum(counted_N, dtype=x_N.dtype)
  return Mean(jnp.sum(x_N, where=counted_N), weight)
