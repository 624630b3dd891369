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
from configs.base import shipped_file
from configs.experiment import ExperimentPlan
from launch.storage.shared_stages import hash_of, shared_keys

RECORD = "sweep.json"
FORMAT = 1
NUM_SEEDS = 5  # of each arm, where neither the command nor a plan says it
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
  experiment: ExperimentPlan | None = None  # exploratory, if none
  in_file: Sequence[str] = ()  # all arms that the file has, in its order

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedExperiment:
  """A plan of an experiment, and how far the sweep was when it got it."""

  plan: ExperimentPlan | None  # none: it was taken out of the file
  commit: str
  cells_finished: int
  cells_begun: int


def make_plan(
  ablation: str,
  *,
  arms: Sequence[str],
  num_seeds: int | None,
  first_seed: int,
  overrides: Sequence[str],
) -> SweepPlan:
  """Reads the file of an ablation.

  `arms` are those to run; () for those of the file's PLAN, or all. Without
  `num_seeds` there are as many as in the PLAN, or `NUM_SEEDS`.
  """
  contents = _read_ablation(ablation)
  defined = contents["ARMS"]
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
  experiment = _experiment(ablation, contents.get("PLAN"), defined)
  if num_seeds is None:
    num_seeds = experiment.seeds if experiment else NUM_SEEDS
  if num_seeds < 1:
    raise ConfigError(f"--seeds={num_seeds} must be at least 1")
  wanted = arms or (experiment.arms if experiment else defined)
  return SweepPlan(
    ablation=ablation,
    arms={arm: dict(keys) for arm, keys in defined.items() if arm in wanted},
    seeds=range(first_seed, first_seed + num_seeds),
    overrides=list(overrides),
    experiment=experiment,
    in_file=list(defined),
  )


def _read_ablation(ablation: str) -> dict[str, Any]:
  """Returns what the file defines; its ARMS can be run."""
  path = shipped_file(ablation)
  if not path.is_file():
    folder = shipped_file(path.parent)
    others = [str(p) for p in sorted(folder.glob("[!_]*.py"))]
    raise ConfigError(
      f"--ablation={ablation} is no file{suggestion(ablation, others)}; name "
      "one with ARMS, such as configs/ablations/agentrl.py"
    )
  contents = runpy.run_path(str(path))
  arms = contents.get("ARMS")
  if not isinstance(arms, Mapping) or not arms:
    raise ConfigError(
      f"--ablation={ablation} defines no ARMS, a dict of names and the keys "
      "that they change: configs/ablations/agentrl.py is an example"
    )
  for arm, keys in arms.items():
    _require_usable(ablation, arm, keys)
  return contents


def _experiment(
  ablation: str, found: object, arms: Mapping[str, Any]
) -> ExperimentPlan | None:
  """Returns the file's PLAN, whose arms must be those of the file."""
  if found is None:
    return None
  if not isinstance(found, ExperimentPlan):
    raise ConfigError(
      f"{ablation}: PLAN is {found!r:.80}, and must be an ExperimentPlan of "
      "configs/experiment.py"
    )
  for arm in found.arms:
    if arm not in arms:
      raise ConfigError(
        f"{ablation}: the plan's arm {arm!r} is not one of {', '.join(arms)}"
        f"{suggestion(arm, arms)}"
      )
  return found


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
  plan: SweepPlan,
  folder: pathlib.Path,
  facts: Mapping[str, Any],
  *,
  cells_finished: int = 0,
  cells_begun: int = 0,
) -> None:
  """Writes the plan; one that the folder has is extended.

  Arms, seeds and updates (train.steps) may be added. An experiment's plan that
  has changed is kept beside those before it, with the numbers of cells that had
  begun and finished by then. Raises `ConfigError` if an arm or the overrides
  differ from those of the cells that are there.
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
    "experiments": [
      {
        "plan": plan.experiment and dataclasses.asdict(plan.experiment),
        "commit": facts.get("commit", "unknown"),
        "cells_finished": cells_finished,
        "cells_begun": cells_begun,
      }
    ],
  }
  now = json.loads(json.dumps(now, default=str))
  if before:
    _require_same(before, now, path)
    now["arms"] = _in_order(before["arms"] | now["arms"], plan.in_file)
    now["seeds"] = sorted({*before["seeds"], *now["seeds"]})
    now["starts"] = before["starts"] + now["starts"]
  had = before["experiments"] if before else []
  now["experiments"] = _appended(had, now["experiments"])
  write_whole(path, json.dumps(now, indent=2))


def _in_order(arms: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
  """Sorts arms as their file does, whose first is the one of comparisons.

  Those that it has no more come last.
  """
  first = {arm: arms[arm] for arm in order if arm in arms}
  return {**first, **arms}


def _appended(
  before: list[dict[str, Any]], now: list[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Adds an experiment's plan to those before it, if it is another one."""
  had = before[-1]["plan"] if before else None
  return before if had == now[0]["plan"] else before + now


def read_experiments(folder: pathlib.Path) -> list[RecordedExperiment]:
  """Reads the plans of a folder's experiment, each that it has had.

  Empty if none was recorded, as in an exploratory sweep.
  """
  path = folder / RECORD
  entries = _read(path)["experiments"] if path.exists() else []
  with reading(path):
    found = [
      RecordedExperiment(
        plan=_experiment_of(entry["plan"]),
        commit=str(entry["commit"]),
        cells_finished=int(entry["cells_finished"]),
        cells_begun=int(entry["cells_begun"]),
      )
      for entry in entries
    ]
  return found if any(each.plan for each in found) else []


def _experiment_of(fields: Mapping[str, Any] | None) -> ExperimentPlan | None:
  if fields is None:
    return None
  lists = {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}
  return ExperimentPlan(**{**fields, **lists})


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
    found["experiments"] = list(found.get("experiments", []))  # older: none
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
