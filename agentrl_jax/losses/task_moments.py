"""Mean and variance of each task's advantages, of one batch or of many.

Kept so that parts add up exactly: the moments of a batch are the sum (`+`) of
those of its micro-batches or shards, and running moments are a sum in which
older batches count less.

Axes: I tasks. What is measured may have any axes; all of them are summed over.
"""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import require_fraction
from agentrl_jax.losses.precision import widen
from agentrl_jax.losses.tables import look_up


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["weight_I", "mean_I", "variance_I"],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TaskMoments:
  """How much was seen of each task, its mean and its unbiased variance.

  All three are 0 for a task that was never seen. What is constant has a
  variance of exactly 0, in the sum of parts as well.
  """

  weight_I: jax.Array  # tokens or trajectories, whichever was counted
  mean_I: jax.Array
  variance_I: jax.Array

  def __add__(self, other: "TaskMoments") -> "TaskMoments":
    """The moments of both parts together, as if measured at once."""
    return _merge(self, other, decay=1.0)


def unseen_tasks(num_tasks: int) -> TaskMoments:
  """Where running moments start."""
  zero_I = jnp.zeros(num_tasks, widen(0.0).dtype)
  return TaskMoments(zero_I, zero_I, zero_I)


def measure_tasks(
  x: jax.Array, task: jax.Array, weight: jax.Array, *, num_tasks: int
) -> TaskMoments:
  """Mean and unbiased variance of x by task.

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
    ValueError: for weights that are floats, of which parts would be lost.
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
  mean_I = per_task(weight * x) / jnp.maximum(weight_I, 1)
  low_I = jnp.min(x[None], axis=axes, where=member, initial=jnp.inf)
  high_I = jnp.max(x[None], axis=axes, where=member, initial=-jnp.inf)
  # The mean of equal numbers is not always that number, once it is rounded.
  mean_I = jnp.where(low_I == high_I, low_I, mean_I)
  square_I = per_task(weight * jnp.square(x - look_up(mean_I, task)))
  variance_I = square_I / jnp.maximum(weight_I - 1, 1)
  return TaskMoments(weight_I.astype(mean_I.dtype), mean_I, variance_I)


def blend_moments(
  running: TaskMoments, batch: TaskMoments, *, decay: float | jax.Array
) -> TaskMoments:
  """Running moments after one more batch: what came before counts less.

    W' = d W + w,  mu' = (d W mu + w m) / W'

  with W, mu of the running moments and w, m of the batch, and the variance of
  all that was seen, with the same weights, the drift of the mean included. In
  the long run of equal batches it is the exponential moving average in which
  each batch has a share of 1 - d; but it needs no correction of its start, and
  a batch with few tokens of a task says little about it. A task's first batch
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


def _merge(
  old: TaskMoments, new: TaskMoments, *, decay: float | jax.Array
) -> TaskMoments:
  """Both together by Chan, Golub and LeVeque's formula, the old one decayed."""
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
