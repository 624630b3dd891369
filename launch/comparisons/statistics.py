"""Statistics of few seeds: means, paired differences, and pass@k.

The seed is the unit: runs of one arm differ by more than their episodes do.
Differences are paired by seed, since arms of one seed share the warm start and
the held-out tasks. No interval is narrower than that of its episodes alone: a
few seeds can agree by luck, and the episodes of each are still a sample.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

LEVEL = 0.95
FEW_SEEDS = 3  # with fewer no verdict is to be had, and no band to be drawn


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean with its 95 % interval; `n` seeds or tasks."""

  mean: float
  low: float
  high: float
  n: int


@dataclasses.dataclass(frozen=True)
class Difference(Estimate):
  """The mean difference of two arms over seeds, with its test.

  With one seed there is no test: `p` and the bounds are NaN. `holm` is p with
  Holm's correction for all differences that stand beside it.
  """

  p: float
  holm: float = math.nan

  @property
  def is_different(self) -> bool:
    """True at the 5 % level, of all differences together."""
    return self.n >= FEW_SEEDS and self.holm < 1 - LEVEL


def binomial_variance(share: float, num_episodes: int) -> float:
  """Variance of a share of successes that its episodes alone cause.

  Of the share with two successes and two failures added (Agresti & Coull,
  The American Statistician 52, 1998), so that 0 and 1 have a variance too.
  """
  added = (share * num_episodes + 2) / (num_episodes + 4)
  return added * (1 - added) / num_episodes


def mean_and_interval(
  shares: Sequence[float], episode_error: float = 0.0
) -> Estimate:
  """Mean success over seeds or tasks, with the interval of Student's t.

  `episode_error` is the standard error of the mean that the episodes alone
  cause; it is all that there is with one seed.
  """
  mean, reach = float(np.mean(shares)), interval_reach(shares, episode_error)
  return Estimate(
    mean, max(mean - reach, 0.0), min(mean + reach, 1.0), len(shares)
  )


def paired_difference(
  before: Sequence[float], after: Sequence[float], episode_error: float = 0.0
) -> Difference:
  """Difference `after` - `before`, paired by seed: Student's t.

  `episode_error` is as in `mean_and_interval`; p is not below the p of it.
  """
  differences = np.subtract(after, before)
  n, mean = len(differences), float(differences.mean())
  if n == 1:
    return Difference(mean, math.nan, math.nan, 1, math.nan)
  by_seeds = special.stdtr(n - 1, -_ratio(mean, _error(differences)))
  by_episodes = special.ndtr(-_ratio(mean, episode_error))
  reach = interval_reach(differences, episode_error)
  p = 2 * float(max(by_seeds, by_episodes))
  return Difference(mean, mean - reach, mean + reach, n, p)


def interval_reach(
  values: Sequence[float] | np.ndarray, episode_error: float = 0.0
) -> float:
  """Half of the 95 % interval of a mean over seeds."""
  tail = (1 + LEVEL) / 2
  reach = float(special.ndtri(tail)) * episode_error
  if len(values) > 1:
    student = float(special.stdtrit(len(values) - 1, tail))
    reach = max(reach, student * _error(values))
  return reach


def _error(values: Sequence[float] | np.ndarray) -> float:
  """The standard error of a mean. scipy.stats has it, and takes 1 s to load."""
  return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _ratio(mean: float, error: float) -> float:
  if error:
    return abs(mean) / error
  return math.inf if mean else 0.0


def with_holm(differences: Sequence[Difference]) -> list[Difference]:
  """Corrects p for as many tests (Holm 1979); those without one stay."""
  found = list(differences)
  tested = [i for i, each in enumerate(found) if not math.isnan(each.p)]
  least = 0.0
  for place, i in enumerate(sorted(tested, key=lambda i: found[i].p)):
    least = max(least, min((len(tested) - place) * found[i].p, 1.0))
    found[i] = dataclasses.replace(found[i], holm=least)
  return found


def pass_at_k(num_attempts: int, num_successes: int, k: int) -> float:
  """Unbiased estimate of success in any of k attempts (arXiv:2107.03374).

  1 - C(n - c, k) / C(n, k), of at least k attempts.
  """
  return 1 - math.comb(num_attempts - num_successes, k) / math.comb(
    num_attempts, k
  )
