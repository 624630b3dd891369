"""Begins a run with another run's stages before reinforcement learning.

`warm_start.from_run` names the other run's folder. Chat, demonstrations, the
warm start and the evaluations before RL are copied, so runs that differ in RL
alone need one warm start.
"""

import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import ml_collections
from etils import epath

from agentrl_jax.errors import ConfigError
from agentrl_jax.files import write_whole
from configs.base import flat_keys
from launch.config.chat import files_of
from launch.reports.metrics_file import FILE
from launch.storage.run_config import is_run, run_config
from launch.storage.run_directory import RunDirectory, decisive_keys, describe

STAGE = "warm_start"
# Beside what decides the params: what decides demonstrations and scores.
_SCORED = (
  "tasks.held_out",
  "evaluation",
  "subagent",
  "engine.weights",
  "agents.program",
)
_LATER = ("rl*", "evaluate_rl*", "validation*", "run.json")


def stage_keys(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the keys on which the stages before RL depend, flat."""
  return decisive_keys(config, STAGE) | {
    key: value
    for key, value in flat_keys(config)
    if any(f"{key}.".startswith(f"{each}.") for each in _SCORED)
  }


def has_first_stages(root: pathlib.Path) -> bool:
  """True if a run's RL has begun, or the run has ended."""
  is_over = (root / "done" / "run.json").exists()
  return is_over or (root / "trained_groups.jsonl").exists()


def take_first_stages(
  config: ml_collections.ConfigDict, run: RunDirectory
) -> None:
  """Copies the stages of `warm_start.from_run`, unless the run has its own.

  Raises `ConfigError` if they are not finished, or were made otherwise.
  """
  root = pathlib.Path(config.warm_start.from_run)
  is_begun = run.is_done(STAGE) or has_first_stages(run.root)
  if not config.warm_start.from_run or is_begun:
    return
  if not is_run(root) or not has_first_stages(root):
    raise ConfigError(
      f"warm_start.from_run={root} is no run whose warm start is over: name "
      "the folder of one whose reinforcement learning has begun"
    )
  ours, theirs = stage_keys(config), stage_keys(run_config(root))
  changed = {
    key: (theirs.get(key), ours.get(key))
    for key in sorted({*ours, *theirs})
    if theirs.get(key) != ours.get(key)
  }
  if changed:
    raise ConfigError(
      f"warm_start.from_run={root} was made with other settings: "
      f"{describe(changed)}. Set them back, or leave the key out"
    )
  source = RunDirectory(root)
  if source.checkpoints(STAGE).exists():
    _copy(source.checkpoints(STAGE), run.checkpoints(STAGE))
  rows = (root / FILE).read_text().splitlines(keepends=True)
  write_whole(run.root / FILE, "".join(r for r in rows if _is_before_rl(r)))
  for path in _files(root):
    copied = run.root / path.relative_to(root)
    copied.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, copied)


def _copy(source: epath.Path, target: epath.Path) -> None:
  """Copies a folder, which may be in a bucket."""
  target.mkdir(parents=True, exist_ok=True)
  for path in source.iterdir():
    if path.is_dir():
      _copy(path, target / path.name)
    else:
      path.copy(target / path.name, overwrite=True)


def _files(root: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields what the stages left; the marks of those that are done come last."""
  yield from (path for path in files_of(root) if path.exists())
  for pattern in (
    "demonstrations.npz",
    "evaluations/*.json",
    "trajectories/*_*.jsonl.gz",
    "done/*.json",
  ):
    for path in root.glob(pattern):
      if not any(path.match(later) for later in _LATER):
        yield path


def _is_before_rl(row: str) -> bool:
  stage = str(json.loads(row)["stage"])
  return stage == STAGE or (
    stage.startswith("evaluation_") and not stage.startswith("evaluation_rl")
  )
