"""Estimators of the KL divergence from a reference policy.

Each estimator takes x = log pi(token) - log ref(token), as `ratios.log_ratio`
returns it (0 off the mask, hence an estimate of 0 there), and estimates
KL(pi || ref) = E_pi[x]; the names are John Schulman's
(http://joschu.net/blog/kl-approx.html). They neither mask nor average.

Value and gradient of an estimate have different means. For tokens sampled from
pi, differentiated through log pi:

              mean of the value              mean of the gradient
  k1          KL(pi || ref)                  0
  k2          biased, right up to order 2    that of KL(pi || ref)
  k3          KL(pi || ref)                  that of KL(ref || pi)
  unbiased_kl KL(pi || ref)                  that of KL(pi || ref)

`with_gradient_of(k3(x), k2(x))` joins two rows (verl's "k3+"). For tokens from
another distribution mu, the first three are biased in both columns, unless
weighted by sg[pi / mu]; `unbiased_kl` does that. The tests check this table by
summing over a vocabulary.

`reverse_kl` is the divergence itself, from the logits of both.

Axes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import check_masked, require_positive, widen
from agentrl_jax.losses.logprobs.logits import check_temperature
from agentrl_jax.losses.ratios import with_gradient_of


def k1(log_ratio_BT: jax.Array) -> jax.Array:
  """Returns x: unbiased, of either sign, noisy. A metric or penalty, no loss.

  d k1 / d log pi = 1
  """
  chex.assert_rank(log_ratio_BT, 2)
  return widen(log_ratio_BT)


def k2(log_ratio_BT: jax.Array) -> jax.Array:
  """Returns x^2 / 2: biased as a metric, correct as a loss for KL(pi || ref).

  d k2 / d log pi = x
  """
  chex.assert_rank(log_ratio_BT, 2)
  return jnp.square(widen(log_ratio_BT)) / 2


def k3(log_ratio_BT: jax.Array, *, limit: float | None = None) -> jax.Array:
  """Returns exp(-x) - 1 + x: unbiased, never negative (GRPO, AgentRL).

    d k3 / d log pi = 1 - exp(-x)

  (arXiv:2402.03300, eq. 4.) An estimate above `limit` is held there
  and has no gradient; AgentRL and verl take 10, None leaves it unbounded.

  Raises:
    ValueError: a limit that is not positive.
  """
  require_positive("limit", limit)
  chex.assert_rank(log_ratio_BT, 2)
  log_ratio_BT = widen(log_ratio_BT)
  # expm1, because exp(-x) - 1 would drown small divergences in rounding.
  estimate_BT = jnp.expm1(-log_ratio_BT) + log_ratio_BT
  if limit is None:
    return estimate_BT
  return jnp.where(estimate_BT > limit, limit, estimate_BT)


def unbiased_kl(
  log_ratio_BT: jax.Array, behavior_log_ratio_BT: jax.Array
) -> jax.Array:
  """Estimates KL(pi || ref) from tokens of mu, unbiased in value and gradient.

    value      r (exp(-x) - 1 + x)          r = pi / mu
    d / d log pi                            r x

  DeepSeek-V3.2's estimate (arXiv:2512.02556, section 3.1, eq. 7). The gradient
  is that of r k3(x) through both factors,

    r (exp(-x) - 1 + x) + r (1 - exp(-x)) = r x

  computed as r x, without the two exponentials that cancel: where pi << ref
  both are huge, and their difference loses digits. On policy, pass zeros for
  the second argument.

  Args:
    log_ratio_BT: x = log pi - log ref, differentiable through pi.
    behavior_log_ratio_BT: log pi - log mu, only its value is used.
  """
  chex.assert_rank([log_ratio_BT, behavior_log_ratio_BT], 2)
  chex.assert_equal_shape([log_ratio_BT, behavior_log_ratio_BT])
  ratio_BT = jnp.exp(jax.lax.stop_gradient(widen(behavior_log_ratio_BT)))
  return ratio_BT * with_gradient_of(k3(log_ratio_BT), k2(log_ratio_BT))


def reverse_kl(
  logits_BTV: jax.Array,
  reference_logits_BTV: jax.Array,
  temperature: float | jax.Array = 1.0,
) -> jax.Array:
  """KL(pi || ref) of each token's distribution, over the whole vocabulary.

    KL = sum_v p_v (log p_v - log q_v),  p = softmax(z / tau), q likewise
    d KL / d z_v = p_v (log p_v - log q_v - KL) / tau

  The mean of what `k1` and `k3` estimate from one token, so without their
  noise: the loss of on-policy distillation (GKD, arXiv:2306.13649, section 3)
  on states that the policy sampled. The reference is a constant. Entries that
  the policy excludes (logit -inf) contribute nothing.

  Args:
    logits_BTV: z of the policy, at temperature 1.
    reference_logits_BTV: those of the reference, for the same entries.
    temperature: tau, positive, of both.
  """
  chex.assert_rank([logits_BTV, reference_logits_BTV], 3)
  chex.assert_equal_shape([logits_BTV, reference_logits_BTV])
  check_temperature(temperature)
  logprob_BTV = jax.nn.log_softmax(widen(logits_BTV) / temperature)
  reference_BTV = jax.lax.stop_gradient(
    jax.nn.log_softmax(widen(reference_logits_BTV) / temperature)
  )
  excluded_BTV = jnp.isneginf(logits_BTV)
  # Masked before the product: 0 * -inf is NaN, in value and gradient.
  logprob_BTV = jnp.where(excluded_BTV, 0, logprob_BTV)
  reference_BTV = jnp.where(excluded_BTV, 0, reference_BTV)
  return jnp.sum(
    jnp.exp(logprob_BTV) * (logprob_BTV - reference_BTV),
    axis=-1,
    where=~excluded_BTV,
  )


def kl_penalised_reward(
  reward_BT: jax.Array,
  log_ratio_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  coefficient: float | jax.Array,
  estimator: Callable[[jax.Array], jax.Array] = k1,
) -> jax.Array:
  """Subtracts a KL penalty from the reward of each token.

    reward_t - coefficient * estimate_t

  (InstructGPT's form of RLHF, arXiv:2203.02155, section 3.5, eq. 2.) Advantages
  and returns then carry the penalty to earlier tokens, which a loss of one
  token cannot. The policy gradient of such a reward is unbiased with k1, so use
  k1.

  Args:
    reward_BT: not read off the mask: put a reward that came after the last
      trained token on that token.
    log_ratio_BT: x = log pi - log ref, pi the policy that sampled.
    mask_BT: bool, the trained tokens.
    coefficient: in reward per nat; an array if it changes during training.
    estimator: k1, k2 or k3, or any function of x.

  Returns:
    reward_BT, a constant, 0 off the mask.
  """
  check_masked(mask_BT, reward_BT, log_ratio_BT)
  penalty_BT = coefficient * estimator(widen(log_ratio_BT))
  reward_BT = jnp.where(mask_BT, widen(reward_BT) - penalty_BT, 0)
  return jax.lax.stop_gradient(reward_BT)
