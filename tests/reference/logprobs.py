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
