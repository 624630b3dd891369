"""Whitening, and what is made with it, one token at a time in float64."""

import math

import numpy as np

from tests.reference import advantages, gae


def whiten(x_BT, mask_BT, *, center=True, epsilon=1e-8):
  tokens = [float(x_BT[at]) for at in np.ndindex(x_BT.shape) if mask_BT[at]]
  y_BT = np.zeros(x_BT.shape)
  if not tokens:
    return y_BT
  mean = math.fsum(tokens) / len(tokens)
  squares = math.fsum((x - mean) ** 2 for x in tokens)
  std = math.sqrt(squares / max(len(tokens) - 1, 1) + epsilon)
  constant = len(set(tokens)) == 1
  for at in np.ndindex(x_BT.shape):
    if mask_BT[at]:
      y = 0.0 if constant else (float(x_BT[at]) - mean) / std
      y_BT[at] = y if center else y + mean
  return y_BT


def reinforce_plus_plus_advantage(
  reward_BT, mask_BT, *, discount, segment_BT=None, epsilon=1e-8
):
  return_BT = gae.discounted_returns(
    reward_BT, mask_BT, discount=discount, segment_BT=segment_BT
  )
  return whiten(return_BT, mask_BT, epsilon=epsilon)


def reinforce_plus_plus_baseline_advantage(
  reward_N, group_N, num_tokens_N, *, valid_N, epsilon=1e-8
):
  """One advantage per trajectory: that of its tokens, laid out and whitened."""
  advantage_N = advantages.group_advantage(
    reward_N, group_N, valid_N=valid_N, scale_by_std=False
  )
  longest = max(num_tokens_N, default=0)
  mask_NT = np.zeros((len(reward_N), longest), bool)
  for n, num_tokens in enumerate(num_tokens_N):
    mask_NT[n, :num_tokens] = valid_N[n]
  spread_NT = np.tile(advantage_N[:, None], (1, longest))
  whitened_NT = whiten(spread_NT, mask_NT, epsilon=epsilon)
  return whitened_NT[:, 0]
