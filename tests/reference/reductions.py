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
