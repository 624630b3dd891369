"""Mutual information and retrieval, one answer at a time in float64."""

import itertools
import math


def mutual_information(logprob_NN, valid_NN, num_tokens_N=None):
  information, bounds = [], []
  for i, own in _counted(valid_NN):
    tokens = 1 if num_tokens_N is None else max(float(num_tokens_N[i]), 1)
    probability = [math.exp(float(logprob_NN[i, j]) / tokens) for j in own]
    matched = float(logprob_NN[i, i]) / tokens
    information.append(
      matched - math.log(math.fsum(probability) / len(probability))
    )
    bounds.append(math.log(len(own)))
  return {"information": _mean(information), "bound": _mean(bounds)}


def retrieval_accuracy(logprob_NN, valid_NN, *, k):
  found, chance = [], []
  for i, own in _counted(valid_NN):
    above = sum(logprob_NN[i, j] > logprob_NN[i, i] for j in own)
    equal = sum(logprob_NN[i, j] == logprob_NN[i, i] for j in own)
    # Every place that the own prompt may have among its equals.
    places = itertools.islice(itertools.count(above), equal)
    found.append(sum(place < k for place in places) / equal)
    chance.append(min(k / len(own), 1))
  return {"accuracy": _mean(found), "chance": _mean(chance)}


def _counted(valid_NN):
  """Yields the answers that count, each with the prompts it is scored under."""
  for i, row in enumerate(valid_NN):
    if row[i]:
      yield i, [j for j, valid in enumerate(row) if valid]


def _mean(values):
  return math.fsum(values) / len(values) if values else 0.0
