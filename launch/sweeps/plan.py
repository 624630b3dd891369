"""Plan of a sweep: its arms, seeds and cells, and the record of them.

A folder holds one sweep. Its record, `sweep.json`, says what the cells are;
their states are read from the cells' own runs:

  <folder>/sweep.json
    cells/<arm>-s<seed>/   a run, as launch.train writes it
    logs/<arm>-s<seed>.log
    stages/  compiled/     that cells share
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
from launch.storage.shared_stages import hash_of, shared_keys

RECORD = "sweep.json"
FORMAT = 1
SET_BY_SWEEP = ("seed", "name", "workdir", "compile_cache", "warm_start.store")
_STEPS = "--config.train.steps="
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

  def only(self, cell: Cell) -> "SweepPlan":
    """Returns the plan of one cell."""
    return dataclasses.replace(
      self, arms={cell.arm: self.arms[cell.arm]}, seeds=[cell.seed]
    )

  def arguments(self, cell: Cell, folder: pathlib.Path) -> list[str]:
    """Returns the arguments of `launch.train` for a cell."""
    of_cell = {
      "seed": cell.seed,
      "name": cell.name,
      "workdir": folder / "cells",
      "compile_cache": folder / "compiled",
      "warm_start.store": folder / "stages",
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
  path = pathlib.Path(ablation)
  if not path.is_file():
    others = [str(p) for p in sorted(path.parent.glob("[!_]*.py"))]
    raise ConfigError(
      f"--ablation={ablation} is no file{suggestion(ablation, others)}; name "
      "one with ARMS, such as configs/ablations/agentrl.py"
    )
  defined = runpy.run_path(ablation).get("ARMS")
  if not isinstance(defined, Mapping) or not defined:
    raise ConfigError(
      f"--ablation={ablation} defines no ARMS, a dict of names and the keys "
      "that they change: configs/ablations/agentrl.py is an example"
    )
  for arm in arms:
    if arm not in defined:
      raise ConfigError(
        f"--arms={arm} is not one of {', '.join(defined)}"
        f"{suggestion(arm, defined)}"
      )
  for arm, keys in defined.items():
    _require_usable(ablation, arm, keys)
  if taken := [word for word in overrides if _key_of(word) in SET_BY_SWEEP]:
    raise ConfigError(
      f"{' '.join(taken)}: a sweep sets {', '.join(SET_BY_SWEEP)} of each "
      "cell; see --seeds, --first_seed and --folder"
    )
  if num_seeds < 1:
    raise ConfigError(f"--seeds={num_seeds} must be at least 1")
  return SweepPlan(
    ablation=ablation,
    arms={arm: dict(defined[arm]) for arm in arms or defined},
    seeds=range(first_seed, first_seed + num_seeds),
    overrides=list(overrides),
  )


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
  return hash_of(shared_keys(config))


def write_record(
  plan: SweepPlan, folder: pathlib.Path, facts: Mapping[str, Any]
) -> None:
  """Writes the plan; one that the folder has is extended.

  Arms, seeds and updates (train.steps) may be added. Raises `ConfigError` if an
  arm or the overrides differ from those of the cells that are there.
  """
  path = folder / RECORD
  before = _read(path) if path.exists() else None
  now = {
    "format": FORMAT,
    "ablation": plan.ablation,
    "arms": {name: dict(keys) for name, keys in plan.arms.items()},
    "seeds": list(plan.seeds),
    "overrides": list(plan.overrides),
    "starts": [dict(facts)],
  }
  now = json.loads(json.dumps(now, default=str))
  if before:
    _require_same(before, now, path)
    now["arms"] = before["arms"] | now["arms"]
    now["seeds"] = sorted({*before["seeds"], *now["seeds"]})
    now["starts"] = before["starts"] + now["starts"]
  write_whole(path, json.dumps(now, indent=2))


def read_record(folder: pathlib.Path) -> SweepPlan:
  """Reads the plan of a folder. Raises `ConfigError` if it has none."""
  path = folder / RECORD
  if not path.exists():
    raise ConfigError(
      f"{folder} has no {RECORD}, so it is no folder of a sweep; launch.sweep "
      "makes one"
    )
  found = _read(path)
  return SweepPlan(
    ablation=found["ablation"],
    arms=found["arms"],
    seeds=found["seeds"],
    overrides=found["overrides"],
  )


def _read(path: pathlib.Path) -> dict[str, Any]:
  with reading(path):
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    version = found["format"]
    if version != FORMAT:
      raise ConfigError(
        f"{path} has format {version!r}, and this version of the framework "
        f"reads format {FORMAT}: choose another --folder"
      )
    lists = {name: list(found[name]) for name in ("seeds", "overrides")}
    found |= lists | {"starts": list(found["starts"])}
    found["arms"] = {name: dict(keys) for name, keys in found["arms"].items()}
    if any(type(seed) is not int for seed in lists["seeds"]):
      raise ValueError(f"seeds are {lists['seeds']!r:.80}")
    if not all(isinstance(word, str) for word in lists["overrides"]):
      raise ValueError(f"overrides are {lists['overrides']!r:.80}")
    if not isinstance(found["ablation"], str):
      raise ValueError(f"ablation is {found['ablation']!r:.80}")
  return found


def _without_steps(overrides: Sequence[str]) -> list[str]:
  """Leaves the number of updates out of overrides."""
  return [word for word in overrides if not word.startswith(_STEPS)]


def _require_same(
  before: Mapping[str, Any], now: Mapping[str, Any], path: pathlib.Path
) -> None:
  changed = []
  if before["ablation"] != now["ablation"]:
    changed.append(
      f"--ablation was {before['ablation']} and is {now['ablation']}"
    )
  had, has = before["overrides"], now["overrides"]
  if _without_steps(had) != _without_steps(has):
    changed.append(
      f"the options of its cells were {' '.join(had) or 'none'} and are "
      f"{' '.join(has) or 'none'}"
    )
  changed += [
    f"arm {arm} was {before['arms'][arm]} and is {keys}"
    for arm, keys in now["arms"].items()
    if arm in before["arms"] and before["arms"][arm] != keys
  ]
  if changed:
    raise ConfigError(
      f"{path} is the record of another sweep: {'; '.join(changed)}. Repeat "
      "what it had, choose another --folder, or give a changed arm another name"
    )
