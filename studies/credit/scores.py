"""Scores of estimated advantages against exact ones, on the same episodes.

Axes: as in `estimators`, and W turns of all batches.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from studies.credit.estimators import Batch, estimate

# Rounding errors of float32: below it an estimate, or an advantage, is 0.
_ZERO = 1e-6


@dataclasses.dataclass(frozen=True)
class Fit:
  """Agreement of estimates with one reading of the exact advantage."""

  rank: float  # Spearman's correlation over all turns; 0 for a constant
  sign: float  # share of turns with its sign; an estimate of 0 is half right
  error: float  # mean squared error over mean square, after the best scaling


@dataclasses.dataclass(frozen=True)
class Score:
  """Agreement of an estimator with the exact advantages and gradient.

  The cosines are those of policy gradients: with that of exact advantages on
  the same turns, which is 1 for exact advantages; and with the gradient of the
  expected return by enumeration, where exact advantages have less than 1, as
  the turns are a sample. The cosine of the gradient's mean over all batches
  shows the direction that more episodes lead to.
  """

  marginal: Fit  # against A(h, a)
  secret: Fit  # against A(h, a | c)
  cosine_turns: float
  cosine: float  # mean over batches
  cosine_half_width: float  # of its 95 % interval
  cosine_of_mean: float


def score(name: str, batches: Sequence[Batch]) -> Score:
  """Scores one estimator on batches of one policy."""
  return score_by(lambda batch: estimate(name, batch), batches)


def score_by(
  advantages: Callable[[Batch], np.ndarray], batches: Sequence[Batch]
) -> Score:
  """Scores advantages [N, U, K], as a function of a batch of one policy."""
  estimates, exact, secret, gradients, turns = [], [], [], [], []
  for batch in batches:
    played = batch.episodes.played_NU
    advantage_NUK = advantages(batch)
    estimates.append(advantage_NUK.mean(axis=-1)[played])
    exact.append(batch.exact_NU()[played])
    secret.append(batch.secret_NU()[played])
    gradients.append(batch.gradient(advantage_NUK))
    turns.append(
      cosine(gradients[-1], batch.gradient(estimate("exact", batch)))
    )
  whole = batches[0].policy.exact.gradient_UXA
  cosines = [cosine(gradient, whole) for gradient in gradients]
  estimate_W = np.concatenate(estimates)
  return Score(
    marginal=fit(estimate_W, np.concatenate(exact)),
    secret=fit(estimate_W, np.concatenate(secret)),
    cosine_turns=float(np.mean(turns)),
    cosine=float(np.mean(cosines)),
    cosine_half_width=half_width(cosines),
    cosine_of_mean=cosine(np.mean(gradients, axis=0), whole),
  )


def fit(estimate_W: np.ndarray, exact_W: np.ndarray) -> Fit:
  """Compares estimates with exact advantages."""
  estimate_W = np.where(np.abs(estimate_W) < _ZERO, 0, estimate_W)
  exact_W = np.where(np.abs(exact_W) < _ZERO, 0, exact_W)
  ranks = [stats.rankdata(x) for x in (estimate_W, exact_W)]
  signed_W = np.sign(estimate_W) * np.sign(exact_W)
  return Fit(
    rank=cosine(*(rank - rank.mean() for rank in ranks)),
    sign=float((signed_W[exact_W != 0] / 2 + 0.5).mean()),
    error=max(1 - cosine(estimate_W, exact_W) ** 2, 0.0),
  )


def cosine(x: np.ndarray, y: np.ndarray) -> float:
  """Returns the cosine of two arrays' angle; 0 if one of them is 0."""
  lengths = np.linalg.norm(x) * np.linalg.norm(y)
  return float(np.vdot(x, y) / lengths) if lengths else 0.0


def half_width(values: Sequence[float]) -> float:
  """Returns half of the 95 % interval of a mean, by Student's t."""
  n = len(values)
  if n < 2:
    return math.nan
  spread = float(np.std(values, ddof=1)) / math.sqrt(n)
  return float(stats.t.ppf(0.975, n - 1)) * spread
