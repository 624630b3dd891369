r"""Runs an ablation: every arm with several seeds, on some cores.

  python -m launch.sweep --ablation=configs/ablations/agentrl.py --seeds=5 \
    --cores=2 --folder=sweeps/agentrl --config.train.steps=20

Any key of the config can be set for all arms, as with launch.train. The same
command goes on after a kill or Ctrl-C, and runs what is not finished. Cells
with the same tasks, model and seed share the stages before RL. Elsewhere,
`--render` prints the cells as jobs; options of the renderer follow `--`:

  python -m launch.sweep --ablation=configs/ablations/agentrl.py --seeds=5 \
    --render=jobset -- --image=$IMAGE --learner=v5p-8 --workdir=gs://b/runs
"""

import os
import pathlib
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

import ml_collections
from absl import flags

from agentrl_jax.errors import ConfigError
from launch.config import command_line
from launch.config.settings import read_settings
from launch.processes.terminal import plain_console
from launch.storage.lock import held
from launch.sweeps.cells import CellState, require_same_configs
from launch.sweeps.display import SweepDisplay
from launch.sweeps.jobs import render
from launch.sweeps.plan import Cell, SweepPlan, make_plan, write_record
from launch.sweeps.runner import Runner

CONSOLE = plain_console()

_ABLATION = flags.DEFINE_string("ablation", None, "A file with ARMS.")
_ARMS = flags.DEFINE_list("arms", [], "Some of its arms; else all.")
_SEEDS = flags.DEFINE_integer(
  "seeds", 5, "Number of seeds of each arm.", 1, 10_000
)
_FIRST_SEED = flags.DEFINE_integer("first_seed", 0, "The first of them.")
_THERE = len(os.sched_getaffinity(0))
_CORES = flags.DEFINE_integer(
  "cores", _THERE, "Cores of all cells together.", 1, _THERE
)
_CORES_EACH = flags.DEFINE_integer("cores_each", 1, "Cores of each cell.", 1)
_FOLDER = flags.DEFINE_string(
  "folder", "", "The sweep's folder; sweeps/<name of the ablation>, if none."
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
) -> int:
  """Runs the cells; returns the number of those that are not finished."""
  display = SweepDisplay(CONSOLE, folder)
  runner = Runner(
    plan,
    configs,
    folder,
    cores=_CORES.value,
    cores_each=_CORES_EACH.value,
    say=display.say,
  )
  signal.signal(signal.SIGTERM, _interrupt)
  try:
    runner.run(lambda: display.show(runner.states()))
  except KeyboardInterrupt:
    display.say("interrupted: the cells save and end; the same command goes on")
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
  if _CORES_EACH.value > _CORES.value:
    raise ConfigError(
      f"--cores_each={_CORES_EACH.value} is more than the "
      f"--cores={_CORES.value} of all cells together"
    )
  configs = load_configs(plan, folder, plan.cells)
  if _RENDER.value:
    CONSOLE.print(
      "\n---\n".join(render(plan, name, _RENDER.value, options)),
      emoji=False,  # a config may have text such as :key:
      highlight=False,
      soft_wrap=True,
    )
    return 0
  require_same_configs(configs, folder)
  folder.mkdir(parents=True, exist_ok=True)
  with held(
    folder / "lock",
    f"another sweep is at work in {folder}: wait for its end, or choose "
    "another --folder",
  ):
    write_record(plan, folder)
    return 1 if sweep(plan, configs, folder) else 0


def run(arguments: Sequence[str]) -> None:
  """Parses the command line; ends the process with the status."""
  own, overrides, options = split_arguments(arguments)
  command_line.run(lambda: sys.exit(main(overrides, options)), argv=own)


if __name__ == "__main__":
  run(sys.argv[1:])
