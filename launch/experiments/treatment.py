"""Difference of two arms in what is trained on, before they are run.

The groups that one arm has played are given to both: their advantages, before
an update has made the policies differ. Older versions that play are compared by
their log-ratios. All other keys cannot be measured before training.

Axes: N trajectories or parts of them, U turns of one, T turns of all.
"""

import dataclasses
import enum
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.records import Group
from agentrl_jax.losses import TaskMoments
from agentrl_jax.metrics import Row
from agentrl_jax.train.advantages import (
  advantages_and_moments,
  counted_trajectories,
  make_arrays,
  moment_numbers,
)
from agentrl_jax.train.compared import Compared, compared_parts
from launch.comparisons.diagnostics import SPREAD
from launch.config.settings import Settings

# Cosine of two arms' advantages from which they are alike. Of two tasks with
# as many tokens, one weighed 1.5 times has 0.98, 2 times 0.95.
ALIKE = 0.98
# Nats: mean |log-ratio| of trained tokens below which versions are alike.
LEAST_LOG_RATIO = 0.01
_OF_ADVANTAGES = ("advantage.", "train.roles")
_OF_VERSIONS = ("cross_policy.",)
# Keys that choose what is scored, and are no part of training.
_OF_SCORES = (
  "checkpoint.keep_best",
  "evaluation.agents",
  "evaluation.temperature",
)
# Keys that change no token that is trained on, or follow from others.
_NEUTRAL = (
  "name",
  "workdir",
  "seed",
  "compile_cache",
  "report.",
  "checkpoint.",
  "engine.slots",
  "evaluation.",
  "warm_start.store",
)

_SHOWN = 0.005  # share; a smaller difference is not worth a word
Values = Mapping[str, float]


class Treatment(enum.StrEnum):
  """Judgement of a measure: do the arms differ in what it reads?"""

  DIFFERS = "differs"
  NULL = "null"
  NOT_MEASURED = "not measured"


@dataclasses.dataclass(frozen=True)
class Measure:
  """One way in which two arms may differ."""

  verdict: Treatment
  sentence: str


# --- Advantages of the same groups --------------------------------------------


class AdvantageComparison:
  """Compares the advantages that two arms give to the same batches.

  Settings whose advantages come from a critic cannot be compared.
  """

  def __init__(self, before: Settings, after: Settings) -> None:
    self._arms = {"before": before, "after": after}
    self._running: dict[str, TaskMoments | None] = {
      side: losses.unseen_tasks(len(arm.task_ids))
      if arm.advantage.task_decay
      else None
      for side, arm in self._arms.items()
    }

  @property
  def is_possible(self) -> bool:
    """False if a critic is needed, or the arms have different tasks."""
    before, after = self._arms.values()
    return before.task_ids == after.task_ids and not (
      before.advantage.uses_critic or after.advantage.uses_critic
    )

  def measure(self, groups: Sequence[Group]) -> dict[str, float]:
    """Measures one batch, by name.

    - `cosine` of the advantages over sampled tokens; NaN if an arm has none;
    - `groups/<side>`: share of the groups that are kept;
    - `tokens/<side>`: share of the sampled tokens that count in the loss, and
      `tokens/<side>/<role>` of each role, where roles are named;
    - `advantage/spread/<task>`, `advantage/mean/<task>` over trained tokens
      before the task's normalisation, as `before` has them.
    """
    turns = [
      (len(turn.sampled), t.role_of(turn.line))
      for group in groups
      for t in group.trajectories
      for turn in t.turns
    ]
    tokens_T = np.array([size for size, _ in turns], float)
    role_T = np.array([role for _, role in turns])
    values: dict[str, float] = {}
    of_sides: dict[str, np.ndarray] = {}
    for side in self._arms:
      rated = self._rate(side, groups)
      values = {**rated.moments, **values}  # those of `before` stay
      values[f"groups/{side}"] = rated.share_of_groups
      of_sides[side], counts_T = rated.by_turn(groups)
      for role in ["", *sorted({*role_T} - {""})]:
        own_T = tokens_T * ((role_T == role) | (role == ""))
        name = f"tokens/{side}/{role}".rstrip("/")
        values[name] = float((own_T * counts_T).sum() / max(own_T.sum(), 1))
    values["cosine"] = _cosine(of_sides["before"], of_sides["after"], tokens_T)
    return values

  def _rate(self, side: str, groups: Sequence[Group]) -> "_Rated":
    arm = self._arms[side]
    config = arm.advantage
    compared = compared_parts(
      groups, compare=config.compare, roles=arm.batch.roles
    )
    arrays = make_arrays(compared.groups, arm.task_ids, config)
    value_NU, self._running[side], moments = advantages_and_moments(
      arrays,
      num_tasks=len(arm.task_ids),
      config=config,
      running=self._running[side],
    )
    return _Rated(
      compared,
      arrays.group_N,
      value_NU,
      counted_trajectories(arrays, config=config),
      moment_numbers(moments, arm.task_ids),
    )


@dataclasses.dataclass(frozen=True)
class _Rated:
  """Advantages of the parts of a batch, and those that count in the loss."""

  compared: Compared
  group_N: np.ndarray
  value_NU: np.ndarray
  counts_N: np.ndarray  # bool
  moments: Values  # before the tasks are normalised

  @property
  def share_of_groups(self) -> float:
    kept = np.unique(self.group_N[self.counts_N])
    return len(kept) / max(len(self.compared.groups), 1)

  def by_turn(self, groups: Sequence[Group]) -> tuple[np.ndarray, np.ndarray]:
    """Returns advantages of whole episodes' turns, and those that count."""
    number = {id(part): n for n, part in enumerate(self.compared.trajectories)}
    values, counts = [], []
    for trajectory in (t for group in groups for t in group.trajectories):
      value_U = np.zeros(len(trajectory.turns))
      counts_U = np.zeros(len(trajectory.turns), bool)
      for part, turns in self.compared.parts[id(trajectory)]:
        n = number[id(part)]
        value_U[list(turns)] = self.value_NU[n, : len(turns)]
        counts_U[list(turns)] = self.counts_N[n]
      values.append(value_U)
      counts.append(counts_U)
    return np.concatenate(values), np.concatenate(counts)


def _cosine(a_T: np.ndarray, b_T: np.ndarray, weight_T: np.ndarray) -> float:
  norm = math.sqrt((weight_T * a_T**2).sum() * (weight_T * b_T**2).sum())
  return float((weight_T * a_T * b_T).sum() / norm) if norm else math.nan


# --- Verdicts -----------------------------------------------------------------


def split_keys(keys: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
  """Sorts keys in which arms differ: of advantages, of versions, of neither."""
  treated = sorted(
    key for key in keys if key in _OF_SCORES or not key.startswith(_NEUTRAL)
  )
  of_advantages = [key for key in treated if key.startswith(_OF_ADVANTAGES)]
  of_versions = [key for key in treated if key.startswith(_OF_VERSIONS)]
  measured = {*of_advantages, *of_versions}
  return of_advantages, of_versions, [k for k in treated if k not in measured]


def judge_advantages(batches: Sequence[Values]) -> Measure:
  """Judges by the cosines of the batches, and says what else was measured."""
  cosines = _finite(batches, "cosine")
  if not cosines:
    return Measure(
      Treatment.NOT_MEASURED,
      "advantages: not measured, since no batch has any in both arms",
    )
  parts = [
    f"the advantages that both give to the same tokens have a cosine of "
    f"{_range(cosines)} in {len(cosines)} batches"
  ]
  parts += _ratio(batches)
  for name, what in (
    ("groups", "of the groups are trained on"),
    ("tokens", "of the sampled tokens"),
  ):
    before, after = (_mean(batches, f"{name}/{s}") for s in ("before", "after"))
    if abs(before - after) > _SHOWN:
      parts.append(f"{100 * before:.0f} and {100 * after:.0f} % {what}")
  parts += _roles(batches)
  is_null = statistics.fmean(cosines) >= ALIKE
  return Measure(
    Treatment.NULL if is_null else Treatment.DIFFERS, "; ".join(parts)
  )


def _ratio(batches: Sequence[Values]) -> list[str]:
  """Says how the spreads of two tasks, or the most unlike, compare."""
  names = sorted({n for b in batches for n in b if n.startswith(SPREAD)})
  means = {n: m for n in names if (m := _mean(batches, n)) > 0}
  if len(means) < 2:
    return []
  large = max(means, key=means.__getitem__)
  small = min(means, key=means.__getitem__)
  ratios = [b[large] / b[small] for b in batches if b.get(small) and large in b]
  if not ratios:
    return []
  one, other = large.removeprefix(SPREAD), small.removeprefix(SPREAD)
  return [
    f"before the tasks are normalised, the spread of {one} is "
    f"{_range(ratios)} times that of {other}"
  ]


def _roles(batches: Sequence[Values]) -> list[str]:
  """Says of which roles' tokens the arms train on different shares."""
  prefix = "tokens/before/"
  sentences = []
  for name in sorted({n for b in batches for n in b if n.startswith(prefix)}):
    role = name.removeprefix(prefix)
    before, after = _mean(batches, name), _mean(batches, f"tokens/after/{role}")
    if abs(before - after) > _SHOWN:
      sentences.append(
        f"{100 * before:.0f} and {100 * after:.0f} % of the tokens of {role}"
      )
  return sentences


def _finite(batches: Sequence[Values], name: str) -> list[float]:
  values = [each.get(name, math.nan) for each in batches]
  return [value for value in values if math.isfinite(value)]


def _mean(batches: Sequence[Values], name: str) -> float:
  values = _finite(batches, name)
  return statistics.fmean(values) if values else math.nan


def _range(values: Sequence[float]) -> str:
  """Returns the mean, and the range of 5 to 95 % of several values."""
  mean = statistics.fmean(values)
  if len(values) < 2:
    return f"{mean:.3g}"
  low, high = np.quantile(values, (0.05, 0.95))
  return f"{mean:.3g} ({low:.3g} to {high:.3g})"


# --- Versions that play -------------------------------------------------------


def log_ratio_per_update(
  rows: Sequence[Row], settings: Settings
) -> float | None:
  """Returns the mean |log-ratio| in nats for each update of age; None: unknown.

  From the oldest policy slots whose age is known, else from policy slot 0 and
  its mean staleness.
  """
  total = updates = 0.0
  for row in rows:
    version = row.step - 1  # that the update began with
    for k, schedule in enumerate(settings.policy_slots):
      found = row.values.get(f"policy/abs_log_ratio/policy_slot{k}", math.nan)
      age = float(version - schedule.step(version))
      if schedule.is_fresh:
        age = row.values.get("staleness/mean", 0.0)
      if math.isfinite(found) and age > 0:
        total, updates = total + found, updates + age
  return total / updates if updates else None


def mean_age(settings: Settings, steps: int) -> float:
  """Returns the age in updates of a token, over a run, beyond staleness."""
  weights = settings.cross_policy.weights
  if not settings.cross_policy.is_drawn:
    return 0.0
  ages = [
    statistics.fmean(v - schedule.step(v) for v in range(steps))
    for schedule in settings.policy_slots
  ]
  return math.fsum(
    w * age for w, age in zip(weights, ages, strict=True)
  ) / math.fsum(weights)


def measure_versions(
  rows: Sequence[Row], before: Settings, after: Settings, steps: int
) -> dict[str, float]:
  """Measures by name; `log_ratio_per_update` is left out if it is not known.

  `age/<side>` is the mean age in updates of the tokens of a run.
  """
  values = {
    "age/before": mean_age(before, steps),
    "age/after": mean_age(after, steps),
  }
  per_update = log_ratio_per_update(rows, before)
  if per_update is not None:
    values["log_ratio_per_update"] = per_update
  return values


def judge_versions(values: Values) -> Measure:
  """Judges by what `measure_versions` has found."""
  before, after = values["age/before"], values["age/after"]
  ages = (
    f"tokens are on average {before:.1f} and {after:.1f} updates old by the "
    "policy slots' schedules"
  )
  per_update = values.get("log_ratio_per_update")
  if per_update is None:
    return Measure(
      Treatment.NOT_MEASURED,
      f"versions: {ages}; the drift of an update is not measured",
    )
  apart = abs(after - before) * per_update
  sentence = (
    f"{ages}; at {per_update:.2g} nats of mean |log-ratio| for an update, this "
    f"is {apart:.2g} nats"
  )
  is_null = apart < LEAST_LOG_RATIO
  return Measure(Treatment.NULL if is_null else Treatment.DIFFERS, sentence)
