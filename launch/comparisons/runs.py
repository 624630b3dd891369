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
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading
from configs.base import flat_keys
from launch.comparisons import attempts as attempt_files
from launch.reports.metrics_file import FILE, Row, read_metrics
from launch.reports.summary import (
  Evaluation,
  Score,
  Summary,
  read_evaluation,
  read_summary,
)
from launch.storage.run_config import read_config
from launch.sweeps.cells import (
  CellState,
  last_sentence,
  log_of,
  run_of,
  state_of,
)
from launch.sweeps.plan import RECORD, SET_BY_SWEEP, read_record

CONFIG = "config.yaml"
# Keys in which the runs of one arm may differ; a sweep may add updates.
_OF_A_RUN = (*SET_BY_SWEEP, "train.steps")
_OF_REPORT = "report."
_SERVERS = "rollouts.servers"
_OF_A_SCORE = ("success", "low", "high", "reward")
_SEED = re.compile(r"[-_]?(?:s|seed)-?\d+$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One run: finished, running, stopped, or not begun."""

  name: str
  seed: int
  state: CellState
  why: str = ""  # the last sentence of a run that stopped
  rows: Sequence[Row] = ()  # of its metrics
  evaluations: Sequence[Evaluation] = ()
  # By flat key; empty if it has not begun, or is of a finals.csv.
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  commit: str = ""  # of a run with a summary, as the next
  hours: float = 0.0  # of all its stages

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
  keys: Mapping[str, Any]  # whose values are not those of all arms
  runs: Mapping[int, Run]


def read_arms(folders: Sequence[pathlib.Path]) -> list[Arm]:
  """Reads sweeps, runs and finals; others are compared with the first arm.

  An arm whose seeds are in several folders is one arm. Raises `ConfigError` for
  a folder that is neither, and for an arm that has a seed twice.
  """
  arms: dict[str, dict[int, Run]] = {}
  for name, run in _named([x for folder in folders for x in _read(folder)]):
    runs = arms.setdefault(name, {})
    if run.seed not in runs or not _has_begun(runs[run.seed]):
      runs[run.seed] = run
    elif _has_begun(run):
      raise ConfigError(
        f"the arm {name} has two runs of the seed {run.seed}: name each run "
        "once, and arms of other settings one at a time"
      )
  for name, runs in arms.items():
    texts = {json.dumps(_shared_keys(r)) for r in runs.values() if r.config}
    if len(texts) > 1:
      raise ConfigError(
        f"runs of the arm {name} have different settings: compare the folders "
        "one at a time"
      )
  return [Arm(name, _keys_of(name, arms), runs) for name, runs in arms.items()]


def _read(folder: pathlib.Path) -> list[tuple[str, Run]]:
  """Returns runs, with the name of their arm; "" of a run by itself."""
  if folder.suffix == ".csv":
    return read_finals(folder)
  if (folder / RECORD).exists():
    return [
      (
        cell.arm,
        read_run(
          run_of(folder, cell), seed=cell.seed, log=log_of(folder, cell)
        ),
      )
      for cell in read_record(folder).cells
    ]
  if (folder / CONFIG).exists():
    return [("", read_run(folder))]
  raise ConfigError(
    f"{folder} is neither a run ({CONFIG}) nor a sweep ({RECORD}): name "
    "folders that launch.train or launch.sweep made"
  )


def _named(runs: Sequence[tuple[str, Run]]) -> list[tuple[str, Run]]:
  """Names the arms of runs by themselves: as the first of the same config."""
  names: dict[str, str] = {}
  found = []
  for arm, run in runs:
    same = json.dumps(_shared_keys(run), sort_keys=True)
    name = arm or names.setdefault(same, _SEED.sub("", run.name) or run.name)
    found.append((name, run))
  return found


def _has_begun(run: Run) -> bool:
  return bool(run.config or run.evaluations)


def read_run(
  folder: pathlib.Path,
  *,
  seed: int | None = None,
  log: pathlib.Path | None = None,
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
    state=state,
    why=last_sentence(log) if log and state is CellState.STOPPED else "",
    rows=read_metrics(folder / FILE) if (folder / FILE).exists() else [],
    evaluations=evaluations,
    config=config,
    commit=str(summary.facts["commit"]) if summary else "",
    hours=summary.total_wall_s / 3600 if summary else 0.0,
  )


def read_finals(path: pathlib.Path) -> list[tuple[str, Run]]:
  """Reads runs and their arms from a `finals.csv`."""
  runs: dict[tuple[str, int], Run] = {}
  scores: dict[tuple[str, int], dict[tuple[str, str], dict[str, Score]]] = {}
  with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
    for row in csv.DictReader(file):
      key = arm, seed = row["arm"], int(row["seed"])
      of_run = scores.setdefault(key, {})
      of_run.setdefault((row["stage"], row["mode"]), {})[row["task"]] = Score(
        n=int(row["n"]), **{name: float(row[name]) for name in _OF_A_SCORE}
      )
      runs[key] = Run(
        name=f"{arm}-s{seed}",
        seed=seed,
        state=CellState(row["state"]),
        evaluations=[Evaluation(*which, of) for which, of in of_run.items()],
      )
  return [(arm, run) for (arm, _), run in runs.items()]


def _shared_keys(run: Run) -> dict[str, Any]:
  """Returns the config's keys that the runs of one arm share."""
  shared = {
    k: v
    for k, v in run.config.items()
    if k not in _OF_A_RUN and not k.startswith(_OF_REPORT)
  }
  if _SERVERS in shared:  # their addresses are the run's, not their number
    shared[_SERVERS] = len(shared[_SERVERS].split(","))
  return shared


def _keys_of(
  name: str, arms: Mapping[str, Mapping[int, Run]]
) -> dict[str, Any]:
  """Returns the keys of an arm's config that set it apart from another."""
  configs = {
    arm: next((_shared_keys(r) for r in runs.values() if r.config), {})
    for arm, runs in arms.items()
  }
  others = [config for config in configs.values() if config]
  return {
    key: value
    for key, value in configs[name].items()
    if any(other.get(key) != value for other in others)
  }
