"""States of a sweep's cells, read from the folders of their runs."""

import enum
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading
from launch.reports.curves import VALIDATION
from launch.reports.metrics_file import FILE
from launch.reports.numbers import stage_name
from launch.reports.summary import read_summary
from launch.storage.lock import is_held
from launch.storage.run_config import read_config
from launch.storage.run_directory import STEPS, changed_settings, describe
from launch.sweeps.plan import Cell

_TAIL = 1 << 16  # bytes of a file's end that are read for its last lines


class CellState(enum.StrEnum):
  """State of a cell, as far as its files say."""

  WAITING = "waiting"  # has not begun
  STOPPED = "stopped"  # has begun, and can go on
  RUNNING = "running"  # a process is at work in its folder
  FINISHED = "finished"
  FAILED = "failed"  # given up by this sweep; its log says why


def run_of(folder: pathlib.Path, cell: Cell) -> pathlib.Path:
  """Returns the folder of the cell's run."""
  return folder / "cells" / cell.name


def log_of(folder: pathlib.Path, cell: Cell) -> pathlib.Path:
  """Returns the file of the cell's output, of all its starts."""
  return folder / "logs" / f"{cell.name}.log"


def require_same_configs(
  configs: Mapping[Cell, ml_collections.ConfigDict], folder: pathlib.Path
) -> None:
  """Refuses an arm whose config is not that of its cells that have begun.

  Its keys may be the same: what else `get_config` does may have changed.
  Updates may be added, and none taken away.
  """
  of_arms = {cell.arm: config for cell, config in configs.items()}
  for path in sorted((folder / "cells").glob("*/config.yaml")):
    arm = path.parent.name.rpartition("-s")[0]
    if arm not in of_arms:
      continue
    changed = {
      key: (had, has)
      for key, (had, has) in changed_settings(path, of_arms[arm]).items()
      if key != "seed" and not (key == STEPS and has > had)
    }
    if changed:
      raise ConfigError(
        f"{path.parent} is a run of the arm {arm} with other settings: "
        f"{describe(changed)}. Set them back, give the changed arm another "
        "name, or choose another --folder"
      )


def state_of(run: pathlib.Path, steps: int = 0) -> CellState:
  """Reads the state of a run; whether it failed, the sweep knows.

  One that has finished with fewer updates than `steps` can go on.
  """
  if not run.exists():
    return CellState.WAITING
  if is_held(run / "lock"):
    return CellState.RUNNING
  summary = run / "summary.json"
  if not summary.exists() or not read_summary(summary).is_finished:
    return CellState.STOPPED
  config = run / "config.yaml"
  with reading(config):
    had = read_config(config)["train"]["steps"]
  return CellState.FINISHED if had >= steps else CellState.STOPPED


def progress_of(run: pathlib.Path) -> str:
  """Says where a run is, by the last whole line of its metrics.

  Evaluations during RL are passed over: they say where they began.
  """
  for line in reversed(_last_lines(run / FILE)):
    try:
      row: dict[str, Any] = json.loads(line)
      if not row["stage"].startswith(f"{VALIDATION}_"):
        return f"{stage_name(row['stage'])} {row['step']}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
      continue  # half a line, or none of metrics
  return "starts"


def last_sentence(log: pathlib.Path) -> str:
  """Returns the last line that a log has, for people."""
  lines = [line for line in _last_lines(log) if line.strip()]
  return lines[-1].strip() if lines else "it said nothing"


def _last_lines(path: pathlib.Path) -> list[str]:
  try:
    with path.open("rb") as file:
      file.seek(max(0, path.stat().st_size - _TAIL))
      return file.read().decode(errors="replace").splitlines()
  except FileNotFoundError:
    return []
