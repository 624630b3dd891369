"""Preferences between trajectories, one at a time in float64."""

import collections
import math

import numpy as np


def implicit_reward(
  log_ratio_BT,
  mask_BT,
  segment_BT=None,
  num_segments=1,
  *,
  turn_BT=None,
  num_turns=1,
  average,
):
  turns = collections.defaultdict(list)
  for b, t in np.ndindex(mask_BT.shape):
    segment = 0 if segment_BT is None else int(segment_BT[b, t])
    turn = 0 if turn_BT is None else int(turn_BT[b, t])
    known = 0 <= segment < num_segments and 0 <= turn < num_turns
    if mask_BT[b, t] and known:
      turns[b, segment, turn].append(float(log_ratio_BT[b, t]))
  reward_BS = np.zeros((len(mask_BT), num_segments))
  any_BS = np.zeros((len(mask_BT), num_segments), bool)
  for (b, segment, _), of_turn in turns.items():
    total = math.fsum(of_turn)
    reward_BS[b, segment] += total / len(of_turn) if average else total
    any_BS[b, segment] = True
  return reward_BS, any_BS


def preference_loss(
  chosen_reward_P, rejected_reward_P, valid_P, *, beta, label_smoothing=0.0
):
  loss_P = np.zeros(len(valid_P))
  for p, valid in enumerate(valid_P):
    if valid:
      margin = beta * (float(chosen_reward_P[p]) - float(rejected_reward_P[p]))
      loss_P[p] = (1 - label_smoothing) * math.log(1 + math.exp(-margin))
      loss_P[p] += label_smoothing * math.log(1 + math.exp(margin))
  return loss_P
