"""Moments of each task from everything that was ever seen of it, in float64."""

import collections
import math

import numpy as np


def measure_tasks(x, task, weight, *, num_tasks):
  """(weight_I, mean_I, variance_I) of the entries listed one by one."""
  return moments_of([entries(x, task, weight)], num_tasks)


def entries(x, task, weight):
  """Lists of (value, weight) by task."""
  seen = collections.defaultdict(list)
  for at in np.ndindex(x.shape):
    if weight[at]:
      seen[int(task[at])].append((float(x[at]), float(weight[at])))
  return seen


def moments_of(batches, num_tasks, decay=1.0):
  """Of all entries of all batches; a batch's count less after each later one.

  A batch without entries of a task does not make its earlier ones older.
  """
  moments = np.zeros((3, num_tasks))
  for i in range(num_tasks):
    seen = []
    for batch in batches:
      if batch[i]:
        seen = [(x, w * decay) for x, w in seen] + batch[i]
    total = math.fsum(w for _, w in seen)
    if total:
      mean = math.fsum(w * x for x, w in seen) / total
      squares = math.fsum(w * (x - mean) ** 2 for x, w in seen)
      variance = squares / (total - 1) if total > 1 else 0.0
      moments[:, i] = total, mean, variance
  return tuple(moments)


def normalise_by_moments(x, task, mask, moments, *, center, scale, epsilon):
  _, mean_I, variance_I = moments
  y = np.zeros(x.shape)
  for at in np.ndindex(x.shape):
    if mask[at]:
      i = int(task[at])
      y[at] = float(x[at]) - (mean_I[i] if center else 0.0)
      if scale:
        sigma = math.sqrt(variance_I[i])
        y[at] = y[at] / (sigma + epsilon) if sigma else 0.0
  return y
