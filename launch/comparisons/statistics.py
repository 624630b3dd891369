"""Statistics of few seeds: intervals, paired tests, and what they can show.

The seed is the unit: runs of one arm differ by more than their episodes do.
Differences are paired by seed, since arms of one seed share the warm start and
the held-out tasks. No interval is narrower than that of its episodes alone: a
few seeds can agree by luck, and the episodes of each are still a sample. All
functions are pure. `python -m studies.error_rates` simulates how often their
intervals hold the truth and how often their tests are wrong.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize, special, stats

LEVEL = 0.95
NUM_RESAMPLES = 2000
_NUM_SPREADS = 2000  # that the power of a test is a mean over
FEW_SEEDS = 3  # with fewer no verdict is to be had, and no band to be drawn
_NUM_NODES = 64  # of each integral over a normal or a chi-square
_UNLIKE = 0.05  # level of the test that an arm's seeds vary as the others' do


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean with its interval; `n` seeds. NaN bounds: it has none."""

  mean: float
  low: float
  high: float
  n: int


@dataclasses.dataclass(frozen=True)
class PairedDifference:
  """The mean difference of two arms over seeds, with an interval and its test.

  With one seed there is no test: `p` and the bounds are NaN. `seed_spread` is
  the standard deviation of the seeds' differences, NaN but in a paired test;
  `episode_error` is as in `paired_difference`.
  """

  mean: float
  low: float
  high: float
  p: float
  n: int
  seed_spread: float = math.nan
  episode_error: float = 0.0

  @property
  def is_different(self) -> bool:
    """True if the interval leaves out zero."""
    return self.low > 0 or self.high < 0

  @property
  def spread(self) -> float:
    """Standard deviation over seeds, or of the episodes alone if it is larger.

    That of few seeds may be small by chance. Of a paired test; NaN with one
    seed.
    """
    if self.n < 2:
      return math.nan
    return max(self.seed_spread, self.episode_error * math.sqrt(self.n))

  def at(self, level: float) -> "PairedDifference":
    """Returns a paired difference with its interval at another level."""
    tail = (1 - level) / 2
    by_seeds = self.seed_spread / math.sqrt(self.n)
    reach = max(
      -float(special.stdtrit(self.n - 1, tail)) * by_seeds,
      -float(special.ndtri(tail)) * self.episode_error,
    )
    return dataclasses.replace(
      self, low=self.mean - reach, high=self.mean + reach
    )


def seeds_text(number: int) -> str:
  """Returns a number of seeds, with a warning where they are few."""
  if number >= FEW_SEEDS:
    return str(number)
  return f"{number} seed{'s' * (number != 1)}: too few"


def binomial_variance(share: float, num_episodes: int) -> float:
  """Variance of a share of successes that its episodes alone cause.

  Of the share with two successes and two failures added (Agresti & Coull,
  The American Statistician 52, 1998), so that 0 and 1 have a variance too: it
  is never less than share (1 - share) / num_episodes. Episodes are taken as
  independent.
  """
  added = (share * num_episodes + 2) / (num_episodes + 4)
  return added * (1 - added) / num_episodes


def mean_over_seeds(
  shares: Sequence[float], variances: Sequence[float], *, level: float = LEVEL
) -> Estimate:
  """Mean success over seeds, with the interval of Student's t.

  `variances` are those of each seed's share that its episodes alone cause. The
  interval is at least as wide as the normal one of all these episodes, which is
  all that there is with one seed. Bounds are shares.
  """
  values = np.array(shares)
  n, mean = len(values), float(values.mean())
  tail = (1 - level) / 2
  reach = -float(special.ndtri(tail)) * math.sqrt(math.fsum(variances)) / n
  if n > 1:
    error = float(values.std(ddof=1)) / math.sqrt(n)
    reach = max(reach, -float(special.stdtrit(n - 1, tail)) * error)
  return Estimate(mean, max(mean - reach, 0.0), min(mean + reach, 1.0), n)


def paired_difference(
  before: Sequence[float],
  after: Sequence[float],
  *,
  episode_error: float = 0.0,
  num_tests: int = 1,
) -> PairedDifference:
  """Difference `after` - `before`, paired by seed: Student's t.

  `episode_error` is the standard error of the mean difference that the episodes
  alone cause, a known one: the interval holds the normal interval of it, and p
  is not below the p of it. With `num_tests` the interval and p are Bonferroni's
  for one of so many.
  """
  if len(before) != len(after) or not before:
    raise ValueError(
      f"paired by seed, both need as many values: {len(before)}, {len(after)}"
    )
  differences = np.array(after) - np.array(before)
  n, mean = len(differences), float(differences.mean())
  if n == 1:
    return PairedDifference(mean, math.nan, math.nan, math.nan, 1)
  spread = float(differences.std(ddof=1))
  by_seeds = special.stdtr(n - 1, -_ratio(mean, spread / math.sqrt(n)))
  by_episodes = special.ndtr(-_ratio(mean, episode_error))
  p = min(2 * num_tests * float(max(by_seeds, by_episodes)), 1.0)
  found = PairedDifference(
    mean, math.nan, math.nan, p, n, spread, episode_error
  )
  return found.at(1 - (1 - LEVEL) / num_tests)


def _ratio(mean: float, error: float) -> float:
  if error:
    return abs(mean) / error
  return math.inf if mean else 0.0


# --- Residuals that are pooled over arms --------------------------------------

Scores = Mapping[str, Mapping[int, float]]  # by arm and seed


@dataclasses.dataclass(frozen=True)
class SeedNoise:
  """Variance that the seeds of several arms have in common.

  That of the residuals of the model score = arm + seed + residual, in which the
  seeds are blocks, with its degrees of freedom: (k - 1)(n - 1) if each of k
  arms has n seeds.
  """

  arms: frozenset[str]  # whose seeds vary alike
  variance: float
  degrees: int


def pooled_noise(scores: Scores, episode_variance: float = 0.0) -> SeedNoise:
  """Estimates the noise of seeds from all arms whose seeds vary alike.

  Beside an arm that is unstable, pooling would call its chance differences real
  and hide those of the others. So the arm whose residuals stand out most is
  left out if an F test against the arms that remain says so at 5 % (Bonferroni
  over the arms), and so on while there are more than two. An arm of the pool
  of which the test says so without Bonferroni's correction is not called
  alike: three seeds seldom show more. The variance that episodes alone cause,
  the mean of all scores, is the least that residuals are compared with.
  """
  kept = dict(scores)
  while len(kept) > 2:
    p, arm = min((_alike(kept, each, episode_variance), each) for each in kept)
    if p * len(kept) > _UNLIKE:
      break
    del kept[arm]
  total, degrees = _residuals(kept)
  variance = total / degrees if degrees else math.nan
  alike = frozenset(
    arm
    for arm in kept
    if len(kept) < 3 or _alike(kept, arm, episode_variance) > _UNLIKE
  )
  return SeedNoise(alike, variance, degrees)


def _alike(scores: Scores, arm: str, least: float) -> float:
  """Returns the p of the F test that an arm's residuals are as the others'."""
  others = {name: of for name, of in scores.items() if name != arm}
  (total, degrees), (rest, left) = _residuals(scores), _residuals(others)
  if not left or degrees == left:
    return 1.0
  variance = max(rest / left, least)
  if not variance:
    return 1.0
  own = max(total - rest, 0.0) / (degrees - left)
  return float(special.fdtrc(degrees - left, left, own / variance))


def _residuals(scores: Scores) -> tuple[float, int]:
  """Returns the sum of squared residuals and its degrees of freedom.

  By least squares, so that arms need not have the same seeds.
  """
  seeds = sorted({seed for of in scores.values() for seed in of})
  cells = [(a, s) for a, arm in enumerate(scores) for s in scores[arm]]
  values = np.array([v for of in scores.values() for v in of.values()])
  design = np.zeros((len(cells), len(scores) + len(seeds)))
  for row, (arm, seed) in zip(design, cells, strict=True):
    row[arm] = row[len(scores) + seeds.index(seed)] = 1.0
  fit, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
  return float(((values - design @ fit) ** 2).sum()), len(cells) - int(rank)


def pooled_difference(
  before: Sequence[float],
  after: Sequence[float],
  noise: SeedNoise,
  *,
  num_tests: int,
  is_many_to_one: bool,
  episode_error: float = 0.0,
) -> PairedDifference:
  """Difference `after` - `before` by the noise of all arms' seeds.

  The interval and p hold for all of `num_tests` differences together: Dunnett's
  if they are of many arms to one with the same seeds, else those of as many
  independent ones, which are a little wider for any others (Sidak, JASA 62,
  1967). `episode_error` is as in `paired_difference`.
  """
  n = len(before)
  mean = float(np.mean(np.array(after) - np.array(before)))
  error = math.sqrt(2 * noise.variance / n)
  correlation = 0.5 if is_many_to_one else 0.0
  known = math.inf
  reach = max(
    _critical(num_tests, noise.degrees, correlation) * error,
    _critical(num_tests, known, correlation) * episode_error,
  )
  p = max(
    max_t_p(_ratio(mean, error), num_tests, noise.degrees, correlation),
    max_t_p(_ratio(mean, episode_error), num_tests, known, correlation),
  )
  return PairedDifference(mean, mean - reach, mean + reach, p, n)


@functools.cache
def _nodes(degrees: float) -> tuple[np.ndarray, ...]:
  """Returns nodes and weights of a normal, and of a root of chi-square / df."""
  normal, weights = np.polynomial.hermite_e.hermegauss(_NUM_NODES)
  unit, unit_weights = np.polynomial.legendre.leggauss(_NUM_NODES)
  roots = np.ones(1)
  if math.isfinite(degrees):
    roots = np.sqrt(stats.chi2.ppf((unit + 1) / 2, degrees) / degrees)
  else:
    unit_weights = np.full(1, 2.0)
  return normal, weights / weights.sum(), roots, unit_weights / 2


def max_t_p(
  t: float, num_tests: int, degrees: float, correlation: float
) -> float:
  """Probability that the largest of several |t| is `t` or more by chance.

  Of `num_tests` t values of one error estimate with so many degrees of freedom
  (infinite if it is known), each pair of them with this correlation of at least
  0. Dunnett (JASA 50, 1955); the multivariate t as a double integral.
  """
  if math.isinf(t):
    return 0.0
  normal, weights, roots, root_weights = _nodes(degrees)
  shift, reach = math.sqrt(correlation) * normal[:, None], t * roots
  scale = math.sqrt(1 - correlation)
  within = special.ndtr((shift + reach) / scale) - special.ndtr(
    (shift - reach) / scale
  )
  return max(1.0 - float(weights @ within**num_tests @ root_weights), 0.0)


@functools.cache
def _critical(num_tests: int, degrees: float, correlation: float) -> float:
  """Returns the |t| that the largest reaches with the chance 1 - `LEVEL`."""
  return float(
    optimize.brentq(
      lambda t: max_t_p(t, num_tests, degrees, correlation) - (1 - LEVEL),
      0.0,
      1e4,
    )
  )


def interquartile_mean(values: Sequence[float]) -> float:
  """Mean of the middle half (Agarwal et al. 2021, rliable)."""
  return float(stats.trim_mean(np.array(values), 0.25))


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


def paired_power(
  difference: float, spread: float, num_seeds: int, *, level: float
) -> float:
  """Returns the probability that a two-sided paired t test finds a difference.

  `spread` is the standard deviation, over seeds, of the paired differences, in
  the unit of `difference`; `level` is that of the test. The result is a mean
  over the spreads that so many normal differences may show: scipy's noncentral
  t is NaN where the power is near 1.
  """
  if num_seeds < 2:
    return 0.0
  if spread == 0:
    return 1.0
  degrees = num_seeds - 1
  reach = stats.t.ppf(1 - level / 2, degrees)
  shift = difference * math.sqrt(num_seeds) / spread
  shares = (np.arange(_NUM_SPREADS) + 0.5) / _NUM_SPREADS
  reach_X = reach * np.sqrt(stats.chi2.ppf(shares, degrees) / degrees)
  found_X = stats.norm.sf(reach_X - shift) + stats.norm.cdf(-reach_X - shift)
  return float(found_X.mean())


def detectable_difference(
  spread: float, num_seeds: int, *, level: float = 1 - LEVEL, power: float = 0.8
) -> float:
  """Smallest difference that a paired t test finds with this power.

  `spread` and `level` are as in `paired_power`. Infinite for one seed.
  """
  if num_seeds < 2:
    return math.inf
  return spread * _detectable(num_seeds, level, power)


@functools.cache
def _detectable(num_seeds: int, level: float, power: float) -> float:
  """Returns the difference in units of the spread."""
  return float(
    optimize.brentq(
      lambda size: paired_power(size, 1.0, num_seeds, level=level) - power,
      0.0,
      1e4,  # beyond that of two seeds and a hundred contrasts
    )
  )


def binomial_spread(success: float, num_tasks: int) -> float:
  """Standard deviation of a paired difference that episodes alone cause.

  Two arms of equal success on the same tasks, as if their episodes were
  independent; seeds that learn differently add to it.
  """
  return math.sqrt(2 * success * (1 - success) / num_tasks)
