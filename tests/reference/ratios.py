"""Log-ratios, one token or one sequence at a time in float64."""

import collections
import math

import numpy as np


def log_ratio(policy_logprob_BT, behavior_logprob_BT, mask_BT, *, limit=20.0):
  limit = math.inf if limit is None else limit
  log_ratio_BT = np.zeros(mask_BT.shape)
  for b, t in np.ndindex(mask_BT.shape):
    if mask_BT[b, t]:
      x = float(policy_logprob_BT[b, t]) - float(behavior_logprob_BT[b, t])
      log_ratio_BT[b, t] = min(max(x, -limit), limit)
  return log_ratio_BT


def sequences(mask_BT, segment_BT=None, num_segments=1):
  """The places of each sequence's trained tokens."""
  places = collections.defaultdict(list)
  for b, t in np.ndindex(mask_BT.shape):
    segment = 0 if segment_BT is None else int(segment_BT[b, t])
    if mask_BT[b, t] and 0 <= segment < num_segments:
      places[b, segment].append((b, t))
  return places


def sequence_log_ratio(
  log_ratio_BT, mask_BT, segment_BT=None, num_segments=1, *, average, limit=10.0
):
  limit = math.inf if limit is None else limit
  sequence_BT = np.zeros(mask_BT.shape)
  for places in sequences(mask_BT, segment_BT, num_segments).values():
    total = math.fsum(float(log_ratio_BT[at]) for at in places)
    for at in places:
      sequence_BT[at] = min(total / (len(places) if average else 1), limit)
  return sequence_BT


def gspo_token_log_ratio(
  log_ratio_BT,
  mask_BT,
  segment_BT=None,
  num_segments=1,
  *,
  constant_BT=None,
  limit=10.0,
):
  """What the paper holds constant is computed from `constant_BT`."""
  if constant_BT is None:
    constant_BT = log_ratio_BT
  token_BT = sequence_log_ratio(
    constant_BT, mask_BT, segment_BT, num_segments, average=True, limit=None
  )
  for places in sequences(mask_BT, segment_BT, num_segments).values():
    for at in places:
      own = float(log_ratio_BT[at]) - float(constant_BT[at])
      token_BT[at] = min(token_BT[at] + own, limit)
  return token_BT


def truncated_weight(log_ratio_BT, *, cap):
  weight_BT = np.zeros(log_ratio_BT.shape)
  for at in np.ndindex(weight_BT.shape):
    weight_BT[at] = min(math.exp(log_ratio_BT[at]), cap)
  return weight_BT


def masked_weight(log_ratio_BT, *, low, high):
  weight_BT = np.zeros(log_ratio_BT.shape)
  for at in np.ndindex(weight_BT.shape):
    ratio = math.exp(log_ratio_BT[at])
    weight_BT[at] = ratio if low <= ratio <= high else 0.0
  return weight_BT


def normalised_weight(weight_BT, total, count):
  mean = total / count if count else 0.0
  return np.array(weight_BT) / (mean if mean > 1e-8 else 1.0)


def stale_failure_weight(log_ratio_BT, advantage_BT, *, divergence):
  weight_BT = np.ones(log_ratio_BT.shape)
  for at in np.ndindex(weight_BT.shape):
    if advantage_BT[at] < 0 and -log_ratio_BT[at] > divergence:
      weight_BT[at] = 0.0
  return weight_BT
