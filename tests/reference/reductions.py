"""Means as (total, weight), one token at a time in float64."""

import collections

import numpy as np


def token_mean(x_BT, mask_BT):
  trained = [float(x_BT[at]) for at in np.ndindex(x_BT.shape) if mask_BT[at]]
  return sum(trained), len(trained)


def segment_mean(x_BT, mask_BT, segment_BT, num_segments):
  sequences = collections.defaultdict(list)
  for b, t in np.ndindex(x_BT.shape):
    segment = int(segment_BT[b, t])
    if mask_BT[b, t] and 0 <= segment < num_segments:
      sequences[b, segment].append(float(x_BT[b, t]))
  return sum(sum(s) / len(s) for s in sequences.values()), len(sequences)


def sequence_mean(x_BT, mask_BT):
  return segment_mean(x_BT, mask_BT, np.zeros(x_BT.shape, int), 1)


def fixed_length_mean(
  x_BT, mask_BT, segment_BT=None, num_segments=1, *, length
):
  if segment_BT is None:
    segment_BT = np.zeros(x_BT.shape, int)
  total, sequences = 0.0, set()
  for b, t in np.ndindex(x_BT.shape):
    segment = int(segment_BT[b, t])
    if mask_BT[b, t] and 0 <= segment < num_segments:
      total += float(x_BT[b, t])
      sequences.add((b, segment))
  return total / length, len(sequences)


def sequence_sum_mean(x_BT, mask_BT, segment_BT=None, num_segments=1):
  return fixed_length_mean(x_BT, mask_BT, segment_BT, num_segments, length=1)


def weighted_mean(x_BT, mask_BT, weight_BT):
  places = [at for at in np.ndindex(x_BT.shape) if mask_BT[at]]
  weights = [float(weight_BT[at]) for at in places]
  total = sum(
    w * float(x_BT[at]) for w, at in zip(weights, places, strict=True)
  )
  return total, sum(weights)


def task_weights(task_BT, mask_BT, *, num_tasks, share_I=None):
  share_I = [1.0] * num_tasks if share_I is None else share_I
  places = collections.defaultdict(list)
  for at in np.ndindex(mask_BT.shape):
    if mask_BT[at]:
      places[int(task_BT[at])].append(at)
  weight_BT = np.zeros(mask_BT.shape)
  tokens = sum(len(p) for p in places.values())
  shares = sum(float(share_I[task]) for task in places)
  for task, of_task in places.items():
    for at in of_task:
      weight_BT[at] = share_I[task] / shares * tokens / len(of_task)
  return weight_BT
