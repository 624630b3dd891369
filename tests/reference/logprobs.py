"""Log-probabilities and entropies, one word at a time in float64."""

import math

import numpy as np


def softmax(logit_V, temperature):
  largest = max(float(z) for z in logit_V)
  weights = [math.exp((float(z) - largest) / temperature) for z in logit_V]
  total = math.fsum(weights)
  return [w / total for w in weights]


def token_logprob(logits_BTV, token_BT, temperature):
  logprob_BT = np.zeros(token_BT.shape)
  for b, t in np.ndindex(token_BT.shape):
    probability_V = softmax(logits_BTV[b, t], temperature)
    logprob_BT[b, t] = math.log(probability_V[token_BT[b, t]])
  return logprob_BT


def entropy(logits_BTV, temperature):
  entropy_BT = np.zeros(logits_BTV.shape[:2])
  for b, t in np.ndindex(entropy_BT.shape):
    for p in softmax(logits_BTV[b, t], temperature):
      entropy_BT[b, t] -= p * math.log(p) if p > 0 else 0.0
  return entropy_BT


def logits(hidden_BTD, output_DV):
  vocab_size = output_DV.shape[1]
  logits_BTV = np.zeros((*hidden_BTD.shape[:2], vocab_size))
  for b, t, v in np.ndindex(logits_BTV.shape):
    logits_BTV[b, t, v] = math.fsum(
      float(h) * float(w)
      for h, w in zip(hidden_BTD[b, t], output_DV[:, v], strict=True)
    )
  return logits_BTV


def fused_token_logprob(
  hidden_BTD,
  output_DV,
  token_BT,
  mask_BT=None,
  *,
  temperature=1.0,
  allowed_BTV=None,
):
  """Log-probability and entropy of each token on the mask, 0 off it."""
  if mask_BT is None:
    mask_BT = np.ones(token_BT.shape, bool)
  logprob_BT, entropy_BT = np.zeros((2, *token_BT.shape))
  for b, t in zip(*np.nonzero(mask_BT), strict=True):
    here = slice(b, b + 1), slice(t, t + 1)
    logits_11V = logits(hidden_BTD[here], output_DV)
    if allowed_BTV is not None:
      logits_11V[~allowed_BTV[here]] = -math.inf
    logprob_BT[here] = token_logprob(logits_11V, token_BT[here], temperature)
    entropy_BT[here] = entropy(logits_11V, temperature)
  return logprob_BT, entropy_BT
