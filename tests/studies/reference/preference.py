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


def pair_with_best(reward_N, group_N, *, valid_N, lowest_chosen=None):
  chosen_N = np.zeros(len(reward_N), int)
  pair_N = np.zeros(len(reward_N), bool)
  for n, valid in enumerate(valid_N):
    if not valid:
      continue
    others = [
      m for m in range(len(reward_N)) if valid_N[m] and group_N[m] == group_N[n]
    ]
    best = max(float(reward_N[m]) for m in others)
    allowed = lowest_chosen is None or best >= lowest_chosen
    if allowed and reward_N[n] < best:
      pair_N[n] = True
      chosen_N[n] = next(m for m in others if reward_N[m] == best)
  return chosen_N, pair_N


def pair_halves(score_NK, valid_NK):
  n_answers = score_NK.shape[1]
  pair_NKK = np.zeros((len(score_NK), n_answers, n_answers), bool)
  for n, score_K in enumerate(score_NK):
    order = sorted(
      (k for k in range(n_answers) if valid_NK[n, k]), key=lambda k: score_K[k]
    )
    half = len(order) // 2
    for j in order[:half]:
      for i in order[len(order) - half :]:
        pair_NKK[n, i, j] = score_K[i] > score_K[j]
  return pair_NKK
