"""Credit for turns and for their tokens, one turn at a time in float64."""

import collections

import numpy as np

from tests.reference.advantages import returns as over_time


def turn_gae(
  reward_BT,
  value_BT,
  mask_BT,
  turn_BT,
  *,
  discount,
  gae_lambda,
  segment_BT=None,
):
  advantage_BT, return_BT = np.zeros(mask_BT.shape), np.zeros(mask_BT.shape)
  for turns in _sequences_of_turns(mask_BT, turn_BT, segment_BT):
    advantages = _advantages(
      [sum(float(reward_BT[at]) for at in turn) for turn in turns],
      [float(value_BT[turn[0]]) for turn in turns],
      discount,
      gae_lambda,
    )
    for turn, advantage in zip(turns, advantages, strict=True):
      for at in turn:
        advantage_BT[at] = advantage
        return_BT[at] = advantage + float(value_BT[turn[0]])
  return advantage_BT, return_BT


def turn_returns(reward_BT, mask_BT, turn_BT, *, discount, segment_BT=None):
  return_BT = np.zeros(mask_BT.shape)
  for turns in _sequences_of_turns(mask_BT, turn_BT, segment_BT):
    rewards = [sum(float(reward_BT[at]) for at in turn) for turn in turns]
    for u, turn in enumerate(turns):
      for at in turn:
        return_BT[at] = sum(
          discount**k * reward for k, reward in enumerate(rewards[u:])
        )
  return return_BT


def bi_level_gae(
  reward_BT,
  value_BT,
  mask_BT,
  turn_BT,
  *,
  discount,
  turn_discount,
  gae_lambda,
  segment_BT=None,
):
  advantage_BT, return_BT = np.zeros(mask_BT.shape), np.zeros(mask_BT.shape)
  for turns in _sequences_of_turns(mask_BT, turn_BT, segment_BT):
    at_end = [float(value_BT[turn[-1]]) for turn in turns]
    rewards = [sum(float(reward_BT[at]) for at in turn) for turn in turns]
    advantages = _advantages(rewards, at_end, turn_discount, gae_lambda)
    for turn, value, advantage in zip(turns, at_end, advantages, strict=True):
      values = [float(value_BT[at]) for at in turn]
      paid = [0.0] * (len(turn) - 1) + [advantage + value]
      of_tokens = _advantages(paid, values, discount, gae_lambda)
      for at, v, a in zip(turn, values, of_tokens, strict=True):
        advantage_BT[at], return_BT[at] = a, a + v
  return advantage_BT, return_BT


def first_of_turn(mask_BT, turn_BT, *, segment_BT=None):
  first_BT = np.zeros(mask_BT.shape, bool)
  for turns in _sequences_of_turns(mask_BT, turn_BT, segment_BT):
    for turn in turns:
      first_BT[turn[0]] = True
  return first_BT


def _advantages(rewards, values, discount, gae_lambda):
  """`gae` of one sequence given as lists."""
  row = np.array([rewards]), np.array([values]), np.ones((1, len(rewards)))
  advantage_BT, _ = over_time.gae(
    *row, discount=discount, gae_lambda=gae_lambda
  )
  return advantage_BT[0]


def _sequences_of_turns(mask_BT, turn_BT, segment_BT):
  """Sequences as lists of turns, turns as lists of places."""
  for places in over_time.sequences(mask_BT, segment_BT):
    turns = collections.defaultdict(list)
    for at in places:
      turns[int(turn_BT[at])].append(at)
    yield list(turns.values())
