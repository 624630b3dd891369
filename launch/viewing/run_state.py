"""Reads the newest numbers, the curves and the faults of a run."""

import functools
import pathlib
import time
from collections.abc import Sequence

from agentrl_jax.controller.metrics import WINDOW, stopped_tasks
from launch.processes.fault_log import ALARM, read_faults, split_alarms
from launch.processes.fault_log import FILE as FAULTS
from launch.reports.curves import ALARMS, skipped_updates
from launch.reports.html import fault_text
from launch.reports.metrics_file import FILE, Row, read_metrics
from launch.reports.plots import run_plots
from launch.reports.schema import Drawing, FaultLine, RunNow
from launch.reports.summary import read_evaluation
from launch.storage.run_config import run_config

_STAGE = "rl"
_FAULTS, _ALARMS = 20, 4  # the latest are shown
# Names as in docs/reading_a_run.md, and how the page calls them.
_FIGURES = {
  "reward/mean": "mean reward",
  "staleness/mean": "updates of staleness",
  "queue/fill": "queue filled",
  "seconds/wait": "seconds of waiting for groups",
  "seconds/train": "seconds of training",
  "engine/tokens_per_s": "tokens per second",
}
_BY_TASK = "rollout/success/"
_SUCCESS_OF = f"of the latest {WINDOW} training episodes, sampled"


class RunState:
  """Reads the files of one run anew when they have changed."""

  def __init__(self, run: pathlib.Path):
    self._run = run
    config = run_config(run)
    self.name = str(config.name)
    self._steps = int(config.train.steps)
    # Of long runs both take seconds, and the page asks every few seconds.
    self._curves = functools.lru_cache(maxsize=1)(self._draw)
    self._rows = functools.lru_cache(maxsize=1)(self._read_rows)

  def now(self) -> RunNow:
    """Returns the newest numbers."""
    rows = [row for row in self._metrics() if row.stage == _STAGE]
    values = rows[-1].values if rows else {}
    kept = read_faults(self._run / FAULTS)
    alarms, faults = split_alarms(kept)
    holds = any(values.get(name) for name in ALARMS)
    return RunNow(
      name=self.name,
      is_finished=(self._run / "done" / "run.json").exists(),
      update=rows[-1].step if rows else 0,
      updates=self._steps,
      age_s=max(time.time() - rows[-1].time_s, 0.0) if rows else None,
      figures={
        text: values[name] for name, text in _FIGURES.items() if name in values
      }
      | skipped_updates(rows),
      success={
        name.removeprefix(_BY_TASK): value
        for name, value in values.items()
        if name.startswith(_BY_TASK)
      },
      success_of=_SUCCESS_OF,
      stopped=stopped_tasks(values),
      alarms=[
        f"update {fault.version}: {fault_text(fault)}"
        for fault in alarms[-_ALARMS:]
        if holds and fault.kind == ALARM
      ],
      num_faults=len(faults),
      faults=[
        FaultLine(
          time_s=fault.time_s, update=fault.version, text=fault_text(fault)
        )
        for fault in faults[-_FAULTS:]
      ],
    )

  def curves(self) -> list[Drawing]:
    """Draws the curves, unless nothing has changed since they were drawn."""
    paths = [self._run / FILE, *self._evaluation_files()]
    return self._curves(
      tuple((p.name, p.stat().st_size) for p in paths if p.exists())
    )

  def _draw(self, stamp: object) -> list[Drawing]:
    del stamp  # the key of the cache
    evaluations = [read_evaluation(path) for path in self._evaluation_files()]
    return [
      Drawing(title=plot.title, note=plot.note, svg=plot.svg())
      for plot in run_plots(self._metrics(), evaluations)
    ]

  def _metrics(self) -> Sequence[Row]:
    path = self._run / FILE
    return self._rows(path.stat().st_size) if path.exists() else ()

  def _read_rows(self, size: int) -> Sequence[Row]:
    del size  # the key of the cache
    return read_metrics(self._run / FILE)

  def _evaluation_files(self) -> list[pathlib.Path]:
    return sorted((self._run / "evaluations").glob("*.json"))
