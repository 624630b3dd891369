"""How much a sample counts that another distribution drew: r, kept in bounds.

Weights are constants that multiply a loss:

  weight_BT = truncated_weight(log_ratio_BT, cap=2.0)
  loss = token_mean(weight_BT * loss_BT, mask_BT)

Which ratio they are made from decides what they correct. `ratios.log_ratio`
gives each token its own weight, of low variance, blind to what happened before
the token. `ratios.sequence_log_ratio` gives a whole sequence one weight: of the
sum (average=False) the true one, whose variance grows with length; of the mean
(average=True) its geometric mean per token. pi over mu corrects a gradient of
log pi; prox over mu the mismatch between sampler and learner, or staleness,
beside a surrogate that has a ratio of its own (`decoupled_surrogate`). Never
weigh by a ratio that the surrogate already holds.

Off the mask log-ratios are 0 and weights 1 or what bounds make of 1: the
reduction's mask is what leaves those tokens out.

Axes: B rows, T tokens.
"""

import numbers

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import require, require_positive
from agentrl_jax.losses.precision import widen
from agentrl_jax.losses.reductions import Mean

# e^20 is 5e8. From below too, so that a mean of weights can be divided by.
_LIMIT = 20.0


def truncated_weight(log_ratio_BT: jax.Array, *, cap: float) -> jax.Array:
  """min(r, cap): a bounded weight, at the price of some bias.

  Truncated importance sampling; rho-bar of V-trace (arXiv:1802.01561, section
  4.1) is a cap of 1. Tokens that the policy likes less than their sampler did
  keep their weight, those that it likes far more are held back.

  Args:
    log_ratio_BT: of tokens or of sequences, held within +-20 here.
    cap: positive.

  Returns:
    weight_BT, a constant.

  Raises:
    ValueError: a cap that is not positive.
  """
  require_positive("cap", cap)
  return jnp.minimum(_ratio(log_ratio_BT), cap)


def masked_weight(
  log_ratio_BT: jax.Array, *, low: float, high: float
) -> jax.Array:
  """r where low <= r <= high, else 0: far-off samples teach nothing.

  A token, or a sequence, whose probability under sampler and learner differs so
  much is more likely a fault than a lesson (IcePop, arXiv:2510.18855). It still
  counts in the weight of a `Mean`: the loss is averaged over all tokens.

  Args:
    log_ratio_BT: of tokens or of sequences, held within +-20 here.
    low: at least 0, and below `high`.
    high: may be infinite.

  Returns:
    weight_BT, a constant.

  Raises:
    ValueError: bounds that are negative or in the wrong order.
  """
  require("low", low, "at least 0: ratios are not negative", lambda x: x >= 0)
  require(
    "high",
    high,
    f"above low={low}, or every weight is 0",
    lambda x: x > low if isinstance(low, numbers.Real) else x > 0,
  )
  ratio_BT = _ratio(log_ratio_BT)
  return jnp.where((ratio_BT < low) | (ratio_BT > high), 0, ratio_BT)


def stale_failure_weight(
  log_ratio_BT: jax.Array, advantage_BT: jax.Array, *, divergence: float
) -> jax.Array:
  """0 for failures that the policy would hardly repeat, else 1.

    weight = 0 where A < 0 and mean_t log(mu / pi) > divergence

  What a policy has unlearnt need not be punished further, and the gradient of
  a token that has become rare is at its wildest; good samples far from the
  policy still teach (off-policy sequence masking, DeepSeek-V3.2,
  arXiv:2512.02556, section 3.1, eq. 9).

  Args:
    log_ratio_BT: of sequences, their mean: `sequence_log_ratio` with
      average=True, of log pi - log mu.
    advantage_BT: a constant; tokens of a sequence are judged one by one if
      theirs differ.
    divergence: positive, in nats per token.

  Returns:
    weight_BT, a constant.

  Raises:
    ValueError: a divergence that is not positive.
  """
  require_positive("divergence", divergence)
  chex.assert_rank([log_ratio_BT, advantage_BT], 2)
  chex.assert_equal_shape([log_ratio_BT, advantage_BT])
  x_BT = widen(log_ratio_BT)
  stale_BT = (widen(advantage_BT) < 0) & (-x_BT > divergence)
  return jnp.where(stale_BT, jnp.zeros_like(x_BT), 1)


def normalised_weight(weight_BT: jax.Array, mean: Mean) -> jax.Array:
  """weight / mean, so that weights do not change the size of a step.

  Self-normalised importance sampling: less variance, and a bias that vanishes
  with the size of the batch. The mean belongs to the global batch, over tokens
  or, of sequences' weights, over sequences; a `Mean` adds up over its parts:

    normalised_weight(weight_BT, token_mean(weight_BT, mask_BT))

  Where the mean is (next to) nothing, weights stay what they are.

  Returns:
    weight_BT, a constant.
  """
  average = jax.lax.stop_gradient(mean.value())
  enough = average > 1e-8
  scale = jnp.where(enough, 1 / jnp.where(enough, average, 1), 1)
  return jax.lax.stop_gradient(widen(weight_BT)) * scale


def _ratio(log_ratio_BT: jax.Array) -> jax.Array:
  chex.assert_rank(log_ratio_BT, 2)
  log_ratio_BT = jax.lax.stop_gradient(widen(log_ratio_BT))
  return jnp.exp(jnp.clip(log_ratio_BT, -_LIMIT, _LIMIT))
