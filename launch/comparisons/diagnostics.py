"""Diagnostics of runs: their cost, and the distance of samplers and learner.

Scores say which arm ended higher; these say what was different on the way. Each
is one number per run, kept as `diagnostics.csv` beside the scores.
"""

import csv
import dataclasses
import math
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence

from agentrl_jax.errors import ConfigError
from agentrl_jax.metrics import Row
from launch.comparisons.bands import (
  MINUTES,
  TOKENS,
  costs_of,
  counted,
  smoothed,
)
from launch.comparisons.runs import Arm, Run
from launch.reports.curves import (
  COLLAPSED,
  DISTANCE,
  ENTROPY,
  GROUP_STD,
  MUTUAL_INFORMATION,
  RL,
  STALENESS_MEAN,
  SUCCESS,
)
from launch.reports.tables import TableCell
from launch.sweeps.cells import CellState

_OLDER = "/policy_slot1"
TURNS = "rollout/turns/"
_AFTER_FIRST = "minutes after the first update"
_TURNS = "trained turns"
_LAST_TURNS = "turns at the end"
ALARM = "updates before the alarm"
_AGES = "staleness/groups/"
_SHARE = f"policy/share_of_tokens{_OLDER}"


@dataclasses.dataclass(frozen=True)
class Diagnostic:
  """A quantity of a run: its column's title and note."""

  title: str
  note: str


# Those that are metrics are means over the updates of a run.
METRICS = {
  ENTROPY: Diagnostic("entropy", "nats per token"),
  GROUP_STD: Diagnostic("spread of a group", "std of its rewards"),
  MUTUAL_INFORMATION: Diagnostic(
    "mutual information", "of first answers and prompts, nats per answer"
  ),
  DISTANCE: Diagnostic("log-ratio, fresh", "mean |log ratio|, nats per token"),
  f"policy/abs_log_ratio{_OLDER}": Diagnostic(
    "log-ratio, older", "the same of policy slot 1"
  ),
  f"policy/kl_to_behavior{_OLDER}": Diagnostic(
    "KL, older", "of policy slot 1, nats per token"
  ),
  f"policy/effective_sample_size{_OLDER}": Diagnostic(
    "sample size, older", "effective, share of policy slot 1's tokens"
  ),
  "policy/ratio_outside_clip": Diagnostic(
    "outside the clip", "share of tokens (of sequences, in GSPO)"
  ),
  _SHARE: Diagnostic(
    "tokens, older", "share of trained tokens of policy slot 1"
  ),
}
# What is counted since the start of a run.
COUNTS = {
  STALENESS_MEAN: Diagnostic("staleness", "updates, mean of all groups"),
  TOKENS: Diagnostic("trained tokens", "thousands"),
  _TURNS: Diagnostic("trained turns", "thousands, of all episodes"),
  ALARM: Diagnostic(
    "updates before the alarm", "of a collapse; all, if there was none"
  ),
  _LAST_TURNS: Diagnostic("turns, at the end", "of an episode, mean of tasks"),
  MINUTES: Diagnostic("RL", "minutes"),
  _AFTER_FIRST: Diagnostic("RL, updates 2 on", "minutes; the first compiles"),
  "hours": Diagnostic("run", "hours, warm start included"),
}
ALL = {**METRICS, **COUNTS}
# Minutes from the first update until success reaches N %.
TO_SUCCESS = "minutes_to_success/"
SPREAD, MEAN = "advantage/spread/", "advantage/mean/"
# Of a level or of a task, whose name stands at {} and at the metric's end.
FAMILIES = {
  SPREAD: Diagnostic(
    "advantage σ, {}", "std over its trained tokens, before it is normalised"
  ),
  MEAN: Diagnostic("advantage μ, {}", "the mean of the same"),
  TO_SUCCESS: Diagnostic(
    "RL to {} %",
    "minutes from update 1 to this success of training, mean of tasks",
  ),
}
_STEP = 5  # percents: levels are multiples of it
Values = Mapping[str, Mapping[int, Mapping[str, float]]]  # arm, seed, name
Key = tuple[str, int]  # arm, seed


def diagnostics(arms: Sequence[Arm]) -> Values:
  """Returns the diagnostics of the finished runs with updates of RL."""
  runs = {
    arm.name: {
      seed: run
      for seed, run in sorted(arm.runs.items())
      if run.state is CellState.FINISHED
      and any(row.stage == RL for row in run.rows)
    }
    for arm in arms
  }
  alarms = _alarms(runs)
  times = _times_to_success(
    {(arm, seed): run for arm in runs for seed, run in runs[arm].items()}
  )
  return {
    arm: {
      seed: {
        **_of_run(run),
        **alarms.get((arm, seed), {}),
        **times.get((arm, seed), {}),
      }
      for seed, run in seeds.items()
    }
    for arm, seeds in runs.items()
  }


def _of_run(run: Run) -> dict[str, float]:
  rows = [row for row in run.rows if row.stage == RL]
  costs = costs_of(rows)
  known = {name for row in rows for name in row.values}
  of_tasks = {name for name in known if name.startswith((SPREAD, MEAN))}
  values = {name: _mean(rows, name) for name in (*METRICS, *sorted(of_tasks))}
  if not values[_SHARE]:  # of an older version nothing is known
    values = {k: v for k, v in values.items() if not k.endswith(_OLDER)}
  values[STALENESS_MEAN] = _staleness(rows)
  values[TOKENS] = costs[TOKENS][-1] / 1000
  if "batch/turns" in rows[-1].values:  # of older runs it is unknown
    values[_TURNS] = (
      sum(row.values.get("batch/turns", 0.0) for row in rows) / 1000
    )
  turns = [v for k, v in rows[-1].values.items() if k.startswith(TURNS)]
  values[_LAST_TURNS] = statistics.fmean(turns) if turns else math.nan
  values[MINUTES] = costs[MINUTES][-1]
  values[_AFTER_FIRST] = costs[MINUTES][-1] - costs[MINUTES][0]
  values["hours"] = run.hours or math.nan
  return {name: value for name, value in values.items() if math.isfinite(value)}


def _staleness(rows: Sequence[Row]) -> float:
  """Returns the mean age of all groups, of all starts of a run."""
  names = {name for row in rows for name in row.values}
  groups = {
    int(name.removeprefix(_AGES)): counted(rows, name)
    for name in names
    if name.startswith(_AGES)
  }
  total = sum(age * number for age, number in groups.items())
  return total / sum(groups.values()) if any(groups.values()) else math.nan


def _alarms(
  runs: Mapping[str, Mapping[int, Run]],
) -> dict[Key, dict[str, float]]:
  """Returns the updates before the collapse alarm was raised first.

  All of a run's, if it never was, so that a mean over runs is the least that it
  can be. Nothing if no run had an alarm.
  """
  alarms = {}
  is_raised = False
  for arm, seeds in runs.items():
    for seed, run in seeds.items():
      rows = [row for row in run.rows if row.stage == RL]
      raised = [n for n, row in enumerate(rows) if row.values.get(COLLAPSED)]
      is_raised |= bool(raised)
      if any(COLLAPSED in row.values for row in rows):
        alarms[arm, seed] = {ALARM: float(raised[0] if raised else len(rows))}
  return alarms if is_raised else {}


def _times_to_success(runs: Mapping[Key, Run]) -> dict[Key, dict[str, float]]:
  """Returns when runs reached the last two levels that all of them reach.

  Success is that of training rollouts, the mean of the tasks, smoothed over 5
  updates. Levels that a run begins at are left out: they cost it nothing.
  """
  curves = {}
  for key, run in runs.items():
    names = {name for row in run.rows if row.stage == RL for name in row.values}
    tasks = sorted(name for name in names if name.startswith(f"{SUCCESS}/"))
    found = smoothed(run, tasks, MINUTES) if tasks else None
    if found is None:
      return {}
    curves[key] = found
  if not curves:
    return {}
  highest = min(float(success.max()) for _, success in curves.values())
  begin = max(float(success[0]) for _, success in curves.values())
  steps = range(_STEP, 101, _STEP)
  levels = [p for p in steps if begin < p / 100 <= highest][-2:]
  return {
    key: {
      f"{TO_SUCCESS}{percents}": float(
        cost[success >= percents / 100][0] - cost[0]
      )
      for percents in levels
    }
    for key, (cost, success) in curves.items()
  }


def _mean(rows: Sequence[Row], name: str) -> float:
  values = [row.values.get(name, math.nan) for row in rows]
  finite = [value for value in values if math.isfinite(value)]
  return statistics.fmean(finite) if finite else math.nan


def rows_of(values: Values) -> Iterator[Mapping[str, object]]:
  """Returns the rows of `diagnostics.csv`."""
  for arm, seeds in values.items():
    for seed, found in seeds.items():
      for name, value in found.items():
        yield {
          "arm": arm,
          "seed": seed,
          "diagnostic": name,
          "value": f"{value:.6g}",
        }


def read_diagnostics(path: pathlib.Path) -> Values:
  """Reads a `diagnostics.csv`. Raises `ConfigError` if it is none."""
  values: dict[str, dict[int, dict[str, float]]] = {}
  try:
    with path.open(newline="", encoding="utf-8-sig") as file:
      for row in csv.DictReader(file):
        run = values.setdefault(row["arm"], {}).setdefault(int(row["seed"]), {})
        run[row["diagnostic"]] = float(row["value"])
  except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
    raise ConfigError(
      f"{path} cannot be read as the diagnostics.csv of a comparison: {error!r}"
    ) from error
  return values


def columns(values: Values) -> dict[str, Diagnostic]:
  """Returns the diagnostics that some run has."""
  names = {
    name
    for seeds in values.values()
    for found in seeds.values()
    for name in found
  }
  families = {
    name: dataclasses.replace(
      each, title=each.title.format(name.removeprefix(prefix))
    )
    for prefix, each in FAMILIES.items()
    for name in sorted(names)
    if name.startswith(prefix)
  }
  return {
    name: each for name, each in {**ALL, **families}.items() if name in names
  }


def table(values: Values) -> list[tuple[str, list[TableCell]]]:
  """Returns a row per arm: means over seeds, with the least and the most."""
  names = columns(values)
  return [
    (
      f"{arm} ({len(seeds)})",
      [
        _cell([found[name] for found in seeds.values() if name in found])
        for name in names
      ],
    )
    for arm, seeds in values.items()
    if seeds
  ]


def _cell(values: Sequence[float]) -> TableCell:
  if not values:
    return TableCell("")
  low, high = min(values), max(values)
  note = f"{low:.3g} to {high:.3g}" if len(values) > 1 else ""
  return TableCell(f"{statistics.fmean(values):.3g}", note)
