"""Advantages and returns over time, from their sums rather than recurrences."""

import collections
import math

import numpy as np


def gae(reward_BT, value_BT, mask_BT, *, discount, gae_lambda, segment_BT=None):
  """A_t = sum_k (gamma lambda)^k delta_{t+k} over the trained tokens."""
  advantage_BT, return_BT = np.zeros(mask_BT.shape), np.zeros(mask_BT.shape)
  for places in sequences(mask_BT, segment_BT):
    rewards = [float(reward_BT[at]) for at in places]
    values = [float(value_BT[at]) for at in places] + [0.0]
    deltas = [
      reward + discount * values[i + 1] - values[i]
      for i, reward in enumerate(rewards)
    ]
    for i, at in enumerate(places):
      advantage_BT[at] = math.fsum(
        (discount * gae_lambda) ** k * delta
        for k, delta in enumerate(deltas[i:])
      )
      return_BT[at] = advantage_BT[at] + values[i]
  return advantage_BT, return_BT


def discounted_returns(reward_BT, mask_BT, *, discount, segment_BT=None):
  return_BT = np.zeros(mask_BT.shape)
  for places in sequences(mask_BT, segment_BT):
    for i, at in enumerate(places):
      return_BT[at] = math.fsum(
        discount**k * float(reward_BT[later])
        for k, later in enumerate(places[i:])
      )
  return return_BT


def sequences(mask_BT, segment_BT=None):
  """The places of the trained tokens of each sequence, in order."""
  places = collections.defaultdict(list)
  for b, t in np.ndindex(mask_BT.shape):
    if mask_BT[b, t]:
      segment = 0 if segment_BT is None else int(segment_BT[b, t])
      places[b, segment].append((b, t))
  return places.values()
