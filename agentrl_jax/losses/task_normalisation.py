"""No task drowns another: advantages in units of their own task's spread.

Statistics are over the *global* batch: call these before cutting it into
micro-batches, and under sharding on the global arrays. They are sums over whole
axes, so neither the cut nor the sharding changes them. Advantages are
constants: no gradient passes. A task without variance has no lesson in it and
gets exactly 0. Tasks out of range give NaN.

Axes: N trajectories, I tasks, B rows, T tokens.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.group_statistics import check_attempts
from agentrl_jax.losses.precision import widen
from agentrl_jax.losses.tables import look_up
from agentrl_jax.losses.task_moments import TaskMoments, measure_tasks


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
  """`task_normalise`, before the advantages are spread over tokens.

  Where every trained token of a trajectory carries the trajectory's advantage,
  the statistics over tokens are those over trajectories weighted by their
  number of trained tokens, and the result is the same number. Statistics over
  trajectories count each once, so that a task's long failures do not outvote
  its short successes. A trajectory without trained tokens gets 0, as does one
  that is not valid, and neither counts.

  Args:
    advantage_N: not read where it does not count.
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
  check_attempts(advantage_N, task_N, valid_N)
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
  """(x - mu_i) / (sigma_i + epsilon) with moments measured elsewhere.

  With those of this batch it is `task_normalise`, or `task_normalise_weighted`.
  With running ones (`blend_moments`) a task that the batch has little of is
  still measured in its usual units, and the mean of a batch may be off 0: that
  a batch went worse than usual remains visible. Blend the batch in first, so
  that no task comes unseen.

  A task whose moments have no variance gets 0 if scaled: in its own batch
  because there is nothing to compare; by running moments because they know no
  unit for it yet, and epsilon is not one.

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
