"""How much likelier a token has become since it was sampled.

The one place where log-probabilities of two policies meet, and therefore the
one place that masks and bounds before anything is exponentiated. What follows
(`policy_gradient`, `kl`) takes its log-ratios from here and does neither.

Axes: B rows, T tokens. Entry [b, t] is about token t given tokens < t.
"""

import chex
import jax
import jax.numpy as jnp


def log_ratio(
  policy_logprob_BT: jax.Array,
  behavior_logprob_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  limit: float = 20.0,
) -> jax.Array:
  """log pi(token) - log mu(token), and 0 off the mask.

  pi is the policy in training; mu the distribution that the token really was
  drawn from, whichever version, temperature and truncation that was: then r =
  exp(log_ratio) corrects for off-policy sampling, stale versions and numeric
  differences between sampler and learner alike (AgentRL, arXiv:2510.04206).
  With the logprobs of a reference in place of mu, it feeds `kl`.

  Off the mask neither value nor gradient depends on the inputs, which may be
  NaN. On the mask a log-ratio beyond +-`limit` nats is held there and passes no
  gradient on, so that no later exp overflows to inf and no gradient to
  0 * inf; a NaN stays a NaN.

  Args:
    policy_logprob_BT: differentiable.
    behavior_logprob_BT: treated as a constant.
    mask_BT: bool, the trained tokens.
    limit: in nats; e^20 is 5e8, far beyond any clipping, far below overflow.

  Returns:
    log_ratio_BT, float32.
  """
  arrays = [policy_logprob_BT, behavior_logprob_BT, mask_BT]
  chex.assert_rank(arrays, 2)
  chex.assert_equal_shape(arrays)
  chex.assert_type(mask_BT, bool)
  policy_BT = policy_logprob_BT.astype(jnp.float32)
  behavior_BT = jax.lax.stop_gradient(behavior_logprob_BT).astype(jnp.float32)
  difference_BT = jnp.where(mask_BT, policy_BT - behavior_BT, 0)
  return jnp.clip(difference_BT, -limit, limit)
