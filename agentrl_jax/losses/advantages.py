"""How much better an attempt did than expected: the sign and size of a lesson.

First within a group of attempts at one task (`group_advantage`), then, so that
no task drowns another, over all trained tokens of each task of the *global*
batch (`task_normalise`): call these before cutting the batch into
micro-batches, and under sharding on the global arrays. Statistics are sums
over whole axes, so neither the cut nor the sharding changes them.

What is constant has no lesson in it: a group or task without variance gets
exactly 0, not rounding errors divided by epsilon. Ids out of range give NaN,
where they could otherwise pass unnoticed.

Axes: N trajectories (those of a group need not be neighbours), M groups,
I tasks, B rows, T tokens. All results are float32.
"""

import chex
import jax
import jax.numpy as jnp


def group_advantage(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  scale_by_std: bool = True,
  ddof: int = 1,
  epsilon: float = 1e-6,
) -> jax.Array:
  """How an attempt compares with its siblings.

    A_n = (r_n - mean_G r) / (std_G r + epsilon)

  (GRPO, arXiv:2402.03300, section 4.1.2); without the divisor if not
  `scale_by_std` (Dr. GRPO, arXiv:2503.20783). Groups may differ in size. A
  group of one has nothing to compare with and keeps its reward, as if mean
  were 0 and std 1 (AgentRL); one whose rewards are all equal gets 0.

  Args:
    reward_N: one per trajectory; not read where invalid.
    group_N: integers in [0, num_groups).
    num_groups: M, fixed when compiled; groups may be empty.
    valid_N: bool; an attempt that is not valid (padding, or lost to a fault of
      ours) counts in no mean and gets 0.
    scale_by_std: whether to divide.
    ddof: 1 divides the sum of squares by n - 1 (AgentRL), 0 by n.
    epsilon: keeps the quotient finite.
  """
  _check_vectors(reward_N, group_N, valid_N)
  reward_N = jnp.where(valid_N, reward_N, 0).astype(jnp.float32)

  def per_group(x_N: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(x_N, group_N, num_groups)

  size_M = per_group(valid_N.astype(jnp.int32))
  mean_M = per_group(reward_N) / jnp.maximum(size_M, 1)
  deviation_N = reward_N - _look_up(mean_M, group_N)
  square_N = jnp.where(valid_N, jnp.square(deviation_N), 0)
  std_M = jnp.sqrt(per_group(square_N) / jnp.maximum(size_M - ddof, 1))

  low_M, high_M = _range_of_groups(reward_N, group_N, num_groups, valid_N)
  alone_N = _look_up(size_M, group_N) == 1
  constant_N = _look_up(low_M, group_N) == _look_up(high_M, group_N)
  scale_N = _look_up(std_M, group_N) + epsilon if scale_by_std else 1.0
  advantage_N = jnp.where(constant_N, 0, deviation_N / scale_N)
  alone_scale = 1.0 + epsilon if scale_by_std else 1.0
  advantage_N = jnp.where(alone_N, reward_N / alone_scale, advantage_N)
  return jnp.where(valid_N, advantage_N, 0)


def group_has_signal(
  reward_N: jax.Array,
  group_N: jax.Array,
  num_groups: int,
  valid_N: jax.Array,
) -> jax.Array:
  """Whether some of a group's attempts did better than others.

  Groups where all succeed or all fail teach nothing by comparison, and dynamic
  sampling leaves them out (DAPO, arXiv:2503.14476, section 3.2). Of groups
  with two or more members, those without signal are just those whose
  `group_advantage` is all 0. A group of one, or none, has no signal.

  Returns:
    signal_M, bool.
  """
  _check_vectors(reward_N, group_N, valid_N)
  low_M, high_M = _range_of_groups(
    reward_N.astype(jnp.float32), group_N, num_groups, valid_N
  )
  return low_M < high_M


def task_normalise(
  advantage_BT: jax.Array,
  task_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  num_tasks: int,
  center: bool = True,
  scale: bool = True,
  epsilon: float = 1e-6,
) -> jax.Array:
  """Gives every task's tokens mean 0 and standard deviation 1.

    A' = (A - mu_i) / (sigma_i + epsilon)

  with mu_i and sigma_i the mean and unbiased standard deviation over all
  trained tokens of task i in the batch (AgentRL, arXiv:2510.04206, eq. 1).
  Where all of a task's tokens have the same advantage there is nothing to
  normalise, and they get 0.

  Mind that centering shifts attempts whose group had no signal from 0 to
  -mu_i / sigma_i, and that long trajectories weigh more in mu_i.

  Args:
    advantage_BT: not read off the mask.
    task_BT: integers in [0, num_tasks); any value off the mask.
    mask_BT: bool, the trained tokens.
    num_tasks: I, fixed when compiled; tasks may be absent from a batch.
    center: whether to subtract mu_i.
    scale: whether to divide by sigma_i + epsilon; sigma_i is taken about mu_i
      either way.
    epsilon: keeps the quotient finite.

  Returns:
    advantage_BT, 0 off the mask.
  """
  arrays = [advantage_BT, task_BT, mask_BT]
  chex.assert_rank(arrays, 2)
  chex.assert_equal_shape(arrays)
  chex.assert_type(mask_BT, bool)
  return _normalise(
    advantage_BT,
    task_BT,
    mask_BT.astype(jnp.int32),
    num_tasks=num_tasks,
    center=center,
    scale=scale,
    epsilon=epsilon,
  )


def task_normalise_weighted(
  advantage_N: jax.Array,
  task_N: jax.Array,
  num_tokens_N: jax.Array,
  valid_N: jax.Array,
  *,
  num_tasks: int,
  center: bool = True,
  scale: bool = True,
  epsilon: float = 1e-6,
) -> jax.Array:
  """`task_normalise`, before the advantages are spread over tokens.

  Where every trained token of a trajectory carries the trajectory's advantage,
  the statistics over tokens are those over trajectories weighted by their
  number of trained tokens, and the result is the same number. A trajectory
  without trained tokens gets 0, as does one that is not valid.

  Args:
    advantage_N: not read where it does not count.
    task_N: integers in [0, num_tasks).
    num_tokens_N: integers, the trained tokens of each trajectory.
    valid_N: bool.
    num_tasks, center, scale, epsilon: as in `task_normalise`.
  """
  _check_vectors(advantage_N, task_N, valid_N)
  chex.assert_equal_shape([advantage_N, num_tokens_N])
  return _normalise(
    advantage_N,
    task_N,
    jnp.where(valid_N, num_tokens_N, 0).astype(jnp.int32),
    num_tasks=num_tasks,
    center=center,
    scale=scale,
    epsilon=epsilon,
  )


def _normalise(
  x: jax.Array,
  task: jax.Array,
  weight: jax.Array,
  *,
  num_tasks: int,
  center: bool,
  scale: bool,
  epsilon: float,
) -> jax.Array:
  """(x - mu) / (sigma + epsilon) by task, each entry counted `weight` times."""
  counts = weight > 0
  x = x.astype(jnp.float32)
  # A comparison and a sum, not a scatter: few tasks, many tokens, any sharding.
  tasks = jnp.arange(num_tasks).reshape(-1, *[1] * x.ndim)
  member = (task[None] == tasks) & counts[None]
  axes = tuple(range(1, member.ndim))

  def per_task(y: jax.Array) -> jax.Array:
    return jnp.sum(y[None], axis=axes, where=member)

  weight_I = per_task(weight)
  mu_I = per_task(weight * x) / jnp.maximum(weight_I, 1)
  deviation = x - _look_up(mu_I, task)
  variance_I = per_task(weight * jnp.square(deviation)) / jnp.maximum(
    weight_I - 1, 1
  )
  low_I = jnp.min(x[None], axis=axes, where=member, initial=jnp.inf)
  high_I = jnp.max(x[None], axis=axes, where=member, initial=-jnp.inf)

  y = deviation if center else x
  if scale:
    y = y / (_look_up(jnp.sqrt(variance_I), task) + epsilon)
  if center or scale:
    y = jnp.where(_look_up(low_I, task) == _look_up(high_I, task), 0, y)
  return jnp.where(counts, y, 0)


def _range_of_groups(
  reward_N: jax.Array, group_N: jax.Array, num_groups: int, valid_N: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Lowest and highest reward; the former is the higher in an empty group."""
  low_N = jnp.where(valid_N, reward_N, jnp.inf)
  high_N = jnp.where(valid_N, reward_N, -jnp.inf)
  return (
    jax.ops.segment_min(low_N, group_N, num_groups),
    jax.ops.segment_max(high_N, group_N, num_groups),
  )


def _look_up(table: jax.Array, index: jax.Array) -> jax.Array:
  """table[index] in float32, and NaN where the index is out of range."""
  return (
    table.astype(jnp.float32)
    .at[index]
    .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
  )


def _check_vectors(
  x_N: jax.Array, index_N: jax.Array, valid_N: jax.Array
) -> None:
  chex.assert_rank([x_N, index_N, valid_N], 1)
  chex.assert_equal_shape([x_N, index_N, valid_N])
  chex.assert_type(valid_N, bool)
