"""Tables of learned critics: scores, a round of preferences, and curves.

Each takes the policy to start from and the flags of `studies.credit`.

All numbers are means over seeds with half of their 95 % interval. Attempts and
answers that were generated stand beside every result, since answers that are
drawn at recorded states cost what answers in attempts cost. An answer is a call
of two tokens.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from studies.credit import archer as credit_archer
from studies.credit import rounds as credit_rounds
from studies.credit.archer import Point
from studies.credit.estimators import Batch, estimate
from studies.credit.exact import TablePolicy, join, play
from studies.credit.learned import LEARNED, Fitted
from studies.credit.scores import half_width, score_by

FIT_BATCHES = (1, 8, 64)  # that a critic is fitted to
ROUND_BATCHES = 8  # of a round of preferences
CRITIC_STEPS = 400  # of a fit before scores, and in a round
DPO_STEPS = 200
COMPARED = ("exact", "turn_gae exact, lambda 0", "grpo", "random")
_CEILING = "exact"  # stands at equal attempts alone


def interval(values: Sequence[float], digits: int = 2) -> str:
  """Returns a mean and half of its interval."""
  return f"{np.mean(values):.{digits}f} ± {half_width(values):.{digits}f}"


def score_table(
  policy: TablePolicy, given: argparse.Namespace
) -> Iterator[str]:
  """Yields the scores of each learned critic, by the size of its data."""
  yield (
    "| critic | fitted to attempts | fresh answers | rank | sign | error | "
    "rank given c | cosine, same turns | cosine | cosine of the mean |\n"
    f"|---{'|---' * 9}|"
  )
  for name in COMPARED:
    yield _score_row(
      name,
      policy,
      lambda _, name=name: Fitted(lambda batch: estimate(name, batch)),
      number=0,
      given=given,
    )
  for number in FIT_BATCHES:
    for name, fitted in LEARNED.items():

      def fit(seed: int, number=number, fitted=fitted) -> Fitted:
        rng = np.random.default_rng((seed, 3))
        parts = [
          play(policy, attempts=given.attempts, rng=rng) for _ in range(number)
        ]
        return fitted(policy, join(parts), steps=CRITIC_STEPS, seed=seed)

      yield _score_row(
        name,
        policy,
        fit,
        number=number,
        given=given,
      )


def _score_row(
  name: str,
  policy: TablePolicy,
  fit: Callable[[int], Fitted],
  *,
  number: int,
  given: argparse.Namespace,
) -> str:
  found, fresh = [], 0
  for seed in range(given.seeds):
    rng = np.random.default_rng((seed, 4))
    played = [
      Batch(policy, play(policy, attempts=given.attempts, rng=rng), n)
      for n in range(given.batches)
    ]
    critic = fit(seed)
    fresh = critic.fresh_answers
    found.append(score_by(critic.advantages, played))
  columns = (
    [s.marginal.rank for s in found],
    [s.marginal.sign for s in found],
    [s.marginal.error for s in found],
    [s.secret.rank for s in found],
    [s.cosine_turns for s in found],
    [s.cosine for s in found],
    [s.cosine_of_mean for s in found],
  )
  num_things = policy.rules.possible_XC.shape[1]
  fitted_to = f"{number * given.attempts * num_things:,}" if number else "–"
  cells = " | ".join(map(interval, columns))
  return f"| {name} | {fitted_to} | {fresh:,} | {cells} |"


def round_table(start: TablePolicy, given: argparse.Namespace) -> Iterator[str]:
  """Yields the result of one round of preferences for each arm."""
  questions = given.reward == "questions"
  yield (
    f"| arm | {_title(questions)} | attempts | answers | pairs | "
    "learning rate |\n|---|---|---|---|---|---|"
  )
  for arm in credit_rounds.ROUNDS:
    rate, found = credit_rounds.run_rounds(
      start,
      arm,
      seeds=given.seeds,
      batches=ROUND_BATCHES,
      attempts=given.attempts,
      critic_steps=CRITIC_STEPS,
      steps=DPO_STEPS,
    )
    result = _shown([r.expected_return for r in found], questions)
    answers = np.mean([r.answers for r in found])
    pairs = np.mean([r.pairs for r in found])
    yield (
      f"| {arm} | {result} | {found[0].attempts:,} | {answers:,.0f} | "
      f"{pairs:,.0f} | {rate:g} |"
    )


def curve_table(start: TablePolicy, given: argparse.Namespace) -> Iterator[str]:
  """Yields results at equal attempts, and at equal answers."""
  questions = given.reward == "questions"
  sizes = {"attempts": given.attempts, "updates": given.updates}
  curves: dict[str, list[list[Point]]] = {}
  rates, most = {}, 0
  for arm in sorted(credit_archer.ARMS, key=lambda arm: arm != "ArCHer"):
    rates[arm] = credit_archer.choose_rate(
      start, arm, rates=given.rates, **sizes
    )
    curves[arm] = [
      credit_archer.learn(
        start,
        arm,
        seed=seed,
        learning_rate=rates[arm],
        answers=0 if arm == _CEILING else most,
        **sizes,
      )
      for seed in range(given.seeds)
    ]
    most = max(most, *(points[-1].answers for points in curves["ArCHer"]))
  whole = given.updates * given.attempts * start.rules.possible_XC.shape[1]
  used = {
    arm: float(np.mean([_answers_at(points, whole) for points in of_seeds]))
    for arm, of_seeds in curves.items()
  }
  budgets = [int(used["grpo"]), int(used["ArCHer"])]
  yield (
    f"| arm | {_title(questions)}: {whole // 4:,} attempts | {whole:,} | "
    f"answers by then | {budgets[0]:,} answers | {budgets[1]:,} | "
    "age of turns | learning rate |\n|---|---|---|---|---|---|---|---|"
  )
  for arm, of_seeds in curves.items():
    columns = [
      *(
        [credit_archer.at_attempts(points, number) for points in of_seeds]
        for number in (whole // 4, whole)
      ),
      *(
        [
          credit_archer.at_answers(points, number, start.exact.expected_return)
          for points in of_seeds
        ]
        for number in budgets
      ),
    ]
    cells = [_shown(values, questions) for values in columns]
    cells.insert(2, f"{used[arm]:,.0f}")
    age = np.mean([points[-1].age for points in of_seeds])
    yield f"| {arm} | {' | '.join(cells)} | {age:.1f} | {rates[arm]:g} |"


def _answers_at(points: Sequence[Point], attempts: int) -> int:
  return [p for p in points if p.attempts <= attempts][-1].answers


def _title(questions: bool) -> str:
  return "questions per game" if questions else "success"


def _shown(returns: Sequence[float], questions: bool) -> str:
  """Returns success, or questions per game, of which a return is minus one."""
  if any(map(math.isnan, returns)):
    return "–"
  sign = -1 if questions else 1
  return interval([sign * x for x in returns], digits=3)
