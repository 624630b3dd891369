"""Check of a sweep before it costs anything: can it show what it asks?

A few updates of the arm that others are compared with, and attempts of its warm
start, say for each contrast whether the treatment differs, whether there is
room to learn, which difference can be found, and what the sweep takes.
"""

import dataclasses
import enum
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import ml_collections

from agentrl_jax.metrics import Row
from configs.experiment import ExperimentPlan
from launch.comparisons.finals import MEAN
from launch.comparisons.statistics import binomial_spread, detectable_difference
from launch.experiments.start import (
  LEAST_ROOM,
  LEAST_SIGNAL,
  TaskStart,
  without_room,
)
from launch.experiments.treatment import Measure, Treatment, Values
from launch.reports.curves import RL
from launch.sweeps.plan import Cell

SPREADS = (0.0, 0.03, 0.06)  # of seeds, beyond that of their episodes
_OF_A_RUN = ("name", "workdir", "seed", "compile_cache")

Configs = Mapping[Cell, ml_collections.ConfigDict]


class Answer(enum.StrEnum):
  """Answer of the check on a contrast."""

  CAN_SHOW = "can show"
  NULL = "a null by construction"
  NOT_MEASURED = "not measured"


@dataclasses.dataclass(frozen=True)
class ContrastCheck:
  """A contrast, whether it can show anything, and why."""

  contrast: str
  answer: Answer
  why: str
  # Measured, by name: of each batch, and of the versions that play.
  batches: Sequence[Values] = ()
  versions: Values = dataclasses.field(default_factory=dict)

  @property
  def line(self) -> str:
    """The check as a sentence."""
    return f"{self.contrast}: {self.answer.value}; {self.why}"


def check_contrast(
  contrast: str,
  measures: Sequence[Measure],
  unmeasured: Sequence[str],
  start: str | None,
) -> ContrastCheck:
  """Joins what was measured of a contrast.

  `unmeasured` are keys in which the arms differ and that no measure reads;
  `start` says why the warm start leaves nothing to learn, None if it does not.
  """
  why = "; ".join(each.sentence for each in measures)
  verdicts = {each.verdict for each in measures}
  if start is not None:
    return ContrastCheck(contrast, Answer.NULL, start)
  if not measures and not unmeasured:
    same = "the arms differ in no key that training reads"
    return ContrastCheck(contrast, Answer.NULL, same)
  if Treatment.DIFFERS in verdicts:
    return ContrastCheck(contrast, Answer.CAN_SHOW, why)
  if unmeasured:
    keys = f"nothing measures {', '.join(unmeasured)} before training"
    return ContrastCheck(
      contrast, Answer.NOT_MEASURED, f"{why}; {keys}".removeprefix("; ")
    )
  if Treatment.NOT_MEASURED in verdicts:
    return ContrastCheck(contrast, Answer.NOT_MEASURED, why)
  return ContrastCheck(contrast, Answer.NULL, f"the arms hardly differ: {why}")


def start_reason(
  starts: Sequence[TaskStart], plan: ExperimentPlan | None, *, mode: str
) -> str | None:
  """Says why no arm can show anything from this warm start; None: it may.

  Judges the task of the plan, or the mean of all.
  """
  task = plan.task if plan else MEAN
  judged = [each for each in starts if task in (MEAN, each.task)]
  if judged and all(each.signal < LEAST_SIGNAL for each in judged):
    return "hardly any group has a signal, so that no arm learns: " + ", ".join(
      f"{100 * x.signal:.1f} % of {x.task}" for x in judged
    )
  least = plan.least_difference / 100 if plan else LEAST_ROOM
  return without_room(judged, mode, least)


def configs_that_are_equal(configs: Configs) -> set[frozenset[str]]:
  """Returns the pairs of arms whose configs differ in nothing."""
  first_seed = min(cell.seed for cell in configs)
  texts: dict[str, str] = {}
  for cell, config in configs.items():
    if cell.seed == first_seed:
      values = {k: v for k, v in config.to_dict().items() if k not in _OF_A_RUN}
      texts[cell.arm] = repr(sorted(values.items()))
  return {
    frozenset(pair)
    for pair in itertools.combinations(texts, 2)
    if texts[pair[0]] == texts[pair[1]]
  }


def equal_arms(configs: Configs) -> list[str]:
  """Names arms whose config is that of another one."""
  pairs = configs_that_are_equal(configs)
  arms = list(dict.fromkeys(cell.arm for cell in configs))
  sentences = []
  for place, arm in enumerate(arms):
    same = [a for a in arms[:place] if frozenset((a, arm)) in pairs]
    if same:
      sentences.append(
        f"{arm} has the same config as {same[0]}: it can show nothing, unless "
        "it is meant as a negative control."
      )
  return sentences


def detectable_lines(num_tasks: int, num_seeds: int) -> list[str]:
  """Says which difference a test can find, for each of `SPREADS`.

  `num_tasks` are the held-out tasks of all environments; success is taken as a
  half, which is the worst case.
  """
  sentences = []
  for spread in SPREADS:
    noise = math.hypot(binomial_spread(0.5, num_tasks), spread)
    size = detectable_difference(noise, num_seeds)
    what = (
      f"find a difference of {100 * size:.1f} points in four of five cases"
      if size < 1
      else "find no difference at all: take more seeds, or a larger "
      "evaluation.num_tasks"
    )
    sentences.append(
      f"if paired seeds differ by {100 * spread:g} points (sd) beyond the "
      f"noise of {num_tasks} episodes, {num_seeds} seeds {what}"
    )
  return sentences


def update_seconds(rows: Sequence[Row]) -> float:
  """Returns the median time of an update, without the first; NaN if unknown."""
  each = [
    row.values["seconds/wait"] + row.values["seconds/train"]
    for row in rows
    if row.stage == RL
  ]
  return statistics.median(each[1:]) if len(each) > 1 else math.nan


def sweep_hours(
  *,
  before_rl_s: float,
  evaluation_s: float,
  update_s: float,
  steps: int,
  num_arms: int,
  num_seeds: int,
  at_once: int,
) -> float:
  """Estimates the hours of a sweep; the stages before RL are made per seed."""
  cell_s = steps * update_s + evaluation_s
  total_s = num_seeds * (before_rl_s + num_arms * cell_s)
  return total_s / at_once / 3600
