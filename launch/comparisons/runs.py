"""Runs to compare, grouped into arms; read from the files of the runs.

A folder is a sweep, whose record names the arms, or a run. Runs of one arm
differ in nothing but their seed. `finals.csv`, which a comparison writes,
stands for the runs that it was made of, without their curves.
"""

import csv
import dataclasses
import json
import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.metrics import FILE, Row, read_metrics
from configs.base import flat_keys
from launch.comparisons import attempts as attempt_files
from launch.config.command_line import load_config
from launch.reports.summary import (
  TRAINING,
  Evaluation,
  Score,
  Summary,
  read_evaluation,
  read_summary,
)
from launch.storage.run_config import read_config
from launch.sweeps.cells import CellState, num_extended, run_of, state_of
from launch.sweeps.plan import RECORD, SweepPlan, read_record
from launch.sweeps.runner import read_failures

CONFIG = "config.yaml"
# Keys in which the runs of one arm may differ.
_OF_A_RUN = ("seed", "name", "workdir", "compile_cache", "warm_start.store")
# And those of what is kept, which change no update: a sweep's check keeps more.
_OF_FILES = ("checkpoint.keep", "checkpoint.keep_every")
_OF_REPORT = "report."
_STEPS = "train.steps"
UNKNOWN = "unknown"
_SERVERS = "rollouts.servers"
_MOST_NAMED = 8  # keys that a sentence names
_MOST_OF_ERROR = 200  # characters that a sentence quotes
_OF_A_SCORE = ("success", "low", "high", "reward")
_SEED = re.compile(r"[-_]?(?:s|seed)-?\d+$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One run: finished, running, stopped, failed, or not begun."""

  name: str
  seed: int
  state: CellState
  why: str = ""  # the last sentence of a run that failed
  rows: Sequence[Row] = ()  # of its metrics
  evaluations: Sequence[Evaluation] = ()
  # By flat key; empty if it has not begun, or is of a finals.csv.
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  commit: str = ""  # of a run with a summary, as the next
  hours: float = 0.0  # of all its stages
  num_extended: int = 0  # times that it was evaluated and then went on

  def evaluation(self, stage: str, mode: str) -> Evaluation | None:
    """Returns that evaluation, or None if it has not been made."""
    for found in self.evaluations:
      if (found.stage, found.mode) == (stage, mode):
        return found
    return None


@dataclasses.dataclass(frozen=True)
class Arm:
  """Runs that differ in nothing but the seed, by seed."""

  name: str
  keys: Mapping[str, Any]  # that set it apart, as its ablation says
  runs: Mapping[int, Run]


def read_arms(folders: Sequence[pathlib.Path]) -> list[Arm]:
  """Reads sweeps and runs; the first arm is what others are compared with.

  Arms are in the order of the folders. Runs that are named one by one are
  grouped into arms, which stand where the first of these runs was named. An arm
  whose seeds are in several folders is one arm. Raises `ConfigError` for a
  folder that is neither, and for two arms of one name.

  Success of training at equal costs is left out of a finals.csv beside others:
  its budget is that of the arms that it was made of.
  """
  arms: list[Arm] = []
  alone: list[Run] = []
  place = 0  # of the arms of runs that are named one by one
  for folder in folders:
    if folder.suffix == ".csv":
      found = read_finals(folder)
      arms += found if len(folders) == 1 else map(_without_training, found)
    elif (folder / RECORD).exists():
      arms += _arms_of_sweep(folder)
    elif (folder / CONFIG).exists():
      place = place if alone else len(arms)
      alone.append(read_run(folder))
    else:
      raise ConfigError(
        f"{folder} is neither a run ({CONFIG}) nor a sweep ({RECORD}): name "
        "folders that launch.train or launch.sweep made"
      )
  arms[place:place] = _grouped(alone)
  merged: dict[str, Arm] = {}
  for arm in arms:
    before = merged.get(arm.name)
    merged[arm.name] = arm if before is None else _merge(before, arm)
  return list(merged.values())


def read_run(
  folder: pathlib.Path, *, seed: int | None = None, why: str = ""
) -> Run:
  """Reads a run's files, whatever state it is in."""
  config: dict[str, Any] = {}
  if (folder / CONFIG).exists():
    config = dict(flat_keys(read_config(folder / CONFIG)))
  summary: Summary | None = None
  if (folder / "summary.json").exists():
    summary = read_summary(folder / "summary.json")
  state = state_of(folder)
  evaluations = [
    read_evaluation(path)
    for path in sorted((folder / "evaluations").glob("*.json"))
  ]
  attempts = folder / attempt_files.FOLDER / f"rl{attempt_files.SUFFIX}"
  if attempts.exists():
    found = attempt_files.pass_evaluation(attempts)
    evaluations += [found] if found else []
  return Run(
    name=folder.name,
    seed=config.get("seed", 0) if seed is None else seed,
    state=CellState.FAILED
    if why and state is not CellState.FINISHED
    else state,
    why=why,
    rows=read_metrics(folder / FILE) if (folder / FILE).exists() else [],
    evaluations=evaluations,
    config=config,
    commit=str(summary.facts["commit"]) if summary else "",
    hours=summary.total_wall_s / 3600 if summary else 0.0,
    num_extended=num_extended(folder),
  )


def read_finals(path: pathlib.Path) -> list[Arm]:
  """Reads arms from a `finals.csv`. Raises `ConfigError` if it is none."""
  scores: dict[str, dict[int, dict[tuple[str, str], dict[str, Score]]]] = {}
  states: dict[tuple[str, int], CellState] = {}
  try:
    with path.open(newline="", encoding="utf-8-sig") as file:
      for row in csv.DictReader(file):
        arm, seed = row["arm"], int(row["seed"])
        states[arm, seed] = CellState(row["state"])
        evaluated = scores.setdefault(arm, {}).setdefault(seed, {})
        tasks = evaluated.setdefault((row["stage"], row["mode"]), {})
        score = Score(
          n=int(row["n"]), **{key: float(row[key]) for key in _OF_A_SCORE}
        )
        if score.n < 1 or not 0 <= score.success <= 1 or row["task"] in tasks:
          raise ValueError(
            f"{row}: each run has each score once, a share of n episodes"
          )
        tasks[row["task"]] = score
    if not scores:
      raise ValueError("it has no row")
  except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
    raise ConfigError(
      f"{path} cannot be read as the finals.csv of a comparison: {error!r}"
    ) from error
  return [
    Arm(
      arm,
      {},
      {
        seed: Run(
          name=f"{arm}-s{seed}",
          seed=seed,
          state=states[arm, seed],
          evaluations=[
            Evaluation(stage, mode, tasks)
            for (stage, mode), tasks in evaluated.items()
          ],
        )
        for seed, evaluated in seeds.items()
      },
    )
    for arm, seeds in scores.items()
  ]


def _without_training(arm: Arm) -> Arm:
  runs = {
    seed: dataclasses.replace(
      run, evaluations=[e for e in run.evaluations if e.mode not in TRAINING]
    )
    for seed, run in arm.runs.items()
  }
  return dataclasses.replace(arm, runs=runs)


def _arms_of_sweep(folder: pathlib.Path) -> list[Arm]:
  plan, failures = read_record(folder), read_failures(folder)
  return [
    _with_equal_updates(
      name,
      keys,
      {
        cell.seed: read_run(
          run_of(folder, cell), seed=cell.seed, why=failures.get(cell.name, "")
        )
        for cell in plan.cells
        if cell.arm == name
      },
    )
    for name, keys in plan.arms.items()
  ]


def _with_equal_updates(
  name: str, keys: Mapping[str, Any], runs: Mapping[int, Run]
) -> Arm:
  """Makes an arm; its runs with fewer updates than others are to go on."""
  most = max((run.config.get(_STEPS, 0) for run in runs.values()), default=0)
  return Arm(
    name,
    keys,
    {
      seed: run
      if run.config.get(_STEPS, most) == most
      else dataclasses.replace(
        run,
        state=CellState.STOPPED
        if run.state is CellState.FINISHED
        else run.state,
        evaluations=[e for e in run.evaluations if e.stage != "rl"],
      )
      for seed, run in runs.items()
    },
  )


def keys_no_arm_sets(arms: Sequence[Arm]) -> list[str]:
  """Returns the keys in which arms differ, and that none of them sets."""
  configs = [
    _without_run(run) for arm in arms for run in arm.runs.values() if run.config
  ]
  if not configs:
    return []
  known = set.intersection(*map(set, configs))  # a later version may have more
  own = {f"{key}." for arm in arms for key in arm.keys}
  return sorted(
    key
    for key in known - _shared(configs)
    if not any(f"{key}.".startswith(each) for each in own)
  )


def _merge(one: Arm, other: Arm) -> Arm:
  """Joins the seeds of one arm; raises `ConfigError` if they are two arms.

  One of which no run has begun is what the other is.
  """
  begun = [
    {s: run for s, run in arm.runs.items() if run.config or run.evaluations}
    for arm in (one, other)
  ]
  both = sorted(begun[0].keys() & begun[1].keys())
  configs = [
    [_without_run(run) for run in runs.values() if run.config] for runs in begun
  ]
  found = [config for of_arm in configs for config in of_arm]
  keys = {key for config in found for key in config} - _shared(found)
  why = ""
  if both:
    why = f"both have the seeds {', '.join(map(str, both))}"
  elif all(begun) and not all(configs):
    why = "one has no config that would show whether they are the same"
  elif keys:
    why = f"they differ in {', '.join(sorted(keys)[:_MOST_NAMED])}"
  if why:
    raise ConfigError(
      f"two arms have the name {one.name}, and {why}: compare them one at a "
      "time"
    )
  # Where one has planned a seed that the other has played, that is the run.
  keys_of = one if begun[0] else other
  return Arm(one.name, keys_of.keys, {**one.runs, **other.runs, **begun[0]})


def _grouped(runs: Sequence[Run]) -> list[Arm]:
  """Groups runs by their config without what belongs to one run."""
  groups: dict[str, list[Run]] = {}
  for run in runs:
    same = json.dumps(_without_run(run), sort_keys=True)
    groups.setdefault(same, []).append(run)
  shared = _shared([json.loads(text) for text in groups])
  arms = []
  for text, members in groups.items():
    seeds = [run.seed for run in members]
    if len(seeds) > len(set(seeds)):
      names = ", ".join(run.name for run in members)
      raise ConfigError(
        f"{names} have the same config, and some the same seed: name each run "
        "once"
      )
    keys = {k: v for k, v in json.loads(text).items() if k not in shared}
    name = _SEED.sub("", members[0].name) or members[0].name
    arms.append(Arm(name, keys, {run.seed: run for run in members}))
  return arms


def _without_run(run: Run) -> dict[str, Any]:
  """Returns the config's keys that the runs of one arm share."""
  shared = {
    k: v
    for k, v in run.config.items()
    if k not in _OF_A_RUN + _OF_FILES and not k.startswith(_OF_REPORT)
  }
  if _SERVERS in shared:  # their addresses are the run's, not their number
    shared[_SERVERS] = len(shared[_SERVERS].split(","))
  return shared


def _shared(configs: Sequence[Mapping[str, Any]]) -> set[str]:
  """Returns the keys whose value is the same in all configs."""
  return (
    {
      key
      for key in configs[0]
      if all(key in c and c[key] == configs[0][key] for c in configs)
    }
    if configs
    else set()
  )


# --- How they were made -------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Override:
  """A key that a sweep sets for all of its cells."""

  key: str
  own: str  # of the config as its file has it now
  value: str


@dataclasses.dataclass(frozen=True)
class Sweep:
  """One sweep of a comparison."""

  folder: str
  command: str
  overrides: Sequence[Override]
  why_unknown: str = ""  # why its file does not say what was overridden


def read_sweeps(folders: Sequence[pathlib.Path]) -> list[Sweep]:
  """Reads how the sweeps among the folders were made."""
  return [
    _sweep(folder)
    for folder in folders
    if folder.is_dir() and (folder / RECORD).exists()
  ]


def _sweep(folder: pathlib.Path) -> Sweep:
  plan = read_record(folder)
  own, why = _own_keys(plan) if plan.overrides else ({}, "")
  words = [word.removeprefix("--config.") for word in plan.overrides]
  return Sweep(
    folder.resolve().name,
    command_of(plan),
    [
      Override(key, str(own.get(key, UNKNOWN)), value)
      for key, _, value in (word.partition("=") for word in words)
    ],
    why,
  )


def command_of(plan: SweepPlan) -> str:
  """Returns the command that makes all cells of a sweep, without its budget.

  Seeds that were added with a gap between them have a command each.
  """
  seeds = sorted(plan.seeds)
  starts = [s for s in seeds if s - 1 not in seeds]
  ends = [s + 1 for s in seeds if s + 1 not in seeds]
  return "\n".join(
    shlex.join(
      [
        "python",
        "-m",
        "launch.sweep",
        f"--ablation={plan.ablation}",
        f"--arms={','.join(plan.arms)}",
        *([f"--first_seed={start}"] if start else []),
        f"--seeds={end - start}",
        *plan.overrides,
      ]
    )
    for start, end in zip(starts, ends, strict=True)
  )


def _own_keys(plan: SweepPlan) -> tuple[Mapping[str, object], str]:
  """Returns the keys of the first arm's config, as its file has them now.

  A file that is gone, or does not work any more, has none: then why it is so.
  """
  try:
    config = load_config([f"--config={plan.ablation}:{next(iter(plan.arms))}"])
    return dict(flat_keys(config)), ""
  except (Exception, SystemExit) as error:  # noqa: BLE001 - not our code
    why = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_OF_ERROR]
    return {}, f"{plan.ablation} cannot be read: {why}"


def updates_sentence(arms: Sequence[Arm], sweeps: Sequence[Sweep]) -> str:
  """Says for how many updates runs were made; "" if no run has a config."""
  numbers = sorted(
    {
      run.config[_STEPS]
      for arm in arms
      for run in arm.runs.values()
      if _STEPS in run.config
    }
  )
  if not numbers:
    return ""
  text = f"{numbers[0]:,}"
  if len(numbers) > 1:
    text += f" to {numbers[-1]:,}"
  sentence = f"Runs are of {text} update{'s' * (numbers[-1] != 1)} of RL"
  own = {
    each.own
    for sweep in sweeps
    for each in sweep.overrides
    if each.key == _STEPS and each.own not in (each.value, UNKNOWN)
  }
  if own:
    sentence += f", where their config has {', '.join(sorted(own))}"
  return f"{sentence}."
