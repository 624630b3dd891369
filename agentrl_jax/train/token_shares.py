"""How much each token counts in the mean that the loss is.

The mean is over all trajectories that count, also those that are not computed,
since their advantage is 0 and adds nothing to the total: their weight is
`left_out` of the micro-batches.

Axes: N trajectories, R rows of the whole batch, T tokens, P micro-batches.
"""

import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.packing import Rows
from agentrl_jax.train.advantages import Rated, pad_rows
from agentrl_jax.train.config.loss import LossConfig


def token_shares(
  rows: Rows,
  rated: Rated,
  loss: LossConfig,
  *,
  num_tasks: int,
  micro_batch: int,
) -> tuple[np.ndarray | None, list[float] | None]:
  """Returns the weight of each token, and `left_out` of each micro-batch.

  Weights [R, T] are None where the reduction needs none.
  """
  weight_RT = None
  # A trajectory's lines may be in several rows.
  in_lines = any(len(t.lines) > 1 for t in rated.trajectories)
  if loss.task_share != "tokens":
    weight_RT, left_out = _task_weights(rows, rated, num_tasks=num_tasks)
  elif loss.reduction == "token_mean":
    left_out = float(rated.left_tokens_K.sum())
  else:  # a mean over trajectories
    left_out = float(len(rated.left_tokens_K))
    if loss.reduction == "sequence_mean" and in_lines:
      weight_RT = one_for_each(rows)
  corrects = loss.sums_sequences and in_lines
  if not loss.needs_advantage and not corrects:
    return weight_RT, None
  starts = range(0, len(rows.token), micro_batch)
  # Equal shares, so that each of several updates of a batch has its own.
  shares_P = [left_out / len(starts)] * len(starts)
  if corrects:
    further_P = (
      further_lines(rows, slice(start, start + micro_batch), rated)
      for start in starts
    )
    shares_P = [a - b for a, b in zip(shares_P, further_P, strict=True)]
  return weight_RT, shares_P


def one_for_each(rows: Rows) -> np.ndarray:
  """Returns weights [R, T] that add up to 1 over each trajectory's tokens."""
  num_tokens_N = np.bincount(
    rows.trajectory[rows.mask], minlength=rows.trajectory.max() + 1
  )
  weight_RT = 1 / np.maximum(num_tokens_N, 1)[rows.trajectory]
  return np.where(rows.mask, weight_RT, 0).astype(np.float32)


def further_lines(rows: Rows, part: slice, rated: Rated) -> float:
  """Returns by how much lines of these rows exceed their trajectories.

  Sums over sequences count each line as one; here a trajectory is to count as
  one, in equal parts at its lines.
  """
  num_lines_N = np.array([len(t.lines) for t in rated.trajectories])
  begins_BT = (rows.position[part] == 0) & (rows.segment[part] > 0)
  lines_X = num_lines_N[rows.trajectory[part][begins_BT]]
  return float(np.sum(1 - 1 / lines_X))


def _task_weights(
  rows: Rows, rated: Rated, *, num_tasks: int
) -> tuple[np.ndarray, float]:
  """Weights of the packed tokens, and the sum of those left out."""
  num_rows, row_length = rows.mask.shape
  # The tokens that are left out, in rows of their own.
  task_X = np.repeat(rated.left_task_K, rated.left_tokens_K)
  missing = -len(task_X) % row_length
  mask_X = np.pad(np.ones(len(task_X), bool), (0, missing))
  task_X = np.pad(task_X, (0, missing))

  def joined(x_RT: np.ndarray, other_X: np.ndarray) -> np.ndarray:
    other_RT = other_X.reshape(-1, row_length)
    return pad_rows(np.concatenate([x_RT, other_RT]))

  weight_RT = np.asarray(
    losses.task_weights(
      joined(rated.task_N[rows.trajectory], task_X),
      joined(rows.mask, mask_X),
      num_tasks=num_tasks,
    )
  )
  return weight_RT[:num_rows], float(weight_RT[num_rows:].sum())
