"""Runs the little of a sweep that its check reads, and says what it shows.

Cells of the check are cells of the sweep, which goes on with them. Until then
they keep all of their groups, which the arms' advantages are compared on.
"""

import dataclasses
import functools
import json
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import ml_collections
from rich.table import Table

from agentrl_jax.data.record_file import read_groups
from agentrl_jax.data.records import Group
from agentrl_jax.errors import ConfigError
from agentrl_jax.files import write_whole
from agentrl_jax.metrics import FILE, Row, read_metrics
from configs.base import flat_keys
from configs.experiment import Contrast
from launch.comparisons.attempts import by_environment, read_attempts
from launch.config.settings import read_settings
from launch.experiments import treatment
from launch.experiments.check import (
  Answer,
  Configs,
  ContrastCheck,
  check_contrast,
  detectable_lines,
  start_reason,
  sweep_hours,
  update_seconds,
)
from launch.experiments.start import (
  Attempts,
  TaskStart,
  hopeless_tasks,
  starts_of,
)
from launch.reports.curves import RL
from launch.reports.facts import ROOT
from launch.reports.numbers import duration, interval, percent
from launch.storage.run_directory import OTHER, RunDirectory
from launch.sweeps.cells import progress_of, run_of
from launch.sweeps.plan import Cell, SweepPlan

FOLDER = "check"  # of a sweep's folder: check.json, and the attempts
NUM_TASKS = 64  # of each environment, that the warm start attempts
NUM_UPDATES = 6  # of each arm that others are compared with
KEEP_ALL = "--config.report.keep_groups=1000000"
_KEPT_SHARE = 0.5  # of a batch's groups, below which they stand for nothing

# Runs cells until a question is answered by yes; False if it was interrupted.
RunCells = Callable[[SweepPlan, Configs, Callable[[], bool]], bool]


@dataclasses.dataclass(frozen=True)
class Checked:
  """All that the check of a sweep says."""

  starts: Sequence[TaskStart]
  contrasts: Sequence[ContrastCheck]
  lines: Sequence[str]  # on tasks, differences that can be found, and time

  @property
  def table(self) -> Table:
    """The state of the warm start, a row for each environment."""
    table = Table(
      "task",
      "sampled",
      "95 %",
      "greedy",
      "any attempt",
      "reward sd",
      "signal in groups",
      "success differs in groups",
    )
    for each in self.starts:
      table.add_row(
        each.task,
        percent(each.success),
        interval(each.low, each.high),
        "" if each.greedy is None else percent(each.greedy),
        percent(each.reachable),
        f"{each.reward_spread:.2f}",
        percent(each.signal),
        percent(each.differ),
      )
    return table

  @property
  def can_show_nothing(self) -> bool:
    """True if every contrast is a null by construction."""
    answers = {each.answer for each in self.contrasts}
    return answers == {Answer.NULL}


def contrasts_of(plan: SweepPlan) -> list[str]:
  """Returns the contrasts of the plan, else of every arm with the first."""
  if plan.experiment:
    return list(plan.experiment.contrasts)
  first, *others = plan.arms
  return [f"{arm} - {first}" for arm in others]


def cells_of(plan: SweepPlan) -> list[Cell]:
  """Returns the cells that are played: of arms that others are compared with.

  The first cell of the sweep, if these are sums of arms or not of this command.
  """
  bases = {Contrast.parse(text).before for text in contrasts_of(plan)}
  cells = [Cell(arm, plan.seeds[0]) for arm in plan.arms if arm in bases]
  return cells or plan.cells[:1]


def rehearse(
  plan: SweepPlan,
  configs: Configs,
  folder: pathlib.Path,
  run_cells: RunCells,
  *,
  at_once: int,
) -> Checked | None:
  """Runs what the check needs and judges every contrast; None: interrupted.

  Raises `ConfigError` if a cell or the evaluation of its warm start fails.
  """
  seed = plan.seeds[0]
  texts = contrasts_of(plan)
  sides = [Contrast.parse(text) for text in texts]
  cells = cells_of(plan)
  first = cells[0]
  if not _play(plan, configs, folder, run_cells, cells):
    return None
  config = configs[first]
  mode = plan.experiment.mode if plan.experiment else "greedy"
  starts = starts_of(
    _attempt(plan, first, config, folder, samples=config.group.size),
    config.group.size,
    incomplete_reward=config.advantage.incomplete_reward,
    greedy=_attempt(plan, first, config, folder, samples=0)
    if mode == "greedy"
    else None,
  )
  start = start_reason(starts, plan.experiment, mode=mode)
  if (
    plan.experiment and plan.experiment.is_of_training and config.agents.program
  ):
    start = None  # the attempts are without the agents of training
  num_tasks = config.evaluation.num_tasks * len(config.tasks.names)
  lines = hopeless_tasks(starts)
  if plan.experiment is None:
    lines += detectable_lines(num_tasks, len(plan.seeds))
  checked = Checked(
    starts,
    [
      _check(text, side, configs, folder, seed, start)
      for text, side in zip(texts, sides, strict=True)
    ],
    [*lines, _time_line(plan, config, run_of(folder, first), at_once)],
  )
  record = json.dumps(dataclasses.asdict(checked), indent=1)
  write_whole(folder / FOLDER / "check.json", record)
  return checked


def _play(
  plan: SweepPlan,
  configs: Configs,
  folder: pathlib.Path,
  run_cells: RunCells,
  cells: Sequence[Cell],
) -> bool:
  """Runs a few updates of each cell; False if it was interrupted."""
  for cell in cells:
    steps = min(NUM_UPDATES, configs[cell].train.steps)
    run = run_of(folder, cell)
    is_whole = run_cells(
      dataclasses.replace(
        plan.only(cell), overrides=[*plan.overrides, KEEP_ALL]
      ),
      {cell: configs[cell]},
      functools.partial(_has_updates, run, steps),
    )
    if not is_whole:
      return False
  return True


def _has_updates(run: pathlib.Path, number: int) -> bool:
  progress = progress_of(run)
  return bool(progress and progress.stage == RL and progress.step >= number)


def _attempt(
  plan: SweepPlan,
  cell: Cell,
  config: ml_collections.ConfigDict,
  folder: pathlib.Path,
  *,
  samples: int,
) -> Attempts:
  """Lets the warm start attempt training tasks; no samples: once, greedily."""
  kind = "sampled" if samples else "greedy"
  output = folder / FOLDER / f"{cell.name}-{kind}.json"
  tasks = ",".join(f"{name}/train" for name in config.tasks.names)
  command = [
    sys.executable,
    "-m",
    "launch.evaluate",
    *plan.arguments(cell, folder),
    "--policy=warm_start",
    f"--run={run_of(folder, cell)}",
    "--nogreedy" if samples else "--greedy",
    f"--tasks={tasks}",
    f"--samples={samples or 1}",
    f"--config.evaluation.num_tasks={NUM_TASKS}",
    f"--output={output}",
  ]
  done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
  if done.returncode:
    raise ConfigError(
      f"the warm start could not be evaluated: {shlex.join(command)} ended "
      f"with status {done.returncode}"
    )
  attempts = read_attempts(output.with_suffix(".attempts.jsonl"))
  return by_environment(attempts)


# --- Contrasts ----------------------------------------------------------------


def _check(
  text: str,
  sides: Contrast,
  configs: Configs,
  folder: pathlib.Path,
  seed: int,
  start: str | None,
) -> ContrastCheck:
  cells = [Cell(arm, seed) for arm in (sides.before, sides.after)]
  if any(cell not in configs for cell in cells):
    arms = ", ".join(c.arm for c in cells if c not in configs)
    why = f"{arms}: no arm of this command, or a sum of several"
    return ContrastCheck(text, Answer.NOT_MEASURED, why)
  before, after = (configs[cell] for cell in cells)
  run = run_of(folder, cells[0])
  return judge(
    text,
    before,
    after,
    groups=read_batches(run, before.admission.groups_per_step),
    rows=rl_rows(run),
    start=start,
  )


def judge(
  text: str,
  before: ml_collections.ConfigDict,
  after: ml_collections.ConfigDict,
  *,
  groups: Sequence[Sequence[Group]],
  rows: Sequence[Row],
  start: str | None = None,
) -> ContrastCheck:
  """Judges a contrast by batches and metrics of `before`."""
  of_advantages, of_versions, others = treatment.split_keys(
    differing_keys(before, after)
  )
  settings = read_settings(before), read_settings(after)
  measures, batches, versions = [], [], {}
  if of_advantages:
    comparison = treatment.AdvantageComparison(*settings)
    if comparison.is_possible:
      batches = [comparison.measure(batch) for batch in groups]
    measures.append(treatment.judge_advantages(batches))
  if of_versions:
    versions = treatment.measure_versions(rows, *settings, before.train.steps)
    measures.append(treatment.judge_versions(versions))
  found = check_contrast(text, measures, others, start)
  return dataclasses.replace(found, batches=batches, versions=versions)


def differing_keys(
  before: ml_collections.ConfigDict, after: ml_collections.ConfigDict
) -> list[str]:
  """Returns the keys in which two configs differ."""
  one, other = dict(flat_keys(before)), dict(flat_keys(after))
  return sorted(key for key in {*one, *other} if one.get(key) != other.get(key))


def read_batches(run: pathlib.Path, num_groups: int) -> list[list[Group]]:
  """Reads the batches of which a run has kept most groups."""
  paths = sorted((run / "trajectories").glob("[0-9]*.jsonl.gz"))
  batches = [list(read_groups(path)) for path in paths]
  return [each for each in batches if len(each) >= _KEPT_SHARE * num_groups]


def rl_rows(run: pathlib.Path) -> list[Row]:
  """Reads the metrics of a run's updates; none if there are none."""
  path = run / FILE
  rows = read_metrics(path) if path.exists() else []
  return [row for row in rows if row.stage == RL]


def _time_line(
  plan: SweepPlan,
  config: ml_collections.ConfigDict,
  run: pathlib.Path,
  at_once: int,
) -> str:
  spent: Mapping[str, float] = RunDirectory(run).seconds()
  evaluations = [
    seconds
    for name, seconds in spent.items()
    if name.startswith("evaluate_warm_start")
  ]
  update_s = update_seconds(rl_rows(run))
  hours = sweep_hours(
    before_rl_s=sum(
      seconds
      for name, seconds in spent.items()
      if name not in (RL, OTHER) and not name.startswith("evaluate_rl")
    ),
    # RL is evaluated as the warm start is; the rest is to start and compile.
    evaluation_s=sum(evaluations) + spent.get(OTHER, 0.0),
    update_s=update_s,
    steps=config.train.steps,
    num_arms=len(plan.arms),
    num_seeds=len(plan.seeds),
    at_once=at_once,
  )
  return (
    f"estimated time of all cells ({len(plan.cells)}): "
    f"{duration(3600 * hours)} ({duration(update_s)} for an update, "
    f"{config.train.steps} of them; {at_once} at once)"
  )
