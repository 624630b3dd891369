"""Statistics of few seeds: intervals, paired tests, and what they can show.

The seed is the unit: runs of one arm differ by more than their episodes do.
Differences are paired by seed, since arms of one seed share the warm start and
the held-out tasks. All functions are pure, and random ones take a generator.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95
NUM_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean with its interval; `n` seeds. NaN bounds: it has none."""

  mean: float
  low: float
  high: float
  n: int


@dataclasses.dataclass(frozen=True)
class PairedDifference:
  """The mean difference of two arms over seeds, and its paired t test.

  With one seed there is no test: `p` and the bounds are NaN.
  """

  mean: float
  low: float
  high: float
  p: float
  n: int

  @property
  def is_different(self) -> bool:
    """True if the interval leaves out zero."""
    return self.low > 0 or self.high < 0


def bootstrap(
  successes: Sequence[tuple[float, int]],
  random: np.random.Generator,
  *,
  level: float = LEVEL,
) -> Estimate:
  """Mean success over seeds, with a bootstrap interval.

  `successes` has per seed the share of successes and the number of episodes.
  Seeds are resampled with all of their episodes, whose noise is part of the
  spread of the seeds: resampling them as well would count it twice. Few seeds
  make percentile intervals too narrow, so the resampled deviations are
  stretched to the width of Student's t, by sqrt(n / (n - 1)) t / z. With one
  seed its episodes are resampled: the interval then says nothing of seeds.
  """
  shares = np.array([share for share, _ in successes])
  counts = np.array([count for _, count in successes])
  n = len(shares)
  mean = float(shares.mean())
  tail = (1 - level) / 2
  if n == 1:
    drawn = random.binomial(counts[0], mean, NUM_RESAMPLES) / counts[0]
    deviations = drawn - mean
  else:
    chosen = random.integers(n, size=(NUM_RESAMPLES, n))
    deviations = _stretch(n, tail) * (shares[chosen].mean(1) - mean)
  low, high = np.quantile(deviations, (tail, 1 - tail))
  return Estimate(
    mean, max(mean + float(low), 0.0), min(mean + float(high), 1.0), n
  )


def paired_difference(
  before: Sequence[float], after: Sequence[float], *, level: float = LEVEL
) -> PairedDifference:
  """Difference `after` - `before`, paired by seed: Student's t."""
  if len(before) != len(after) or not before:
    raise ValueError(
      f"paired by seed, both need as many values: {len(before)}, {len(after)}"
    )
  differences = np.array(after) - np.array(before)
  n, mean = len(differences), float(differences.mean())
  if n == 1:
    return PairedDifference(mean, math.nan, math.nan, math.nan, 1)
  error = float(differences.std(ddof=1)) / math.sqrt(n)
  reach = float(stats.t.ppf((1 + level) / 2, n - 1)) * error
  if error:
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1))
  else:
    p = 1.0 if mean == 0 else 0.0
  return PairedDifference(mean, mean - reach, mean + reach, p, n)


def interquartile_mean(values: Sequence[float]) -> float:
  """Mean of the middle half (Agarwal et al. 2021, rliable)."""
  return float(stats.trim_mean(np.array(values), 0.25))


def interquartile_interval(
  scores_SE: np.ndarray,
  random: np.random.Generator,
  *,
  level: float = LEVEL,
) -> Estimate:
  """Interquartile mean over seeds (S) and environments (E).

  The interval resamples the seeds of each environment by itself (rliable's
  stratified bootstrap), stretched for few seeds as in `bootstrap`. With one
  seed it has no bounds.
  """
  num_seeds, num_environments = scores_SE.shape
  mean = interquartile_mean(scores_SE.ravel().tolist())
  if num_seeds == 1:
    return Estimate(mean, math.nan, math.nan, 1)
  chosen = random.integers(
    num_seeds, size=(NUM_RESAMPLES, num_seeds, num_environments)
  )
  drawn = np.take_along_axis(scores_SE[None], chosen, axis=1)
  means = stats.trim_mean(drawn.reshape(NUM_RESAMPLES, -1), 0.25, axis=1)
  tail = (1 - level) / 2
  deviations = _stretch(num_seeds, tail) * (means - mean)
  low, high = np.quantile(deviations, (tail, 1 - tail))
  return Estimate(
    mean, max(mean + float(low), 0.0), min(mean + float(high), 1.0), num_seeds
  )


def _stretch(n: int, tail: float) -> float:
  """Widens a bootstrap's deviations of n values to those of Student's t."""
  wider = float(stats.t.ppf(1 - tail, n - 1) / stats.norm.ppf(1 - tail))
  return math.sqrt(n / (n - 1)) * wider


def pass_at_k(num_attempts: int, num_successes: int, k: int) -> float:
  """Unbiased estimate of success in any of k attempts (arXiv:2107.03374).

  1 - C(n - c, k) / C(n, k). Raises `ValueError` if there are fewer than k.
  """
  if not 1 <= k <= num_attempts:
    raise ValueError(
      f"pass@{k} needs {k} attempts, and there are {num_attempts}"
    )
  return 1 - math.comb(num_attempts - num_successes, k) / math.comb(
    num_attempts, k
  )


def detectable_difference(
  spread: float, num_seeds: int, *, level: float = LEVEL, power: float = 0.8
) -> float:
  """Smallest difference that a paired t test finds with this power.

  `spread` is the standard deviation, over seeds, of the paired differences.
  Infinite for one seed. The approximation t_(1-a/2) + t_power of the
  noncentral t is within 3 % from 3 seeds on.
  """
  if num_seeds < 2:
    return math.inf
  degrees = num_seeds - 1
  reach = stats.t.ppf((1 + level) / 2, degrees) + stats.t.ppf(power, degrees)
  return float(reach * spread / math.sqrt(num_seeds))


def binomial_spread(success: float, num_tasks: int) -> float:
  """Standard deviation of a paired difference that episodes alone cause.

  Two arms of equal success on the same tasks, as if their episodes were
  independent; seeds that learn differently add to it.
  """
  return math.sqrt(2 * success * (1 - success) / num_tasks)
