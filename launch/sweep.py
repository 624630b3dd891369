r"""Runs an ablation: every arm with several seeds, within a budget.

  python -m launch.sweep --ablation=configs/ablations/agentrl.py --seeds=5 \
    --budget=2cores --folder=sweeps/agentrl --config.train.steps=20

Any key of the config can be set for all arms, as with launch.train. The same
command goes on after a kill or Ctrl-C, and runs what is not finished. Cells
with the same tasks, model and seed share the stages before RL. `--check` makes
those of one cell and a few updates, and says what the sweep can show, and when.
Elsewhere,
`--render` prints the cells as jobs; options of the renderer follow `--`:

  python -m launch.sweep --ablation=configs/ablations/agentrl.py --seeds=5 \
    --render=jobset -- --image=$IMAGE --learner=v5p-8 --workdir=gs://b/runs
"""

import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import ml_collections
from absl import flags
from rich.table import Table

from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError
from agentrl_jax.metrics import FILE, read_metrics
from launch.comparisons.attempts import (
  Attempt,
  by_environment,
  read_attempts,
)
from launch.comparisons.check import (
  NUM_UPDATES,
  detectable_lines,
  equal_arms,
  hopeless_tasks,
  starts_of,
  sweep_hours,
  update_seconds,
)
from launch.config import command_line
from launch.config.settings import read_settings
from launch.experiments.planned import start_lines
from launch.experiments.power import plan_lines, require_plan
from launch.processes.terminal import plain_console
from launch.reports.curves import RL
from launch.reports.facts import ROOT, run_facts
from launch.reports.numbers import duration, interval, percent
from launch.storage.run_directory import OTHER, RunDirectory
from launch.sweeps.budget import Budget
from launch.sweeps.cells import (
  CellState,
  progress_of,
  require_same_configs,
  run_of,
  state_of,
)
from launch.sweeps.display import SweepDisplay
from launch.sweeps.jobs import render
from launch.sweeps.plan import Cell, SweepPlan, make_plan, write_record
from launch.sweeps.runner import Runner

CONSOLE = plain_console()
CHECK_TASKS = 32  # of each environment, that the check attempts

_ABLATION = flags.DEFINE_string("ablation", None, "A file with ARMS.")
_ARMS = flags.DEFINE_list(
  "arms", [], "Some of its arms; else those of its PLAN, or all."
)
_SEEDS = flags.DEFINE_integer(
  "seeds",
  None,
  "Number of seeds of each arm; those of the file's PLAN, or 5.",
  upper_bound=10_000,
)
_FIRST_SEED = flags.DEFINE_integer("first_seed", 0, "The first of them.")
_BUDGET = flags.DEFINE_string(
  "budget", "", "Of all cells together, as 2cores,16GiB,6h; all cores, if none."
)
_CORES = flags.DEFINE_integer("cores", 1, "Cores of each cell.")
_FOLDER = flags.DEFINE_string(
  "folder", "", "The sweep's folder; sweeps/<name of the ablation>, if none."
)
_CHECK = flags.DEFINE_bool(
  "check",
  False,
  "Make the first cell's warm start and a few updates, and say what the sweep "
  "can show; without --check the same command goes on.",
)
_RENDER = flags.DEFINE_string(
  "render", "", "Print the cells as jobs instead: jobset or queued."
)
flags.mark_flag_as_required("ablation")


def split_arguments(
  arguments: Sequence[str],
) -> tuple[list[str], list[str], list[str]]:
  """Returns the flags, the overrides of all cells, and what follows `--`."""
  own, after = list(arguments), []
  if "--" in own:
    at = own.index("--")
    own, after = own[:at], own[at + 1 :]
  overrides = [word for word in own if word.startswith("--config.")]
  return [word for word in own if word not in overrides], overrides, after


def load_configs(
  plan: SweepPlan, folder: pathlib.Path, cells: Sequence[Cell]
) -> dict[Cell, ml_collections.ConfigDict]:
  """Loads the configs of cells. Raises `ConfigError` if one cannot work."""
  configs = {}
  for cell in cells:
    try:
      configs[cell] = command_line.load_config(plan.arguments(cell, folder))
      read_settings(configs[cell])
    except ConfigError as error:
      raise ConfigError(f"arm {cell.arm}: {error}") from error
  return configs


def sweep(
  plan: SweepPlan,
  configs: Mapping[Cell, ml_collections.ConfigDict],
  folder: pathlib.Path,
  budget: Budget,
) -> int:
  """Runs the cells; returns the number of those that are not finished."""
  runner, _ = _run_cells(plan, configs, folder, budget)
  states = runner.states()
  for cell, sentence in runner.failures.items():
    CONSOLE.print(f"{cell.name} failed: {sentence}", soft_wrap=True)
  left = [c for c, state in states.items() if state is not CellState.FINISHED]
  CONSOLE.print(
    f"{len(states) - len(left)} of {len(states)} cells are finished; "
    f"python -m launch.report {folder}",
    soft_wrap=True,
    highlight=False,
  )
  return len(left)


def _run_cells(
  plan: SweepPlan,
  configs: Mapping[Cell, ml_collections.ConfigDict],
  folder: pathlib.Path,
  budget: Budget,
  is_enough: Callable[[], bool] = lambda: False,
) -> tuple[Runner, bool]:
  """Runs cells until `is_enough`; returns if they were not interrupted."""
  steps = {cell: config.train.steps for cell, config in configs.items()}
  with SweepDisplay(CONSOLE, folder, steps) as display:
    runner = Runner(
      plan, configs, folder, budget, cores_each=_CORES.value, say=display.say
    )
    signal.signal(signal.SIGTERM, _interrupt)
    try:
      runner.run(lambda: display.show(runner.states()), is_enough=is_enough)
    except KeyboardInterrupt:
      display.say(
        "interrupted: the cells save and end; the same command goes on"
      )
      return runner, False
    finally:
      display.show(runner.states())
  return runner, True


def check(
  plan: SweepPlan,
  configs: Mapping[Cell, ml_collections.ConfigDict],
  folder: pathlib.Path,
  budget: Budget,
) -> int:
  """Runs the first cell for a few updates, and prints what it tells.

  Returns the exit status: 1 if it was interrupted.
  """
  cell = plan.cells[0]
  config = configs[cell]
  run = run_of(folder, cell)
  steps = min(NUM_UPDATES, config.train.steps)
  runner, is_whole = _run_cells(
    plan.only(cell),
    {cell: config},
    folder,
    budget,
    lambda: _num_updates(run) >= steps,
  )
  if not is_whole:
    return 1
  if runner.failures:
    raise ConfigError(f"{cell.name} failed: {runner.failures[cell]}")
  attempts = _attempt(plan, cell, config, folder)
  starts = starts_of(
    attempts,
    config.group.size,
    incomplete_reward=config.advantage.incomplete_reward,
  )
  table = Table(
    *("task", "success", "95 %", "reward sd", "groups with a signal"),
    "groups that differ in success",
  )
  for each in starts:
    table.add_row(
      each.task,
      percent(each.success),
      interval(each.low, each.high),
      f"{each.reward_spread:.2f}",
      percent(each.signal),
      percent(each.differ),
    )
  CONSOLE.print(table)
  num_tasks = config.evaluation.num_tasks * len(config.tasks.names)
  lines = hopeless_tasks(starts)
  lines += detectable_lines(num_tasks, len(plan.seeds))
  lines.append(_time_line(plan, config, run, budget))
  for line in lines:
    CONSOLE.print(line, soft_wrap=True, highlight=False)
  return 0


def _num_updates(run: pathlib.Path) -> int:
  progress = progress_of(run)
  return progress.step if progress and progress.stage == RL else 0


def _attempt(
  plan: SweepPlan,
  cell: Cell,
  config: ml_collections.ConfigDict,
  folder: pathlib.Path,
) -> dict[str, dict[Task, list[Attempt]]]:
  """Lets the warm start attempt training tasks, a group of each."""
  output = folder / "check" / f"{cell.name}.json"
  tasks = ",".join(f"{name}/train" for name in config.tasks.names)
  command = [
    *(sys.executable, "-m", "launch.evaluate"),
    *plan.arguments(cell, folder),
    *("--policy=warm_start", f"--run={run_of(folder, cell)}", "--nogreedy"),
    *(f"--tasks={tasks}", f"--samples={config.group.size}"),
    *(f"--config.evaluation.num_tasks={CHECK_TASKS}", f"--output={output}"),
  ]
  done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
  if done.returncode:
    raise ConfigError(
      f"the warm start could not be evaluated: {shlex.join(command)} ended "
      f"with status {done.returncode}"
    )
  attempts = read_attempts(output.with_suffix(".attempts.jsonl"))
  return by_environment(attempts)


def _time_line(
  plan: SweepPlan,
  config: ml_collections.ConfigDict,
  run: pathlib.Path,
  budget: Budget,
) -> str:
  spent = RunDirectory(run).seconds()
  evaluations = [
    seconds
    for name, seconds in spent.items()
    if name.startswith("evaluate_warm_start")
  ]
  update_s = update_seconds(read_metrics(run / FILE))
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
    at_once=budget.cores // _CORES.value,
  )
  return (
    f"all cells ({len(plan.cells)}) take about {duration(3600 * hours)} "
    f"({update_s:.1f} s an update, {config.train.steps} of them; "
    f"{budget.cores // _CORES.value} at once)"
  )


def _experiment_lines(plan: SweepPlan, folder: pathlib.Path) -> list[str]:
  """Says what the plan of the experiment is, and what is not run as planned.

  Raises `ConfigError` for a plan that cannot show what it asks.
  """
  experiment = plan.experiment
  if experiment is None:
    return [
      f"{plan.ablation} has no PLAN: this sweep is exploratory, and its report "
      "judges no outcome that was chosen before"
    ]
  cells = [Cell(arm, plan.seeds[0]) for arm in experiment.arms]
  configs = load_configs(plan, folder, cells)
  require_plan(experiment, configs)
  return [
    *plan_lines(experiment, len(configs[cells[0]].tasks.names)),
    *start_lines(experiment, plan, configs),
  ]


def _interrupt(number: int, frame: object) -> NoReturn:
  del number, frame
  raise KeyboardInterrupt


def main(overrides: Sequence[str], options: Sequence[str]) -> int:
  """Runs or renders what the flags say; returns the exit status."""
  ablation = _ABLATION.value or ""
  plan = make_plan(
    ablation,
    arms=_ARMS.value,
    num_seeds=_SEEDS.value,
    first_seed=_FIRST_SEED.value,
    overrides=overrides,
  )
  name = pathlib.Path(ablation).stem
  folder = pathlib.Path(_FOLDER.value or f"sweeps/{name}").resolve()
  budget = Budget.parse(_BUDGET.value)
  if not 0 < _CORES.value <= budget.cores:
    raise ConfigError(
      f"--cores={_CORES.value} of each cell must be from 1 to the "
      f"{budget.cores} of --budget"
    )
  configs = load_configs(plan, folder, plan.cells)
  planned = _experiment_lines(plan, folder)
  if _RENDER.value:
    CONSOLE.print(
      "\n---\n".join(render(plan, name, _RENDER.value, options)),
      emoji=False,  # a config may have text such as :key:
      highlight=False,
      soft_wrap=True,
    )
    return 0
  require_same_configs(configs, folder)
  for line in (*planned, *equal_arms(configs)):
    CONSOLE.print(line, soft_wrap=True, highlight=False)
  folder.mkdir(parents=True, exist_ok=True)
  states = [state_of(run) for run in (folder / "cells").glob("*")]
  write_record(
    plan,
    folder,
    run_facts(seed=plan.seeds[0], devices=[]),
    cells_finished=states.count(CellState.FINISHED),
    cells_begun=len(states) - states.count(CellState.WAITING),
  )
  if _CHECK.value:
    return check(plan, configs, folder, budget)
  return 1 if sweep(plan, configs, folder, budget) else 0


def run(arguments: Sequence[str]) -> None:
  """Parses the command line; ends the process with the status."""
  own, overrides, options = split_arguments(arguments)
  command_line.run(lambda: sys.exit(main(overrides, options)), argv=own)


if __name__ == "__main__":
  run(sys.argv[1:])
