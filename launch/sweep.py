r"""Runs an ablation: every arm with several seeds, within a budget.

  python -m launch.sweep --ablation=configs/ablations/agentrl.py --seeds=5 \
    --budget=2cores --folder=sweeps/agentrl --config.train.steps=20

Any key of the config can be set for all arms, as with launch.train. The same
command goes on after a kill or Ctrl-C, and runs what is not finished. Cells
with the same tasks, model and seed share the stages before RL. `--check` makes
those of one seed and a few updates, and says of each contrast if it can show
anything, and when. Elsewhere, `--render` prints the cells as jobs; options of
the renderer follow `--`:

  python -m launch.sweep --ablation=configs/ablations/agentrl.py --seeds=5 \
    --render=jobset -- --image=$IMAGE --learner=v5p-8 --workdir=gs://b/runs
"""

import pathlib
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import ml_collections
from absl import flags

from agentrl_jax.errors import ConfigError
from launch.config import command_line
from launch.config.settings import read_settings
from launch.experiments.check import equal_arms
from launch.experiments.planned import start_lines
from launch.experiments.power import plan_lines, require_plan
from launch.experiments.rehearsal import rehearse
from launch.processes.terminal import plain_console
from launch.reports.facts import run_facts
from launch.storage.lock import held
from launch.sweeps.budget import Budget
from launch.sweeps.cells import CellState, count_cells, require_same_configs
from launch.sweeps.display import SweepDisplay
from launch.sweeps.jobs import render
from launch.sweeps.plan import Cell, SweepPlan, make_plan, write_record
from launch.sweeps.runner import Runner

CONSOLE = plain_console()

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
  "budget",
  "",
  "Of all cells together, each amount once, as 2cores,16GiB,6.5h; all cores, "
  "if none.",
)
_CORES = flags.DEFINE_integer("cores", 1, "Cores of each cell.")
_FOLDER = flags.DEFINE_string(
  "folder", "", "The sweep's folder; sweeps/<name of the ablation>, if none."
)
_CHECK = flags.DEFINE_bool(
  "check",
  False,
  "Make a warm start and a few updates, and say of each contrast if it can "
  "show anything; without --check the same command goes on.",
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
  """Runs a few updates, and says of each contrast if it can show anything.

  Returns the exit status: 1 if it was interrupted.
  """

  def run_cells(
    part: SweepPlan,
    of_part: Mapping[Cell, ml_collections.ConfigDict],
    is_enough: Callable[[], bool],
  ) -> bool:
    runner, is_whole = _run_cells(part, of_part, folder, budget, is_enough)
    for cell, sentence in runner.failures.items():
      raise ConfigError(f"{cell.name} failed: {sentence}")
    return is_whole

  at_once = budget.cores // _CORES.value
  checked = rehearse(plan, configs, folder, run_cells, at_once=at_once)
  if checked is None:
    return 1
  CONSOLE.print(checked.table)
  lines = [*checked.lines, *(each.line for each in checked.contrasts)]
  if checked.can_show_nothing:
    lines.append("this sweep can show nothing: change it before it is run")
  for line in lines:
    CONSOLE.print(line, soft_wrap=True, highlight=False)
  return 0


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
    *plan_lines(experiment, configs),
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
  with held(
    folder / "lock",
    f"another sweep is at work in {folder}: wait for its end, or choose "
    "another --folder",
  ):
    return _record_and_run(plan, configs, folder, budget)


def _record_and_run(
  plan: SweepPlan,
  configs: Mapping[Cell, ml_collections.ConfigDict],
  folder: pathlib.Path,
  budget: Budget,
) -> int:
  """Does what the flags say in a folder that is held; returns the status."""
  finished, begun = count_cells(folder)
  write_record(
    plan,
    folder,
    run_facts(seed=plan.seeds[0], devices=[]),
    cells_finished=finished,
    cells_begun=begun,
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
