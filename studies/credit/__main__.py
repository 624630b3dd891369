r"""Scores every estimator of advantages against exact advantages: the ruler.

  python -m studies.credit                        # scores, then learning curves
  python -m studies.credit --reward=questions --only=scores
  python -m studies.credit --only=curves --seeds=5 --learning_rate=0.1
  python -m studies.credit --only=learned          # scores of learned critics
  python -m studies.credit --only=round            # SWEET-RL and trajectory DPO
  python -m studies.credit --only=online           # ArCHer, turn PPO and grpo

The game is `environments/guessing`, small enough that the advantage of every
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
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from environments.guessing.environment import REWARDS
from environments.guessing.game import draw_game
from launch.processes.terminal import plain_console
from studies.credit.archer import RATES
from studies.credit.curves import ARMS, learn_all
from studies.credit.estimators import ESTIMATORS, Batch
from studies.credit.exact import Rules, TablePolicy, evaluate, make_rules, play
from studies.credit.scores import Fit, Score, score
from studies.credit.tables import curve_table, round_table, score_table

CONSOLE = plain_console(soft_wrap=True)
# Share of the way from the random policy's expected return to the best one's.
POLICIES: Mapping[str, float] = {
  "random": 0.0,
  "half-learned": 0.5,
  "near-optimal": 0.95,
}
PARTS = ("scores", "curves", "learned", "round", "online")
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


def print_scores(rules: Rules, given: argparse.Namespace) -> None:
  """Prints a table per policy."""
  for name, policy in make_policies(rules, seed=given.seed).items():
    CONSOLE.print(
      f"\nscores, {name} policy: expected {policy.exact.expected_return:.3f}, "
      f"the best {best_return(rules):.3f}\n"
    )
    CONSOLE.print(
      "| estimator | rank | sign | error | rank given c | sign given c | "
      "error given c | cosine, same turns | cosine | cosine of the mean |\n"
      f"|---{'|---' * 9}|"
    )
    for row, found in score_rows(
      policy,
      given.estimators,
      attempts=given.attempts,
      batches=given.batches,
      seed=given.seed,
    ):
      CONSOLE.print(f"| {row} | {_shown(found)} |")


def _shown(found: Score) -> str:
  def fit(x: Fit) -> str:
    return f"{x.rank:.2f} | {x.sign:.2f} | {x.error:.2f}"

  return (
    f"{fit(found.marginal)} | {fit(found.secret)} | {found.cosine_turns:.2f} | "
    f"{found.cosine:.2f} ± {found.cosine_half_width:.2f} | "
    f"{found.cosine_of_mean:.2f}"
  )


def print_curves(rules: Rules, given: argparse.Namespace) -> None:
  """Prints the expected return of each arm along its training."""
  start = make_policies(rules, seed=given.seed)[given.start]
  updates = [max(1, given.updates * i // 10) for i in range(1, 11)]
  shown = (1, 4, 9)  # a fifth, half, all
  titles = " | ".join(f"after {updates[place]}" for place in shown)
  CONSOLE.print(
    f"\nlearning curves: expected return, {given.seeds} seeds, learning rate "
    f"{given.learning_rate:g}, from {start.exact.expected_return:.3f}, the "
    f"best {best_return(rules):.3f}\n\n"
    f"| estimator | {titles} | mean of the curve |\n|---{'|---' * 4}|"
  )
  for arm in given.arms:
    curves = learn_all(
      start,
      arm,
      seeds=given.seeds,
      updates=updates,
      attempts=given.attempts,
      learning_rate=given.learning_rate,
    )
    found = [*(curves.at(place) for place in shown), curves.over_all()]
    cells = " | ".join(f"{mean:.3f} ± {half:.3f}" for mean, half in found)
    CONSOLE.print(f"| {arm} | {cells} |")


def print_learned(rules: Rules, given: argparse.Namespace) -> None:
  """Prints the scores of critics that are learned."""
  _print_table("scores of learned critics", score_table, rules, given)


def print_round(rules: Rules, given: argparse.Namespace) -> None:
  """Prints the result of one round of preferences."""
  _print_table("one round of preferences", round_table, rules, given)


def print_online(rules: Rules, given: argparse.Namespace) -> None:
  """Prints learning curves of critics that are learned on the way."""
  _print_table("learning curves of learned critics", curve_table, rules, given)


def _print_table(
  title: str,
  table: Callable[..., Iterator[str]],
  rules: Rules,
  given: argparse.Namespace,
) -> None:
  start = make_policies(rules, seed=given.seed)[given.start]
  CONSOLE.print(
    f"\n{title}: {given.start} policy, expected "
    f"{start.exact.expected_return:.3f}, the best {best_return(rules):.3f}; "
    f"{given.seeds} seeds\n"
  )
  for line in table(start, given):
    CONSOLE.print(line)


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
  CONSOLE.print(
    f"16 things, {num_turns} turns, {num_sets} sets of possible things, "
    f"{num_calls} calls; reward: {REWARDS[given.reward]}"
  )
  printers = (
    print_scores,
    print_curves,
    print_learned,
    print_round,
    print_online,
  )
  for part, print_part in zip(PARTS, printers, strict=True):
    if given.only in (None, part):
      print_part(rules, given)
  sys.stderr.write(f"{time.monotonic() - begun:.0f} s\n")


if __name__ == "__main__":
  main()
