"""Writes a run's summary, curves and report, from the files of the run.

Nothing is measured here. The printed table is read back from `summary.json`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import ml_collections
from rich.console import Console

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import Task, Trajectory
from agentrl_jax.files import reading
from configs import base
from launch.processes.fault_log import FILE as FAULTS
from launch.processes.fault_log import read_faults
from launch.reports.episodes import Episode
from launch.reports.facts import run_facts
from launch.reports.first_prompts import read_first_prompts
from launch.reports.html import write_report
from launch.reports.metrics_file import FILE, read_metrics
from launch.reports.numbers import percent
from launch.reports.plots import write_curves
from launch.reports.summary import (
  Summary,
  read_evaluation,
  read_summary,
  write_summary,
)
from launch.reports.tables import print_summary
from launch.run.context import RunContext
from launch.run.evaluation import read_episodes
from launch.storage.run_directory import RunDirectory

SHOWN = {"warm_start": "after the warm start", "rl": "after RL"}
_NUM_EPISODES = 6  # that the report shows


def show(context: RunContext, codec: ChatCodec, console: Console) -> None:
  """Writes summary.json, curves.png and report.html, and prints the summary."""
  print_summary(keep(context, codec, is_finished=True), console)
  console.print(f"report: {context.folder.report}")


def keep(
  context: RunContext, codec: ChatCodec | None, *, is_finished: bool
) -> Summary:
  """Writes summary.json, curves.png and report.html of the run so far.

  Without a codec no episode is shown.
  """
  config, run = context.config, context.folder
  evaluations = [
    read_evaluation(path)
    for path in sorted((run.root / "evaluations").glob("*.json"))
  ]
  devices = [f"{d.platform} {d.device_kind}" for d in jax.devices()]
  write_summary(
    Summary(
      name=config.name,
      evaluations=evaluations,
      wall_s=run.seconds(),
      facts=run_facts(seed=context.settings.seed, devices=devices)
      | _final_facts(run, config.train.steps),
      config_changes=changes(config),
      is_finished=is_finished,
    ),
    run.summary,
  )
  summary = read_summary(run.summary)
  metrics = read_metrics(run.root / FILE)
  write_curves(metrics, summary.evaluations, run.curves)
  shown = _episodes(run, codec, _NUM_EPISODES, summary) if codec else []
  faults = read_faults(run.root / FAULTS)
  prompts = read_first_prompts(run.first_prompts)
  write_report(
    summary, metrics, shown, run.report, faults=faults, prompts=prompts
  )
  return summary


def _final_facts(run: RunDirectory, steps: int) -> dict[str, str]:
  """Returns which version ended the run; {} if it is simply the last."""
  if not run.best.exists():
    return {}
  with reading(run.best):
    best = json.loads(run.best.read_text())
    success = best["success"][str(best["version"])]
    return {
      "final_policy": f"update {best['version']} of {steps}, the best of "
      f"{len(best['success'])} evaluations during RL ({best['mode']}, "
      f"{percent(success)})"
    }


def changes(config: ml_collections.ConfigDict) -> dict[str, tuple[Any, Any]]:
  """Returns the keys that differ from their defaults, with both values."""
  return dict(_changed(base.default_values(), config.to_dict()))


def _changed(
  old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
  for key in sorted({*old, *new}):
    before, after = old.get(key), new.get(key)
    name = f"{prefix}{key}"
    if isinstance(before, dict) and isinstance(after, dict):
      yield from _changed(before, after, f"{name}.")
    elif before != after:
      yield name, (before, after)


def _episodes(
  run: RunDirectory, codec: ChatCodec, number: int, summary: Summary
) -> list[Episode]:
  """Returns the same held-out tasks before and after, most telling first."""
  played = {
    stage: read_episodes(run, stage, "greedy")
    if run.trajectories_of(stage, "greedy").exists()
    else {}
    for stage in SHOWN
  }
  tasks = _telling(played["warm_start"], played["rl"])[: max(number // 2, 1)]
  titles = (
    SHOWN if summary.has_warm_start else SHOWN | {"warm_start": "untouched"}
  )
  return [
    Episode(
      trajectory=played[stage][task], title=title, group=str(place), codec=codec
    )
    for place, task in enumerate(tasks)
    for stage, title in titles.items()
  ]


def _telling(
  before: Mapping[Task, Trajectory], after: Mapping[Task, Trajectory]
) -> list[Task]:
  """Orders tasks: learned ones first, environments in turn."""
  both = [task for task in after if task in before]
  seen: dict[tuple[str, bool], int] = {}

  def rank(task: Task) -> tuple[bool, int]:
    learned = after[task].is_success and not before[task].is_success
    kind = (task.name, learned)
    seen[kind] = seen.get(kind, 0) + 1
    return (not learned, seen[kind])

  return sorted(both, key=rank)
