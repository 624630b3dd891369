"""Plan of a sweep: its arms, seeds and cells, and the record of them.

A folder holds one sweep. Its record, `sweep.json`, says what the cells are;
their states are read from the cells' own runs:

  <folder>/sweep.json
    cells/<arm>-s<seed>/   a run, as launch.train writes it
    logs/<arm>-s<seed>.log
    compiled/     that cells share
"""

import dataclasses
import json
import pathlib
import re
import runpy
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.files import reading, write_whole
from configs.base import shipped_file
from launch.storage.first_stages import stage_keys

RECORD = "sweep.json"
FROM_RUN = "warm_start.from_run"
SET_BY_SWEEP = ("seed", "name", "workdir", "compile_cache", FROM_RUN)
_ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True)
class Cell:
  """One run of the sweep."""

  arm: str
  seed: int

  @property
  def name(self) -> str:
    """The name of the run."""
    return f"{self.arm}-s{self.seed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepPlan:
  """Arms and seeds of a sweep, and the keys that all cells set."""

  ablation: str  # the file of its arms
  arms: Mapping[str, Mapping[str, Any]]  # the keys that each changes
  seeds: Sequence[int]
  overrides: Sequence[str]  # --config.key=value, of every cell

  @property
  def cells(self) -> list[Cell]:
    """All cells; the first seed of every arm comes first."""
    return [Cell(arm, seed) for seed in self.seeds for arm in self.arms]

  def arguments(
    self, cell: Cell, folder: pathlib.Path, first: Cell | None = None
  ) -> list[str]:
    """Returns the arguments of `launch.train` for a cell.

    Its stages before RL are those of the cell `first`, if there is one.
    """
    of_cell = {
      "seed": cell.seed,
      "name": cell.name,
      "workdir": folder / "cells",
      "compile_cache": folder / "compiled",
      FROM_RUN: folder / "cells" / first.name if first else "",
    }
    return [
      f"--config={self.ablation}:{cell.arm}",
      *self.overrides,
      *(f"--config.{key}={of_cell[key]}" for key in SET_BY_SWEEP),
    ]


def make_plan(
  ablation: str,
  *,
  arms: Sequence[str],
  num_seeds: int,
  first_seed: int,
  overrides: Sequence[str],
) -> SweepPlan:
  """Reads the file of an ablation; `arms` are those to run, () for all."""
  defined = _read_arms(ablation)
  for arm in arms:
    if arm not in defined:
      raise ConfigError(
        f"--arms={arm} is not one of {', '.join(defined)}"
        f"{suggestion(arm, defined)}"
      )
  if taken := [word for word in overrides if _key_of(word) in SET_BY_SWEEP]:
    raise ConfigError(
      f"{' '.join(taken)}: a sweep sets {', '.join(SET_BY_SWEEP)} of each "
      "cell; see --seeds, --first_seed and --folder"
    )
  return SweepPlan(
    ablation=ablation,
    arms={
      arm: keys for arm, keys in defined.items() if not arms or arm in arms
    },
    seeds=range(first_seed, first_seed + num_seeds),
    overrides=list(overrides),
  )


def _read_arms(ablation: str) -> Mapping[str, Mapping[str, Any]]:
  """Returns the ARMS of the file, which can be run."""
  path = shipped_file(ablation)
  if not path.is_file():
    folder = shipped_file(path.parent)
    others = [str(p) for p in sorted(folder.glob("[!_]*.py"))]
    raise ConfigError(
      f"--ablation={ablation} is no file{suggestion(ablation, others)}; name "
      "one with ARMS, such as configs/ablations/agentrl.py"
    )
  arms = runpy.run_path(str(path)).get("ARMS")
  if not isinstance(arms, Mapping) or not arms:
    raise ConfigError(
      f"--ablation={ablation} defines no ARMS, a dict of names and the keys "
      "that they change: configs/ablations/agentrl.py is an example"
    )
  for arm, keys in arms.items():
    _require_usable(ablation, arm, keys)
  return arms


def _require_usable(ablation: str, arm: Any, keys: Any) -> None:
  """Refuses an arm that cannot be a folder, or sets what a sweep sets."""
  if not isinstance(arm, str) or not _ARM.fullmatch(arm):
    raise ConfigError(
      f"{ablation}: the arm {arm!r} must be a name of letters, digits, dots, "
      "dashes and underscores, since its runs are folders"
    )
  if not isinstance(keys, Mapping):
    raise ConfigError(
      f"{ablation}: the arm {arm} is {keys!r}, and must be a dict of keys, as "
      'in {"loss.clip_high": 0.3}'
    )
  if taken := [key for key in keys if key in SET_BY_SWEEP]:
    raise ConfigError(
      f"{ablation}: the arm {arm} sets {', '.join(taken)}, which a sweep sets "
      "of each cell: leave them out"
    )


def _key_of(word: str) -> str:
  return word.removeprefix("--config.").partition("=")[0]


def stages_of(config: ml_collections.ConfigDict) -> str:
  """Names the stages before RL of a config: cells of one name share them."""
  return json.dumps(stage_keys(config), sort_keys=True, default=str)


def write_record(plan: SweepPlan, folder: pathlib.Path) -> None:
  """Records the plan; arms and seeds are added to those that the folder has."""
  arms, seeds = dict(plan.arms), {*plan.seeds}
  if (folder / RECORD).exists():
    before = read_record(folder)
    arms, seeds = {**before.arms, **arms}, {*before.seeds, *seeds}
  record = {
    "ablation": plan.ablation,
    "arms": arms,
    "seeds": sorted(seeds),
    "overrides": list(plan.overrides),
  }
  write_whole(folder / RECORD, json.dumps(record, indent=2, default=str))


def read_record(folder: pathlib.Path) -> SweepPlan:
  """Reads the plan of a folder. Raises `ConfigError` if it has none."""
  with reading(folder / RECORD):
    return SweepPlan(**json.loads((folder / RECORD).read_text("utf-8")))
