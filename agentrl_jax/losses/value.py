"""The loss of a critic, and the variance that it explains.

Axes: B rows, T tokens. Entry [b, t] is the value before token t.
"""

import dataclasses

import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import check_masked, require_positive, widen


def clipped_value_loss(
  value_BT: jax.Array,
  old_value_BT: jax.Array,
  return_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  clip: float | None,
) -> jax.Array:
  """Squared error of the critic, with a clip on its step.

    loss = max((v - R)^2, (v' - R)^2) / 2
    v' = v held within +-clip of the value before the update

  PPO's implementations clip the critic as they clip the policy (examined in
  arXiv:2005.12729); without `clip` it is (v - R)^2 / 2. Mind the half, which
  verl has as well. It does not average.

    d loss / d v = v - R, or 0 where v' is held and the worse of the two

  Args:
    value_BT: v, differentiable.
    old_value_BT: the critic's values before the update, those that advantages
      were made from; treated as a constant.
    return_BT: R, treated as a constant.
    mask_BT: bool, the trained tokens. Off it, all of the above may be NaN.
    clip: positive, in units of the return; None for no clip.

  Returns:
    loss_BT, 0 off the mask.

  Raises:
    ValueError: a clip that is not positive.
  """
  require_positive("clip", clip)
  arrays = (value_BT, old_value_BT, return_BT)
  check_masked(mask_BT, *arrays)
  # No log-ratio here that would be 0 off the mask: a square has to be hidden.
  value_BT, old_BT, return_BT = (
    jnp.where(mask_BT, widen(x_BT), 0) for x_BT in arrays
  )
  return_BT = jax.lax.stop_gradient(return_BT)
  loss_BT = jnp.square(value_BT - return_BT) / 2
  if clip is None:
    return loss_BT
  old_BT = jax.lax.stop_gradient(old_BT)
  near_BT = jnp.maximum(jnp.minimum(value_BT, old_BT + clip), old_BT - clip)
  return jnp.maximum(loss_BT, jnp.square(near_BT - return_BT) / 2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Spread:
  """Mean and squared deviations of some numbers; adds as if measured at once.

  Sums of squares would drown a small variance about a great mean; deviations
  from the parts' own means, put together, do not (Chan et al., 1979).
  """

  count: jax.Array  # []
  mean: jax.Array  # []
  square: jax.Array  # [], sum of squared deviations from the mean

  def __add__(self, other: "_Spread") -> "_Spread":
    count = self.count + other.count
    share = other.count / jnp.maximum(count, 1)
    difference = other.mean - self.mean
    return _Spread(
      count,
      self.mean + share * difference,
      self.square + other.square + jnp.square(difference) * self.count * share,
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ExplainedVariance:
  """Explained variance of the returns; adds up over parts."""

  returns: _Spread
  errors: _Spread

  def __add__(self, other: "ExplainedVariance") -> "ExplainedVariance":
    return ExplainedVariance(
      self.returns + other.returns, self.errors + other.errors
    )

  def value(self) -> jax.Array:
    """1 - Var[R - v] / Var[R]; 0 if the returns do not vary.

    1 for a perfect critic, 0 for one that knows their mean at best, negative
    for one that is worse than that.
    """
    varies = self.returns.square > 0
    divisor = jnp.where(varies, self.returns.square, 1)
    return jnp.where(varies, 1 - self.errors.square / divisor, 0)


def explained_variance(
  value_BT: jax.Array, return_BT: jax.Array, mask_BT: jax.Array
) -> ExplainedVariance:
  """Measures the critic on the trained tokens; a constant, to be reported.

  Both arrays may be NaN off the mask.
  """
  check_masked(mask_BT, value_BT, return_BT)
  value_BT = jax.lax.stop_gradient(widen(value_BT))
  return_BT = jax.lax.stop_gradient(widen(return_BT))
  return ExplainedVariance(
    _spread(return_BT, mask_BT), _spread(return_BT - value_BT, mask_BT)
  )


def _spread(x_BT: jax.Array, mask_BT: jax.Array) -> _Spread:
  count = jnp.sum(mask_BT)
  mean = jnp.sum(x_BT, where=mask_BT) / jnp.maximum(count, 1)
  return _Spread(count, mean, jnp.sum(jnp.square(x_BT - mean), where=mask_BT))
