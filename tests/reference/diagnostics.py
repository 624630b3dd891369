"""Metrics of staleness, one token at a time in float64."""

import collections
import math


def by_version(log_ratio_BT, mask_BT, version_BT, weight_BT=None):
  """{version: (share, sample size, mean weight, KL, KL by k1, |log-ratio|)}."""
  tokens = collections.defaultdict(list)
  for b, row in enumerate(mask_BT):
    for t, trained in enumerate(row):
      if trained:
        x = float(log_ratio_BT[b, t])
        weight = math.exp(x) if weight_BT is None else float(weight_BT[b, t])
        tokens[int(version_BT[b, t])].append((x, weight))
  found = {}
  for version, of_version in tokens.items():
    n = len(of_version)
    weights = [w for _, w in of_version]
    squares = math.fsum(w * w for w in weights)
    found[version] = (
      n / sum(len(v) for v in tokens.values()),
      math.fsum(weights) ** 2 / squares / n if squares else 0.0,
      math.fsum(weights) / n,
      math.fsum(math.exp(x) - 1 - x for x, _ in of_version) / n,
      math.fsum(-x for x, _ in of_version) / n,
      math.fsum(abs(x) for x, _ in of_version) / n,
    )
  return found


def clip_fractions(
  log_ratio_BT, advantage_BT, mask_BT, *, clip_low, clip_high, dual_clip=None
):
  stopped = {"above": 0, "below": 0, "dual": 0}
  for b, row in enumerate(mask_BT):
    for t, trained in enumerate(row):
      if not trained:
        continue
      ratio, advantage = math.exp(log_ratio_BT[b, t]), advantage_BT[b, t]
      stopped["above"] += advantage > 0 and ratio > 1 + clip_high
      stopped["below"] += advantage < 0 and ratio < 1 - clip_low
      if dual_clip is not None:
        stopped["dual"] += advantage < 0 and ratio > dual_clip
  return {name: count / mask_BT.sum() for name, count in stopped.items()}
