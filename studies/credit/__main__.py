r"""Scores every estimator of advantages against exact advantages: the ruler.

  python -m studies.credit                        # scores, then learning curves
  python -m studies.credit --reward=questions --only=scores
  python -m studies.credit --only=curves --seeds=5 --learning_rate=0.1
  python -m studies.credit --only=learned          # scores of learned critics
  python -m studies.credit --only=round            # SWEET-RL and trajectory DPO
  python -m studies.credit --only=online           # ArCHer, turn PPO and grpo

The game is `studies/credit/game.py`, small enough that the advantage of every
turn is computed. All estimators see the same episodes: a group of attempts for
every secret. Writes a table for docs, with a row per estimator:

- rank, sign, error: Spearman's correlation of turns, share of turns with the
  right sign (0 is half right), and mean squared error after the best scaling
  over the mean square; against A(h, a), then against A(h, a | c), given the
  secret (`exact`);
- cosine: of the policy gradient with that of exact advantages on the same
  turns; with the exact gradient; and the latter of the mean of all batches.

The last three are about critics that have to be learned (`tables`): the
same scores, one round of preferences, and learning curves at equal attempts and
at equal answers. Learning rates are chosen from the same ones for all arms.

`--output=FILE.csv` keeps what each seed came to.
"""

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from launch.processes.terminal import plain_console
from studies.credit.archer import RATES
from studies.credit.curves import ARMS, learn_all
from studies.credit.estimators import ESTIMATORS, Batch
from studies.credit.exact import Rules, TablePolicy, evaluate, make_rules, play
from studies.credit.game import REWARDS, draw_game
from studies.credit.scores import Fit, Score, score
from studies.credit.tables import learn_online, play_rounds, score_critics
from studies.tables import Observation, table

Policies = Mapping[str, TablePolicy]
Part = Callable[[Policies, argparse.Namespace], Iterator[Observation]]
CONSOLE = plain_console(soft_wrap=True)
# Share of the way from the random policy's expected return to the best one's.
POLICIES: Mapping[str, float] = {
  "random": 0.0,
  "half-learned": 0.5,
  "near-optimal": 0.95,
}
_STEP = 0.5  # of the exact natural gradient, on the way there
_MOST_STEPS = 2000


def make_policies(rules: Rules, *, seed: int) -> dict[str, TablePolicy]:
  """Makes the policies of `POLICIES` by the exact natural gradient.

  From random logits, since a uniform policy treats all things alike: V(h | c)
  would be V(h), and a critic that sees the secret no better than one that does
  not. The natural gradient of a table adds A(h, a) to the logits.
  """
  rng = np.random.default_rng(seed)
  policy = TablePolicy(rules, rng.normal(size=rules.shape))
  start, best = policy.exact.expected_return, best_return(rules)
  found = {}
  for name, share in POLICIES.items():
    goal = start + share * (best - start)
    for _ in range(_MOST_STEPS):
      if policy.exact.expected_return >= goal:
        break
      advantage_UXA = policy.exact.advantage_UXA
      scale = max(np.abs(advantage_UXA).max(), 1.0)
      policy = TablePolicy(
        rules, policy.logit_UXA + _STEP * advantage_UXA / scale
      )
    found[name] = policy
  return found


def best_return(rules: Rules) -> float:
  """Returns the expected return of the best policy, by policy iteration."""
  best_UXA = np.full(rules.shape, 1 / rules.shape[-1])
  for _ in range(rules.shape[0]):  # a turn is the best after those that follow
    exact = evaluate(rules, best_UXA)
    best_UXA = np.eye(rules.shape[-1])[exact.action_value_UXA.argmax(axis=-1)]
  return evaluate(rules, best_UXA).expected_return


def score_rows(
  policy: TablePolicy,
  names: Sequence[str],
  *,
  attempts: int,
  batches: int,
  seed: int,
) -> Iterator[tuple[str, Score]]:
  """Yields the score of each estimator on the same batches."""
  rng = np.random.default_rng(seed)
  played = [
    Batch(policy, play(policy, attempts=attempts, rng=rng), seed=number)
    for number in range(batches)
  ]
  for name in names:
    yield name, score(name, played)


def score_estimators(
  policies: Policies, given: argparse.Namespace
) -> Iterator[Observation]:
  """Scores each estimator on the episodes of each policy."""
  for name, policy in policies.items():
    for row, found in score_rows(
      policy,
      given.estimators,
      attempts=given.attempts,
      batches=given.batches,
      seed=given.seed,
    ):
      yield {
        "policy": name,
        "estimator": row,
        **_fit("", found.marginal),
        **_fit("_given_c", found.secret),
        "cosine_turns": found.cosine_turns,
        "cosine": found.cosine,
        "cosine_half": found.cosine_half_width,
        "cosine_of_mean": found.cosine_of_mean,
      }


def _fit(suffix: str, fit: Fit) -> Observation:
  return {f"{name}{suffix}": x for name, x in dataclasses.asdict(fit).items()}


def learn_curves(
  policies: Policies, given: argparse.Namespace
) -> Iterator[Observation]:
  """Yields the expected return of each arm's seeds along their training."""
  updates = [max(1, given.updates * i // 10) for i in range(1, 11)]
  shown = {"fifth": 1, "half": 4, "end": 9}
  for arm in given.arms:
    curves = learn_all(
      policies[given.start],
      arm,
      seeds=given.seeds,
      updates=updates,
      attempts=given.attempts,
      learning_rate=given.learning_rate,
    )
    for seed, of_seed in enumerate(curves):
      yield {
        "policy": given.start,
        "estimator": arm,
        "seed": seed,
        **{name: of_seed[place] for name, place in shown.items()},
        "curve": float(np.mean(of_seed)),
      }


def _from_start(
  part: Callable[[TablePolicy, argparse.Namespace], Iterator[Observation]],
) -> Part:
  """Makes a part of one that takes the policy to start from."""
  return lambda policies, given: (
    {"start": given.start, **each}
    for each in part(policies[given.start], given)
  )


# What each part observes, and the columns of its table: by what, and means.
PARTS: Mapping[str, tuple[Part, str, str]] = {
  "scores": (
    score_estimators,
    "policy estimator",
    "rank sign error rank_given_c sign_given_c error_given_c cosine_turns "
    "cosine cosine_half cosine_of_mean",
  ),
  "curves": (learn_curves, "estimator", "fifth half end curve"),
  "learned": (
    _from_start(score_critics),
    "critic attempts",
    "fresh rank sign error rank_given_c cosine_turns cosine cosine_of_mean",
  ),
  "round": (
    _from_start(play_rounds),
    "arm",
    "result attempts answers pairs rate",
  ),
  "online": (
    _from_start(learn_online),
    "arm",
    "quarter whole answers at_grpos at_archers age rate",
  ),
}


def _names(allowed: Sequence[str]):
  """Makes a reader of names that are separated by semicolons."""

  def read(text: str) -> list[str]:
    names = text.split(";")
    if unknown := [name for name in names if name not in allowed]:
      raise argparse.ArgumentTypeError(
        f"{unknown} is not among: {'; '.join(allowed)}"
      )
    return names

  return read


def _rates(text: str) -> list[float]:
  """Reads positive numbers that are separated by semicolons."""
  rates = [float(number) for number in text.split(";")]
  if min(rates) <= 0:
    raise argparse.ArgumentTypeError(f"{text} has a rate that is not positive")
  return rates


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="python -m studies.credit",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--reward", choices=REWARDS, default="success")
  add("--turns", type=int, default=6, help="of a game")
  add("--attempts", type=int, default=8, help="at every secret, in a batch")
  add("--batches", type=int, default=16, help="that scores are measured on")
  add("--updates", type=int, default=60, help="of a learning curve")
  add("--seeds", type=int, default=5, help="of a learning curve")
  add("--learning_rate", type=float, default=0.1)
  add("--start", choices=POLICIES, default="half-learned", help="of a curve")
  add("--seed", type=int, default=0, help="of policies and scored episodes")
  add("--only", choices=PARTS, help="the others are left out")
  semicolons = "names with semicolons between them; all by default"
  add(
    "--estimators", type=_names(ESTIMATORS), default=ESTIMATORS, help=semicolons
  )
  add("--rates", type=_rates, default=RATES, help="online: one is chosen")
  add("--arms", type=_names(ARMS), default=ARMS, help=semicolons)
  return parser


def main(arguments: Sequence[str] | None = None) -> None:
  """Prints the tables that the flags name."""
  parser = _parser()
  given = parser.parse_args(arguments)
  for name in ("turns", "attempts", "batches", "updates", "seeds"):
    if getattr(given, name) < 1:
      parser.error(f"--{name}={getattr(given, name)} must be 1 or more")
  begun = time.monotonic()
  # Two attributes and all of their things: few sets, so that curves are quick.
  game = draw_game(16, 2, random.Random(given.seed))
  rules = make_rules(game, num_turns=given.turns, reward=given.reward)
  num_turns, num_sets, num_calls = rules.shape
  policies = make_policies(rules, seed=given.seed)
  CONSOLE.print(
    f"16 things, {num_turns} turns, {num_sets} sets of possible things, "
    f"{num_calls} calls; reward: {REWARDS[given.reward]}; expected return of "
    + "".join(
      f"{n}: {p.exact.expected_return:.3f}, " for n, p in policies.items()
    )
    + f"the best {best_return(rules):.3f}"
  )
  for part, (observe, by, columns) in PARTS.items():
    if given.only in (None, part):
      found = list(observe(policies, given))
      shown = table(found, by.split(), columns.split())
      CONSOLE.print(f"\n{part}\n\n{shown}")
  sys.stderr.write(f"{time.monotonic() - begun:.0f} s\n")


if __name__ == "__main__":
  main()
