"""Policy-gradient losses, one token at a time in float64."""

import math

import numpy as np

from tests.reference import ratios


def reinforce(log_ratio_BT, advantage_BT):
  loss_BT = np.zeros(log_ratio_BT.shape)
  for b, t in np.ndindex(loss_BT.shape):
    loss_BT[b, t] = -math.exp(log_ratio_BT[b, t]) * float(advantage_BT[b, t])
  return loss_BT


def clipped_surrogate(
  log_ratio_BT, advantage_BT, *, clip_low, clip_high, dual_clip=None
):
  loss_BT = np.zeros(log_ratio_BT.shape)
  for b, t in np.ndindex(loss_BT.shape):
    ratio = math.exp(log_ratio_BT[b, t])
    advantage = float(advantage_BT[b, t])
    clipped = min(max(ratio, 1 - clip_low), 1 + clip_high)
    loss = max(-advantage * ratio, -advantage * clipped)
    if dual_clip is not None and advantage < 0:
      loss = min(loss, -advantage * dual_clip)
    loss_BT[b, t] = loss
  return loss_BT


def decoupled_surrogate(
  log_ratio_BT, advantage_BT, proximal_log_ratio_BT, *, weight_cap=None, **clip
):
  loss_BT = clipped_surrogate(log_ratio_BT, advantage_BT, **clip)
  for at in np.ndindex(loss_BT.shape):
    weight = math.exp(proximal_log_ratio_BT[at])
    if weight_cap is not None and weight > weight_cap:
      weight = 0.0
    loss_BT[at] *= weight
  return loss_BT


def cispo(
  log_ratio_BT, advantage_BT, policy_logprob_BT, mask_BT, *, clip_low, clip_high
):
  loss_BT = np.zeros(log_ratio_BT.shape)
  for at in np.ndindex(loss_BT.shape):
    if mask_BT[at]:
      ratio = math.exp(log_ratio_BT[at])
      weight = min(max(ratio, 1 - clip_low), 1 + clip_high)
      loss_BT[at] = (
        -weight * float(advantage_BT[at]) * float(policy_logprob_BT[at])
      )
  return loss_BT


def dppo(
  log_ratio_BT,
  advantage_BT,
  policy_logprob_BT,
  mask_BT,
  *,
  divergence,
  clip_low,
  clip_high,
  weight_cap=20.0,
):
  moved_BT = binary_divergence(
    log_ratio_BT, policy_logprob_BT, mask_BT, divergence=divergence
  )
  loss_BT = np.zeros(log_ratio_BT.shape)
  for at in np.ndindex(loss_BT.shape):
    advantage = float(advantage_BT[at])
    too_far = (
      moved_BT[at] > clip_high if advantage > 0 else moved_BT[at] < -clip_low
    )
    if mask_BT[at] and not too_far:
      weight = min(math.exp(log_ratio_BT[at]), weight_cap)
      loss_BT[at] = -weight * advantage * float(policy_logprob_BT[at])
  return loss_BT


def binary_divergence(log_ratio_BT, policy_logprob_BT, mask_BT, *, divergence):
  moved_BT = np.zeros(log_ratio_BT.shape)
  for at in np.ndindex(moved_BT.shape):
    if not mask_BT[at]:
      continue
    new = math.exp(policy_logprob_BT[at])
    old = new / math.exp(log_ratio_BT[at])
    moved_BT[at] = new - old
    if divergence == "kl":
      distance = old * math.log(old / new)
      distance += (1 - old) * math.log((1 - old) / (1 - new))
      moved_BT[at] = math.copysign(distance, new - old)
  return moved_BT


def sapo(log_ratio_BT, advantage_BT, *, tau_positive=1.0, tau_negative=1.05):
  loss_BT = np.zeros(log_ratio_BT.shape)
  for at in np.ndindex(loss_BT.shape):
    advantage = float(advantage_BT[at])
    tau = tau_positive if advantage > 0 else tau_negative
    gate = 1 / (1 + math.exp(-tau * (math.exp(log_ratio_BT[at]) - 1)))
    loss_BT[at] = -4 / tau * gate * advantage
  return loss_BT


def gmpo(
  log_ratio_BT,
  advantage_BT,
  mask_BT,
  segment_BT=None,
  num_segments=1,
  *,
  clip_low=0.4,
  clip_high=0.4,
):
  loss_BT = np.zeros(log_ratio_BT.shape)
  sequences = ratios.sequences(mask_BT, segment_BT, num_segments)
  for places in sequences.values():
    product = 1.0
    for at in places:
      ratio, advantage = math.exp(log_ratio_BT[at]), float(advantage_BT[at])
      if advantage > 0:
        ratio = min(ratio, math.exp(clip_high))
      elif advantage < 0:
        ratio = max(ratio, math.exp(-clip_low))
      product *= ratio ** (1 / len(places))
    for at in places:
      loss_BT[at] = -product * float(advantage_BT[at])
  return loss_BT


def negative_log_likelihood(logprob_BT):
  loss_BT = np.zeros(logprob_BT.shape)
  for b, t in np.ndindex(loss_BT.shape):
    loss_BT[b, t] = -float(logprob_BT[b, t])
  return loss_BT
