"""A policy gradient on a whole sequence, clipped token by token: GMPO.

Axes: B rows, T tokens, S segments of a row.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import require_positive
from agentrl_jax.losses.policy_gradient import reinforce
from agentrl_jax.losses.precision import widen
from agentrl_jax.losses.ratios import sequence_log_ratio


def gmpo(
  log_ratio_BT: jax.Array,
  advantage_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
  *,
  clip_low: float = 0.4,
  clip_high: float = 0.4,
) -> jax.Array:
  """GMPO: the geometric mean of a sequence's clipped ratios.

    loss = -exp(mean_t x'_t) A
    x' = min(x, clip_high) where A > 0, max(x, -clip_low) where A < 0

  with x the log-ratio (arXiv:2507.20673). One token's outlying ratio moves a
  geometric mean little, so the bounds may be wide; unlike those of
  `clipped_surrogate` they are in nats, ratios of e^-0.4 and e^0.4 as published.
  Reduce it with `sequence_mean` or `segment_mean`.

    d loss / d log pi(token) = loss / length, or 0 where its x' is held

  for the loss of a sequence, which should have one advantage.

  Args:
    log_ratio_BT: x, as `ratios.log_ratio` returns it.
    advantage_BT: treated as a constant, the same on all of a sequence.
    mask_BT: bool, the trained tokens.
    segment_BT, num_segments: of packed rows, as in `sequence_log_ratio`.
    clip_low, clip_high: positive, in nats.

  Returns:
    loss_BT, each trained token carrying its sequence's, to be minimised.

  Raises:
    ValueError: a bound that is not positive.
  """
  require_positive("clip_low", clip_low)
  require_positive("clip_high", clip_high)
  chex.assert_rank([log_ratio_BT, advantage_BT], 2)
  chex.assert_equal_shape([log_ratio_BT, advantage_BT])
  x_BT, advantage_BT = widen(log_ratio_BT), widen(advantage_BT)
  x_BT = jnp.where((advantage_BT > 0) & (x_BT > clip_high), clip_high, x_BT)
  x_BT = jnp.where((advantage_BT < 0) & (x_BT < -clip_low), -clip_low, x_BT)
  sequence_BT = sequence_log_ratio(
    x_BT, mask_BT, segment_BT, num_segments, average=True, limit=20.0
  )
  return reinforce(sequence_BT, advantage_BT)
