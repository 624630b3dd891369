"""Twin critics of turns and their slow copies, one number at a time."""

import numpy as np


def twin_targets(
  reward_N,
  ended_N,
  next_value_2N,
  fresh_action_value_2N,
  valid_N,
  *,
  discount,
  pool="own",
):
  choose = {"min": min, "mean": lambda pair: sum(pair) / 2}
  q_2N, v_2N = np.zeros((2, 2, len(valid_N)))
  for n, valid in enumerate(valid_N):
    if not valid:
      continue
    later = [float(x[n]) for x in next_value_2N]
    fresh = [float(x[n]) for x in fresh_action_value_2N]
    for k in range(2):
      q_2N[k, n] = float(reward_N[n])
      if not ended_N[n]:
        value = later[k] if pool == "own" else choose[pool](later)
        q_2N[k, n] += discount * value
      v_2N[k, n] = fresh[k] if pool == "own" else choose[pool](fresh)
  return q_2N, v_2N


def twin_critic_loss(
  action_value_2N, value_2N, action_value_target_2N, value_target_2N, valid_N
):
  loss_N = np.zeros(len(valid_N))
  for n, valid in enumerate(valid_N):
    if valid:
      for k in range(2):
        of_q = float(action_value_2N[k][n]) - float(
          action_value_target_2N[k][n]
        )
        of_v = float(value_2N[k][n]) - float(value_target_2N[k][n])
        loss_N[n] += of_q**2 + of_v**2
  return loss_N


def twin_advantage(action_value_2N, value_2N, valid_N):
  advantage_N = np.zeros(len(valid_N))
  for n, valid in enumerate(valid_N):
    if valid:
      lowest = [
        min(float(x[n]) for x in y) for y in (action_value_2N, value_2N)
      ]
      advantage_N[n] = lowest[0] - lowest[1]
  return advantage_N


def polyak_average(slow, fast, *, rate):
  moved = np.zeros(np.shape(slow))
  for at in np.ndindex(moved.shape):
    moved[at] = float(slow[at]) + rate * (float(fast[at]) - float(slow[at]))
  return moved
