"""Estimates of a divergence, one token at a time in float64."""

import math

import numpy as np

from tests.reference.logprobs import softmax


def k1(log_ratio_BT):
  return np.array(log_ratio_BT, dtype=np.float64)


def k2(log_ratio_BT):
  estimate_BT = np.zeros(log_ratio_BT.shape)
  for b, t in np.ndindex(estimate_BT.shape):
    estimate_BT[b, t] = 0.5 * float(log_ratio_BT[b, t]) ** 2
  return estimate_BT


def k3(log_ratio_BT, *, limit=None):
  estimate_BT = np.zeros(log_ratio_BT.shape)
  for b, t in np.ndindex(estimate_BT.shape):
    delta = -float(log_ratio_BT[b, t])
    # exp(delta) - delta - 1 by its series where subtraction would cancel.
    if abs(delta) < 1e-3:
      estimate = delta**2 / 2 + delta**3 / 6 + delta**4 / 24
    else:
      estimate = math.exp(delta) - delta - 1
    if limit is not None:
      estimate = max(-limit, min(limit, estimate))
    estimate_BT[b, t] = estimate
  return estimate_BT


def unbiased_kl(log_ratio_BT, behavior_log_ratio_BT):
  """What it estimates; differentiate it through both arguments at once."""
  estimate_BT = k3(log_ratio_BT)
  for b, t in np.ndindex(estimate_BT.shape):
    estimate_BT[b, t] *= math.exp(behavior_log_ratio_BT[b, t])
  return estimate_BT


def reverse_kl(logits_BTV, reference_logits_BTV, temperature=1.0):
  divergence_BT = np.zeros(logits_BTV.shape[:2])
  for b, t in np.ndindex(divergence_BT.shape):
    for p, q in zip(
      softmax(logits_BTV[b, t], temperature),
      softmax(reference_logits_BTV[b, t], temperature),
      strict=True,
    ):
      divergence_BT[b, t] += p * (math.log(p) - math.log(q)) if p > 0 else 0.0
  return divergence_BT


def kl_penalised_reward(
  reward_BT, log_ratio_BT, mask_BT, *, coefficient, estimator=k1
):
  penalty_BT = estimator(log_ratio_BT)
  penalised_BT = np.zeros(reward_BT.shape)
  for at in np.ndindex(reward_BT.shape):
    if mask_BT[at]:
      penalised_BT[at] = float(reward_BT[at]) - coefficient * penalty_BT[at]
  return penalised_BT
