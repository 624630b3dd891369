"""The files of a run that must agree with its checkpoints.

What an update was made of is on disk before a checkpoint can hold the update;
what belongs to updates after the checkpoint of a start is removed.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.controller.groups.collector import CollectorState
from agentrl_jax.data.record_file import (
  group_from_json,
  group_to_json,
  write_groups,
)
from agentrl_jax.data.records import Group, LearnedTurn, Task, Trajectory
from agentrl_jax.files import append_whole, reading, write_whole, writing
from launch.processes.fault_log import FILE as FAULTS
from launch.processes.fault_log import FaultLog
from launch.reports.metrics_file import MetricsWriter
from launch.run.context import RunContext
from launch.run.groups.kept_groups import KeptGroups

STAGE = "rl"


class RunRecord:
  """Metrics, trained groups, trajectories and faults, update by update."""

  def __init__(self, context: RunContext, metrics: MetricsWriter) -> None:
    self._folder, self._metrics = context.folder, metrics
    self._trained = TrainedGroups(context.folder.root / "trained_groups.jsonl")
    self._kept = KeptGroups(
      context.config.report.keep_groups, seed=context.settings.seed
    )
    self.faults = FaultLog(context.folder.root / FAULTS)

  def begin(self, version: int) -> None:
    """Removes what is of versions from `version` on: the policy lacks it."""
    self._metrics.truncate_after(STAGE, version)
    self._trained.truncate(version)

  def add_groups(
    self,
    version: int,
    groups: Sequence[Group],
    learned: Callable[[Trajectory], tuple[LearnedTurn, ...] | None],
  ) -> None:
    """Writes the groups that `version` was trained on, and what was learned."""
    self._trained.add(version, [group.id for group in groups])
    kept = self._kept.choose(groups, version)
    write_groups(self._folder.trajectories(version), kept, learned)

  def add_metrics(self, version: int, metrics: Mapping[str, float]) -> None:
    """Writes the metrics of the update that made `version`."""
    self._metrics.write(version, metrics, STAGE)
    self.faults.update(version, metrics)


def position_to_json(state: CollectorState) -> dict[str, Any]:
  """Encodes the controller's state for a checkpoint."""
  return {
    "stream": dict(state.stream),
    "in_flight": [[p, dataclasses.asdict(task)] for p, task in state.in_flight],
    "queued": [group_to_json(group) for group in state.queued],
  }


def position_from_json(body: Mapping[str, Any]) -> CollectorState:
  """Inverts `position_to_json`."""
  return CollectorState(
    stream=body["stream"],
    in_flight=tuple((int(p), Task(**task)) for p, task in body["in_flight"]),
    queued=tuple(group_from_json(group) for group in body["queued"]),
  )


class TrainedGroups:
  """Records the groups that each update was made of, one line an update."""

  def __init__(self, path: pathlib.Path):
    self._path = path

  def add(self, version: int, groups: Sequence[str]) -> None:
    """Records the groups that took the policy from `version` to the next."""
    with self._path.open("ab", buffering=0) as file:
      line = json.dumps({"version": version, "groups": list(groups)}) + "\n"
      append_whole(self._path, line, file)
      with writing(self._path):
        os.fsync(file.fileno())  # before a checkpoint can hold the update

  def truncate(self, version: int) -> None:
    """Removes the updates from `version` on: they are not in the policy."""
    if not self._path.exists():
      return
    with reading(self._path):
      kept = [
        line
        for line in self._path.read_text().splitlines(keepends=True)
        if line.endswith("\n") and json.loads(line)["version"] < version
      ]
    write_whole(self._path, "".join(kept))
