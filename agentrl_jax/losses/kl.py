"""Per-token estimates of how far the policy is from a reference.

Each takes x = log pi(token) - log ref(token), for tokens sampled from pi, as
`ratios.log_ratio` returns it (0 off the mask, hence an estimate of 0 there),
and estimates KL(pi || ref) = E_pi[x]; the names are John Schulman's
(http://joschu.net/blog/kl-approx.html). They neither mask nor average.

An estimate's value and its gradient are two questions. As a *metric* k1 and k3
are unbiased, and k3 varies less. As a *loss*, differentiated through log pi on
tokens from pi: k1 gives a gradient of mean zero, so it penalises nothing; k2
gives the gradient of KL(pi || ref); k3 that of KL(ref || pi). The tests check
these three by summing over a vocabulary.

Axes: B rows, T tokens.
"""

import chex
import jax
import jax.numpy as jnp


def k1(log_ratio_BT: jax.Array) -> jax.Array:
  """x: unbiased, of either sign, noisy. A metric, not a loss.

  d k1 / d log pi = 1
  """
  chex.assert_rank(log_ratio_BT, 2)
  return log_ratio_BT


def k2(log_ratio_BT: jax.Array) -> jax.Array:
  """x^2 / 2: biased as a metric, right as a loss for KL(pi || ref).

  d k2 / d log pi = x
  """
  chex.assert_rank(log_ratio_BT, 2)
  return jnp.square(log_ratio_BT) / 2


def k3(log_ratio_BT: jax.Array, *, limit: float | None = None) -> jax.Array:
  """exp(-x) - 1 + x: unbiased and never negative; GRPO's and AgentRL's loss.

    d k3 / d log pi = 1 - exp(-x)

  (arXiv:2402.03300, eq. 4.) Where the estimate exceeds `limit` it is held
  there and has no gradient; AgentRL takes 10, None leaves it unbounded.
  """
  chex.assert_rank(log_ratio_BT, 2)
  # expm1, because exp(-x) - 1 would drown small divergences in rounding.
  estimate_BT = jnp.expm1(-log_ratio_BT) + log_ratio_BT
  return estimate_BT if limit is None else jnp.minimum(estimate_BT, limit)
