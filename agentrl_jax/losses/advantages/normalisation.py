"""Normalisation of advantages over the batch: whitening, and by task.

Statistics are over the *global* batch: call these before cutting it into
micro-batches, and under sharding on the global arrays. They are sums over whole
axes, so neither the cut nor the sharding changes them. Advantages are
constants: no gradient passes. A task without variance gets
exactly 0. Tasks out of range give NaN.

`TaskMoments` of micro-batches, shards or batches add up exactly. Running
moments are a sum in which older batches count less.

Axes: N trajectories, I tasks, B rows, T tokens.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.advantages.group_advantages import group_advantage
from agentrl_jax.losses.advantages.returns import discounted_returns
from agentrl_jax.losses.arguments import (
  check_masked,
  look_up,
  require_fraction,
  widen,
)


def whiten(
  x_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  center: bool = True,
  epsilon: float = 1e-8,
) -> jax.Array:
  """Gives the trained tokens of the batch mean 0 and variance 1.

    y = (x - mu) / sqrt(sigma^2 + epsilon)    (+ mu if not `center`)

  with the mean and unbiased variance over all trained tokens. PPO whitens its
  advantages, REINFORCE++ its returns. Note that epsilon is added to the
  variance, not to the deviation. Without `center` the mean does not change.
  Tokens that are all equal, also a single token, get 0 (+ mu).

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
  """`whiten` for one number per trajectory.

  Where every trained token of a trajectory carries the trajectory's x, the
  statistics over tokens are those over trajectories weighted by their number of
  trained tokens, and the result is the same number. A trajectory without
  trained tokens gets 0, as does one that is not valid.

  Args:
    x_N: not read where invalid or without trained tokens.
    num_tokens_N: integers, the trained tokens of each trajectory.
    valid_N: bool.
    center, epsilon: as in `whiten`.
  """
  check_masked(valid_N, x_N, num_tokens_N, rank=1)
  weight_N = jnp.where(valid_N, num_tokens_N, 0)
  return _whiten(x_N, weight_N, center, epsilon)


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
  If all of a task's tokens have the same advantage, they get 0.

  Note that centering shifts trajectories whose group had no signal from 0 to
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
  chex.assert_type(mask_BT, bool)
  moments = measure_tasks(*arrays, num_tasks=num_tasks)
  return normalise_by_moments(
    *arrays, moments, center=center, scale=scale, epsilon=epsilon
  )


def task_normalise_weighted(
  advantage_N: jax.Array,
  task_N: jax.Array,
  num_tokens_N: jax.Array,
  valid_N: jax.Array,
  *,
  num_tasks: int,
  over: str = "tokens",
  center: bool = True,
  scale: bool = True,
  epsilon: float = 1e-6,
) -> jax.Array:
  """`task_normalise` for one advantage per trajectory.

  Where every trained token of a trajectory carries the trajectory's advantage,
  the statistics over tokens are those over trajectories weighted by their
  number of trained tokens, and the result is the same number. Statistics over
  trajectories count each once, so that a task's long failures do not outweigh
  its short successes. A trajectory without trained tokens gets 0, as does one
  that is not valid, and neither counts.

  Args:
    advantage_N: not read where invalid or without trained tokens.
    task_N: integers in [0, num_tasks).
    num_tokens_N: integers, the trained tokens of each trajectory.
    valid_N: bool.
    over: "tokens" or "trajectories".
    num_tasks, center, scale, epsilon: as in `task_normalise`.

  Raises:
    ValueError: for any other `over`.
  """
  if over not in ("tokens", "trajectories"):
    raise ValueError(
      f'over="{over}" must be "tokens", where a trajectory counts once per '
      'trained token, or "trajectories", where it counts once'
    )
  check_masked(valid_N, advantage_N, task_N, rank=1)
  chex.assert_equal_shape([advantage_N, num_tokens_N])
  counts_N = valid_N & (num_tokens_N > 0)
  weight_N = jnp.where(counts_N, num_tokens_N if over == "tokens" else 1, 0)
  moments = measure_tasks(advantage_N, task_N, weight_N, num_tasks=num_tasks)
  return normalise_by_moments(
    advantage_N,
    task_N,
    counts_N,
    moments,
    center=center,
    scale=scale,
    epsilon=epsilon,
  )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TaskMoments:
  """Weight, mean and unbiased variance of each task.

  All three are 0 for a task that was never seen. Constant numbers have a
  variance of exactly 0, also in the sum of parts.
  """

  weight_I: jax.Array  # tokens or trajectories, whichever was counted
  mean_I: jax.Array
  variance_I: jax.Array

  def __add__(self, other: "TaskMoments") -> "TaskMoments":
    """Returns the moments of both parts, as if measured at once."""
    return _merge(self, other, decay=1.0)


def measure_tasks(
  x: jax.Array, task: jax.Array, weight: jax.Array, *, num_tasks: int
) -> TaskMoments:
  """Measures mean and unbiased variance of x by task.

    mu_i = sum w x / W_i,  sigma_i^2 = sum w (x - mu_i)^2 / (W_i - 1)

  over the entries of task i, each counted w times, W_i = sum w. A mask for
  weight gives statistics over tokens of a [B, T] array; trajectories weighted
  by their number of trained tokens give the same, and trajectories weighted by
  1 let short ones count as much as long ones.

  Args:
    x: any shape; not read where the weight is 0. A constant.
    task: integers in [0, num_tasks), of the same shape; others count nowhere.
    weight: bool or integers from 0, of the same shape.
    num_tasks: I, fixed when compiled.

  Raises:
    ValueError: for float weights, whose fractions would be lost.
  """
  if jnp.issubdtype(weight.dtype, jnp.floating):
    raise ValueError(
      f"weights are {weight.dtype}, but must be bool or integers: they count "
      "how often an entry was seen"
    )
  chex.assert_equal_shape([x, task, weight])
  x = jax.lax.stop_gradient(widen(x))
  weight = weight.astype(jnp.int32)
  # A comparison and a sum, not a scatter: few tasks, many tokens, any sharding.
  tasks = jnp.arange(num_tasks).reshape(-1, *[1] * x.ndim)
  member = (task[None] == tasks) & (weight > 0)[None]
  axes = tuple(range(1, member.ndim))

  def per_task(y: jax.Array) -> jax.Array:
    return jnp.sum(y[None], axis=axes, where=member)

  weight_I = per_task(weight)
  low_I = jnp.min(x[None], axis=axes, where=member, initial=jnp.inf)
  low_I = jnp.where(weight_I > 0, low_I, 0)
  # From the lowest on: the mean of equal numbers is then that number, and sums
  # of large ones lose no digits.
  above = weight * (x - look_up(low_I, task))
  mean_I = low_I + per_task(above) / jnp.maximum(weight_I, 1)
  square_I = per_task(weight * jnp.square(x - look_up(mean_I, task)))
  variance_I = square_I / jnp.maximum(weight_I - 1, 1)
  # Numbers divided by an infinite deviation would be 0 in silence.
  variance_I = jnp.where(jnp.isinf(variance_I), jnp.nan, variance_I)
  return TaskMoments(weight_I.astype(mean_I.dtype), mean_I, variance_I)


def unseen_tasks(num_tasks: int) -> TaskMoments:
  """Returns the initial running moments."""
  zero_I = jnp.zeros(num_tasks, widen(0.0).dtype)
  return TaskMoments(zero_I, zero_I, zero_I)


def blend_moments(
  running: TaskMoments, batch: TaskMoments, *, decay: float | jax.Array
) -> TaskMoments:
  """Adds a batch to running moments; earlier batches count less.

    W' = d W + w,  mu' = (d W mu + w m) / W'

  with W, mu of the running moments and w, m of the batch, and the variance of
  all that was seen, with the same weights, the drift of the mean included. For
  equal batches this converges to the exponential moving average in which each
  batch has a share of 1 - d. It needs no correction of its start, and a batch
  with few tokens of a task changes its moments little. A task's first batch
  sets its moments; a task that is absent from the batch keeps its own, however
  long ago it was seen. d = 1 forgets nothing; d = 0 keeps the last batch only.

  Args:
    running: from `unseen_tasks` or an earlier call.
    batch: from `measure_tasks`.
    decay: d, from 0 to 1.

  Raises:
    ValueError: if `decay` is a number outside [0, 1].
  """
  require_fraction("decay", decay)
  return _merge(running, batch, decay=decay)


def normalise_by_moments(
  x: jax.Array,
  task: jax.Array,
  mask: jax.Array,
  moments: TaskMoments,
  *,
  center: bool = True,
  scale: bool = True,
  epsilon: float = 1e-6,
) -> jax.Array:
  """Returns (x - mu_i) / (sigma_i + epsilon) with given moments.

  With those of this batch it is `task_normalise`, or `task_normalise_weighted`.
  Running ones (`blend_moments`) keep the scale of a task of which the batch has
  few tokens, and the mean of a batch may differ from 0, so that a batch that
  went worse than usual has negative advantages. Blend the batch in first, so
  that every task has moments.

  A task whose moments have no variance gets 0 if scaled: there is no unit to
  scale by yet, and epsilon is not one.

  Args:
    x: [N] or [B, T], not read off the mask. A constant.
    task: integers in [0, num_tasks); any value off the mask.
    mask: bool.
    moments: one entry per task.
    center, scale, epsilon: as in `task_normalise`.

  Returns:
    x normalised, 0 off the mask.
  """
  chex.assert_equal_shape([x, task, mask])
  chex.assert_type(mask, bool)
  x = jax.lax.stop_gradient(widen(x))
  y = x - look_up(moments.mean_I, task) if center else x
  if scale:
    sigma = look_up(jnp.sqrt(moments.variance_I), task)
    nothing = (sigma == 0) & ~jnp.isnan(y)
    y = jnp.where(nothing, 0, y / (sigma + epsilon))
  return jnp.where(mask, y, 0)


def reinforce_plus_plus_advantage(
  reward_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  discount: float | jax.Array,
  segment_BT: jax.Array | None = None,
  epsilon: float = 1e-8,
) -> jax.Array:
  """REINFORCE++: discounted returns, whitened over the batch's tokens.

    A = whiten(R),  R_t = r_t + gamma R_t'

  (REINFORCE++, arXiv:2501.03262.) It needs no groups: one trajectory per task
  is enough. A KL penalty that is part of the reward, as in the paper, has to be
  subtracted from `reward_BT` token by token first.

  Args:
    reward_BT, mask_BT, discount, segment_BT: as in `discounted_returns`.
    epsilon: as in `whiten`.

  Returns:
    advantage_BT, 0 off the mask.
  """
  return_BT = discounted_returns(
    reward_BT, mask_BT, discount=discount, segment_BT=segment_BT
  )
  return whiten(return_BT, mask_BT, epsilon=epsilon)


def reinforce_plus_plus_baseline_advantage(
  reward_N: jax.Array,
  group_N: jax.Array,
  num_tokens_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  epsilon: float = 1e-8,
) -> jax.Array:
  """REINFORCE++-baseline: rewards less their group's mean, whitened.

    A = whiten(r_n - mean_G r)

  (REINFORCE++-baseline, arXiv:2501.03262.) Unlike GRPO it has one deviation
  for the whole batch, so a group with little spread is not scaled up to the
  others. Unlike `task_normalise`, all tasks share it.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `group_advantage`.
    num_tokens_N: integers, the trained tokens of each trajectory.
    epsilon: as in `whiten`.

  Returns:
    advantage_N, one for all trained tokens of a trajectory.
  """
  advantage_N = group_advantage(
    reward_N,
    group_N,
    num_groups=num_groups,
    valid_N=valid_N,
    scale_by_std=False,
  )
  return whiten_weighted(advantage_N, num_tokens_N, valid_N, epsilon=epsilon)


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


def _merge(
  old: TaskMoments, new: TaskMoments, *, decay: float | jax.Array
) -> TaskMoments:
  """Merges both by Chan, Golub and LeVeque's formula, `old` decayed."""
  old_weight_I = decay * old.weight_I
  weight_I = old_weight_I + new.weight_I
  share_I = new.weight_I / jnp.where(weight_I > 0, weight_I, 1)
  difference_I = new.mean_I - old.mean_I
  square_I = (
    decay * old.variance_I * jnp.maximum(old.weight_I - 1, 0)
    + new.variance_I * jnp.maximum(new.weight_I - 1, 0)
    + jnp.square(difference_I) * old_weight_I * share_I
  )
  both = TaskMoments(
    weight_I,
    old.mean_I + difference_I * share_I,
    jnp.where(
      weight_I > 1, square_I / jnp.where(weight_I > 1, weight_I - 1, 1), 0
    ),
  )

  def choose(both_I: jax.Array, old_I: jax.Array, new_I: jax.Array):
    either_I = jnp.where(new.weight_I == 0, old_I, new_I)
    seen_twice_I = (old.weight_I > 0) & (new.weight_I > 0)
    return jnp.where(seen_twice_I, both_I, either_I)

  return jax.tree.map(choose, both, old, new)
