"""Observations of learned critics: scores, a round of preferences, and curves.

Each takes the policy to start from and the flags of `studies.credit`, and has
an observation for each arm and seed (`studies.tables`).

Attempts and answers that were generated stand beside every result, since
answers that are drawn at recorded states cost what answers in attempts cost. An
answer is a call of two tokens.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from studies.credit import archer as credit_archer
from studies.credit import rounds as credit_rounds
from studies.credit.archer import Point
from studies.credit.estimators import Batch, estimate
from studies.credit.exact import TablePolicy, join, play
from studies.credit.learned import LEARNED, Fitted
from studies.credit.scores import score_by
from studies.tables import Observation

FIT_BATCHES = (1, 8, 64)  # that a critic is fitted to
ROUND_BATCHES = 8  # of a round of preferences
CRITIC_STEPS = 400  # of a fit before scores, and in a round
DPO_STEPS = 200
COMPARED = ("exact", "turn_gae exact, lambda 0", "grpo", "random")
_CEILING = "exact"  # stands at equal attempts alone


def score_critics(
  policy: TablePolicy, given: argparse.Namespace
) -> Iterator[Observation]:
  """Scores each learned critic, by the size of its data."""
  for name in COMPARED:
    yield from _score(
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

      yield from _score(name, policy, fit, number=number, given=given)


def _score(
  name: str,
  policy: TablePolicy,
  fit: Callable[[int], Fitted],
  *,
  number: int,
  given: argparse.Namespace,
) -> Iterator[Observation]:
  num_things = policy.rules.possible_XC.shape[1]
  for seed in range(given.seeds):
    rng = np.random.default_rng((seed, 4))
    played = [
      Batch(policy, play(policy, attempts=given.attempts, rng=rng), n)
      for n in range(given.batches)
    ]
    critic = fit(seed)
    found = score_by(critic.advantages, played)
    yield {
      "critic": name,
      "attempts": number * given.attempts * num_things,
      "seed": seed,
      "fresh": critic.fresh_answers,
      "rank": found.marginal.rank,
      "sign": found.marginal.sign,
      "error": found.marginal.error,
      "rank_given_c": found.secret.rank,
      "cosine_turns": found.cosine_turns,
      "cosine": found.cosine,
      "cosine_of_mean": found.cosine_of_mean,
    }


def play_rounds(
  start: TablePolicy, given: argparse.Namespace
) -> Iterator[Observation]:
  """Plays one round of preferences in each arm."""
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
    for seed, each in enumerate(found):
      yield {
        "arm": arm,
        "seed": seed,
        "result": _result(each.expected_return, given),
        "attempts": each.attempts,
        "answers": each.answers,
        "pairs": each.pairs,
        "rate": rate,
      }


def learn_online(
  start: TablePolicy, given: argparse.Namespace
) -> Iterator[Observation]:
  """Learns in each arm; has results at equal attempts and at equal answers."""
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
  budgets = {
    f"at_{arm.lower()}s": int(
      np.mean([_answers_at(points, whole) for points in curves[arm]])
    )
    for arm in ("grpo", "ArCHer")
  }
  first = start.exact.expected_return
  for arm in credit_archer.ARMS:
    for seed, points in enumerate(curves[arm]):
      yield {
        "arm": arm,
        "seed": seed,
        "attempts": whole,
        "quarter": _result(
          credit_archer.at_attempts(points, whole // 4), given
        ),
        "whole": _result(credit_archer.at_attempts(points, whole), given),
        "answers": _answers_at(points, whole),
        **{
          name: _result(credit_archer.at_answers(points, budget, first), given)
          for name, budget in budgets.items()
        },
        "age": points[-1].age,
        "rate": rates[arm],
      }


def _answers_at(points: Sequence[Point], attempts: int) -> int:
  return [p for p in points if p.attempts <= attempts][-1].answers


def _result(expected_return: float, given: argparse.Namespace) -> float:
  """Returns success, or questions per game: a return is minus their number."""
  sign = -1 if given.reward == "questions" else 1
  return sign * float(expected_return)
