"""Advantages in units of their own spread, all tasks and groups together.

The statistics are of the *global* batch: call these before cutting it into
micro-batches, and under sharding on the global arrays. What is whitened is a
constant: no gradient passes.

Axes: B rows, T tokens, N trajectories.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.group_statistics import check_attempts
from agentrl_jax.losses.precision import widen
from agentrl_jax.losses.task_moments import measure_tasks


def whiten(
  x_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  center: bool = True,
  epsilon: float = 1e-8,
) -> jax.Array:
  """Gives the trained tokens of the batch mean 0 and variance 1.

    y = (x - mu) / sqrt(sigma^2 + epsilon)    (+ mu if not `center`)

  with the mean and unbiased variance over all trained tokens: what PPO does to
  its advantages and REINFORCE++ to its returns. Mind that epsilon is added to
  the variance, not to the deviation. Without `center` the spread is brought to
  1 and the mean left where it was. Tokens that are all equal, hence also a
  token that is alone, have nothing to be compared with and get 0 (+ mu).

  Args:
    x_BT: not read off the mask.
    mask_BT: bool, the trained tokens.
    center: whether the mean ends at 0.
    epsilon: keeps the quotient finite.

  Returns:
    y_BT, 0 off the mask.
  """
  chex.assert_rank([x_BT, mask_BT], 2)
  chex.assert_type(mask_BT, bool)
  return _whiten(x_BT, mask_BT, center, epsilon)


def whiten_weighted(
  x_N: jax.Array,
  num_tokens_N: jax.Array,
  valid_N: jax.Array,
  *,
  center: bool = True,
  epsilon: float = 1e-8,
) -> jax.Array:
  """`whiten`, before the advantages are spread over tokens.

  Where every trained token of a trajectory carries the trajectory's x, the
  statistics over tokens are those over trajectories weighted by their number of
  trained tokens, and the result is the same number. A trajectory without
  trained tokens gets 0, as does one that is not valid.

  Args:
    x_N: not read where it does not count.
    num_tokens_N: integers, the trained tokens of each trajectory.
    valid_N: bool.
    center, epsilon: as in `whiten`.
  """
  check_attempts(x_N, num_tokens_N, valid_N)
  weight_N = jnp.where(valid_N, num_tokens_N, 0)
  return _whiten(x_N, weight_N, center, epsilon)


def _whiten(
  x: jax.Array, weight: jax.Array, center: bool, epsilon: float
) -> jax.Array:
  everything = jnp.zeros(x.shape, jnp.int32)
  moments = measure_tasks(x, everything, weight, num_tasks=1)
  mean, variance = moments.mean_I[0], moments.variance_I[0]
  y = (jax.lax.stop_gradient(widen(x)) - mean) * jax.lax.rsqrt(
    variance + epsilon
  )
  return jnp.where(weight > 0, y if center else y + mean, 0)
