"""Metrics of staleness and of clipping.

All are constants, and add up over micro-batches and shards.

Axes: B rows, T tokens, Z versions.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import check_masked, widen
from agentrl_jax.losses.kl import k1, k3
from agentrl_jax.losses.policy_gradient import check_clip
from agentrl_jax.losses.reductions import Mean, RatioMoments, token_mean


def ratio_moments(
  log_ratio_BT: jax.Array,
  mask_BT: jax.Array,
  version_BT: jax.Array | None = None,
  num_versions: int = 1,
  *,
  weight_BT: jax.Array | None = None,
) -> RatioMoments:
  """Measures how far the policy is from each version that sampled its data.

  The effective sample size is the share of the tokens that the importance
  weights do not waste. The divergence is from the sampler to the policy, since
  the tokens are the sampler's:

    KL(mu || pi) = E_mu[-x] = E_mu[exp(x) - 1 - x]

  Args:
    log_ratio_BT: x = log pi - log mu, from `ratios.log_ratio`.
    mask_BT: bool, the trained tokens.
    version_BT: integers, such as the age of the version in updates; a token
      with one outside [0, num_versions) is not counted. None for one version.
    num_versions: Z, fixed when compiled.
    weight_BT: the weights in use, if truncated or masked; exp(x) if None.

  Returns:
    RatioMoments, to add up and ask.
  """
  check_masked(mask_BT, log_ratio_BT)
  if version_BT is None:
    version_BT = jnp.zeros(mask_BT.shape, jnp.int32)
  x_BT = _known(log_ratio_BT, mask_BT)
  if weight_BT is not None:
    chex.assert_equal_shape([mask_BT, weight_BT])
    weight_BT = _known(weight_BT, mask_BT)
  else:
    weight_BT = jnp.exp(x_BT)
  chex.assert_equal_shape([mask_BT, version_BT])
  # A comparison and a sum, not a scatter: few versions, any sharding.
  versions_Z11 = jnp.arange(num_versions)[:, None, None]
  member_ZBT = (version_BT[None] == versions_Z11) & mask_BT[None]

  def per_version(y_BT: jax.Array) -> jax.Array:
    return jnp.sum(y_BT[None], axis=(1, 2), where=member_ZBT)

  return RatioMoments(
    count_Z=jnp.sum(member_ZBT, axis=(1, 2)),
    weight_Z=per_version(weight_BT),
    square_Z=per_version(jnp.square(weight_BT)),
    k1_Z=per_version(k1(-x_BT)),
    k3_Z=per_version(k3(-x_BT)),
    abs_Z=per_version(jnp.abs(x_BT)),
  )


def clip_fractions(
  log_ratio_BT: jax.Array,
  advantage_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  clip_low: float,
  clip_high: float,
  dual_clip: float | None = None,
) -> dict[str, Mean]:
  """Returns shares of tokens whose gradient `clipped_surrogate` stops, by case.

    above   A > 0 and r > 1 + clip_high     good tokens that rose enough
    below   A < 0 and r < 1 - clip_low      bad tokens that fell enough
    dual    A < 0 and r > dual_clip         bad tokens that rose too far

  above + below is verl's pg_clipfrac, dual its pg_clipfrac_lower.
  """
  check_clip(clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
  chex.assert_equal_shape([log_ratio_BT, advantage_BT, mask_BT])
  ratio_BT = jnp.exp(_known(log_ratio_BT, mask_BT))
  advantage_BT = _known(advantage_BT, mask_BT)
  highest = jnp.inf if dual_clip is None else dual_clip
  stopped = {
    "above": (advantage_BT > 0) & (ratio_BT > 1 + clip_high),
    "below": (advantage_BT < 0) & (ratio_BT < 1 - clip_low),
    "dual": (advantage_BT < 0) & (ratio_BT > highest),
  }
  return {name: token_mean(x_BT, mask_BT) for name, x_BT in stopped.items()}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Extremes:
  """Minimum and maximum; +inf and -inf of an empty mask."""

  low: jax.Array  # []
  high: jax.Array  # []

  def __add__(self, other: "Extremes") -> "Extremes":
    return Extremes(
      jnp.minimum(self.low, other.low), jnp.maximum(self.high, other.high)
    )


def extremes(x_BT: jax.Array, mask_BT: jax.Array) -> Extremes:
  """Returns minimum and maximum of x on the mask, such as of log-ratios.

  One log-ratio of 15 among a million is a fault of sampler or learner that no
  mean shows. A NaN on the mask makes both NaN.
  """
  check_masked(mask_BT, x_BT)
  x_BT = _known(x_BT, mask_BT)
  return Extremes(
    jnp.min(x_BT, where=mask_BT, initial=jnp.inf),
    jnp.max(x_BT, where=mask_BT, initial=-jnp.inf),
  )


def _known(x_BT: jax.Array, mask_BT: jax.Array) -> jax.Array:
  """Returns x in float32 at least, without gradient, 0 off the mask."""
  return jax.lax.stop_gradient(jnp.where(mask_BT, widen(x_BT), 0))
