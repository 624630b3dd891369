"""Simulates how often a report's intervals and tests are wrong.

  python -m studies.error_rates

Prints the tables of docs/sweeps.md. Every number is the share of simulated
comparisons, all of them of 256 episodes a run. Levels: the interval of the mean
of one arm holds the truth. Differences: six arms without any true difference,
of which five are compared with the first; a test is wrong if it finds one.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import optimize, special

from launch.comparisons.finals import Share, Tests, column_tests
from launch.comparisons.statistics import binomial_variance, mean_over_seeds
from launch.processes.terminal import plain_console

CONSOLE = plain_console(soft_wrap=True)
SEEDS = (3, 5, 8)
NUM_EPISODES = 256
ARMS = tuple("abcdef")
PAIRS = [(arm, ARMS[0]) for arm in ARMS[1:]]
_OF_SEEDS, _OF_RUNS = 0.1, 0.05  # standard deviations of success
_ON_SUCCESS = 0.4  # the same of seeds, in log odds

Draw = Callable[[np.random.Generator, int], np.ndarray]


def levels(repetitions: int) -> Iterator[tuple[str, list[float]]]:
  """Yields how often the interval of a level holds the truth, by seeds."""
  for success in (0.1, 0.5, 0.9):
    for name, draw in (
      ("no spread", _constant(success)),
      ("seeds vary", _log_odds(success)),
      ("bimodal", _two_outcomes(success)),
    ):
      random = np.random.default_rng(0)
      yield (
        f"{100 * success:.0f} %, {name}",
        [_coverage(draw, success, n, repetitions, random) for n in SEEDS],
      )


def _coverage(
  draw: Draw,
  truth: float,
  num_seeds: int,
  repetitions: int,
  random: np.random.Generator,
) -> float:
  holds = 0
  for _ in range(repetitions):
    shares = random.binomial(NUM_EPISODES, draw(random, num_seeds))
    found = mean_over_seeds(
      [n / NUM_EPISODES for n in shares],
      [binomial_variance(n / NUM_EPISODES, NUM_EPISODES) for n in shares],
    )
    holds += found.low <= truth <= found.high
  return holds / repetitions


def _constant(success: float) -> Draw:
  return lambda _, n: np.full(n, success)


def _log_odds(success: float) -> Draw:
  """Returns seeds whose log odds are normal, and whose mean is `success`."""
  spread = np.random.default_rng(0).normal(0, _ON_SUCCESS, 100_000)
  center = optimize.brentq(
    lambda x: special.expit(x + spread).mean() - success, -9, 9
  )
  return lambda random, n: special.expit(
    center + random.normal(0, _ON_SUCCESS, n)
  )


def _two_outcomes(success: float) -> Draw:
  """Returns seeds of which some fail: half at 10, and half at 90 % if at 50.

  At 10 and 90 % of success one in five ends 20 points beyond the others.
  """
  often, seldom, share = {
    0.1: (0.06, 0.26, 0.8),
    0.5: (0.1, 0.9, 0.5),
    0.9: (0.94, 0.74, 0.8),
  }[success]
  return lambda random, n: np.where(random.random(n) < share, often, seldom)


def differences(repetitions: int) -> Iterator[tuple[str, list[list[float]]]]:
  """Yields how often tests of equal arms are wrong, by seeds.

  Any of the five first tests, that of the last arm, and its paired t test.
  """
  for name, settings in {
    "equal arms, 50 %": {},
    "equal arms, 90 %": {"success": 0.9},
    "equal arms, episodes alone differ": {"of_seeds": 0.0, "of_runs": 0.0},
    "the same, on the same tasks": {
      "of_seeds": 0.0,
      "of_runs": 0.0,
      "of_tasks": 1.5,
    },
    "the last two arms have 2 seeds fewer": {"fewer": 2},
    "the last arm's seeds vary 2 times as much": {"unstable": (-1, 2)},
    "the last arm's seeds vary 4 times as much": {"unstable": (-1, 4)},
    "the last arm's seeds vary 8 times as much": {"unstable": (-1, 8)},
    "the first arm's seeds vary 4 times as much": {"unstable": (0, 4)},
  }.items():
    random = np.random.default_rng(0)
    yield (
      name,
      [
        _wrong(
          _six_arms(random, n, **settings)  # type: ignore[arg-type]
          for _ in range(repetitions)
        )
        for n in SEEDS
      ],
    )


def _wrong(comparisons: Iterator[dict[str, dict[int, Share]]]) -> list[float]:
  found = []
  for scores in comparisons:
    tests = column_tests(PAIRS, scores, is_pooled=True)
    last: Tests = tests[PAIRS[-1]]
    found.append(
      [
        any(each.first.is_different for each in tests.values()),
        last.first.is_different,
        last.paired.is_different,
      ]
    )
  return [float(share) for share in np.mean(found, axis=0)]


def _six_arms(
  random: np.random.Generator,
  num_seeds: int,
  *,
  success: float = 0.5,
  of_seeds: float = _OF_SEEDS,
  of_runs: float = _OF_RUNS,
  of_tasks: float = 0.0,
  unstable: tuple[int, int] = (0, 1),
  fewer: int = 0,
) -> dict[str, dict[int, Share]]:
  """Draws the scores of arms that differ in nothing.

  The standard deviations are those of a seed's success, which all arms share,
  of each run's, and of the log odds of a task, which all runs play.
  """
  shrink = 4 * success * (1 - success)  # the room that there is at the ends
  spreads = np.full(len(ARMS), shrink * of_runs)
  spreads[unstable[0]] *= unstable[1]
  means = success + shrink * of_seeds * random.normal(size=num_seeds)
  means = means + spreads[:, None] * random.normal(size=(len(ARMS), num_seeds))
  odds = special.logit(np.clip(means, 0.005, 0.995))[..., None]
  tasks = of_tasks * random.normal(size=NUM_EPISODES)
  wins = random.random((*means.shape, NUM_EPISODES)) < special.expit(
    odds + tasks
  )
  shares = wins.mean(-1)
  return {
    arm: {
      seed: Share(share, binomial_variance(share, NUM_EPISODES), NUM_EPISODES)
      for seed, share in enumerate(of_arm)
      if seed < num_seeds - (fewer if arm in ARMS[-2:] else 0)
    }
    for arm, of_arm in zip(ARMS, shares.tolist(), strict=True)
  }


def _print(head: Sequence[str], rows: Iterator[tuple[str, list[str]]]) -> None:
  CONSOLE.print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
  for name, cells in rows:
    CONSOLE.print(f"| {name} | {' | '.join(cells)} |")


def main(arguments: Sequence[str] | None = None) -> None:
  """Prints the tables."""
  parser = argparse.ArgumentParser(prog="python -m studies.error_rates")
  parser.add_argument("--repetitions", type=int, default=500)
  given = parser.parse_args(arguments)
  seeds = [f"{n} seeds" for n in SEEDS]
  _print(
    ["level: the interval holds the truth", *seeds],
    (
      (name, [f"{100 * share:.0f} %" for share in shares])
      for name, shares in levels(10 * given.repetitions)
    ),
  )
  _print(
    ["difference: any first test, the last arm's, its paired t wrong", *seeds],
    (
      (name, [", ".join(f"{100 * x:.1f}" for x in three) for three in rows])
      for name, rows in differences(given.repetitions)
    ),
  )


if __name__ == "__main__":
  main()
