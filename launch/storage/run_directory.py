"""The folder of a run: its layout, its lock, and the stages that are done.

  runs/<name>/
    config.yaml       the resolved config
  checkpoints.txt   the folder of the checkpoints, if it is elsewhere
  pretrained.json   which model the run began with
    tokenizer.json    demonstrations.npz
    warm_start/       checkpoints        reinforcement/  checkpoints
    evaluations/      one JSON file per policy and mode
    best.json         the version that ended RL, if it is not the last
    trajectories/     groups that were trained on, by version
    metrics.jsonl     tensorboard/       curves.png  summary.json  report.html

A stage is done when its file in `done/` says so, with the seconds that it took.
"""

import fnmatch
import hashlib
import json
import math
import os
import pathlib
import reprlib
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ml_collections
import yaml
from etils import epath

from agentrl_jax.data.snapshot_manifest import open_folder
from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading, write_whole, writing
from configs.base import flat_keys
from launch.config.chat import files_of
from launch.storage.config_paths import FILE as MODEL_FILE
from launch.storage.config_paths import MODEL, absolute, keep_model, kept_digest
from launch.storage.lock import held
from launch.storage.run_config import read_config

# Keys, or whole sections, that may change between two starts of one run; `*` is
# any name. A controller or a worker that is made again has another address, and
# what only watches changes no update.
MAY_CHANGE = (
  "checkpoint.resume_step",
  "checkpoint.keep",
  "checkpoint.keep_every",
  "checkpoint.grace_s",
  "collapse_alarm",
  "processes",
  "report.keep_groups",
  "compile_cache",
  "pretrained.path",
  "warm_start.from_run",
  "workdir",
  "name",
  "mesh",
  "compute",
  "rollouts",
  "environments.*.place.controller",
  "environments.*.place.token_file",
  "environments.*.place.worker",
  "environments.*.options.token_file",
  "environments.*.options.url",
  "agents.host",
  "agents.port",
  "agents.token_file",
)


# Keys and sections on which the params of every stage depend, and those of
# reinforcement learning. Runs that share a warm start agree in the former.
DECISIVE = (
  "seed",
  "tasks.names",
  "environments",
  "tokenizer",
  "chat",
  "model",
  "lora",
  "warm_start",
  "train.row_length",
  "train.micro_batch",
  "episode",
  "sampling.calls",
)
DECISIVE_OF_RL = (
  "tasks",
  "train",
  "optimizer",
  "loss",
  "advantage",
  "sampling",
  "group",
  "admission",
  "cross_policy",
)
STEPS = "train.steps"
TOKENIZER = "the tokenizer's digest"
CONFIG = "config.yaml"
# Sections whose keys decide what the weights of a run compute.
_OF_WEIGHTS = ("model.", "lora.", "tokenizer.", "pretrained.")
CHECKPOINTS = "checkpoints.txt"  # where they are, if not in the run's folder
_MOST_NAMED = 8  # keys that a sentence names
_SHORT = reprlib.Repr()  # of values that may be long lists
# What a run's end leaves, and more updates make anew.
_ENDS = (
  "evaluations/rl_*",
  "trajectories/rl_*",
  "attempts/rl*",
  "best.json",
  "summary.json",
  "report.html",
  "curves.png",
)
RUN = "run"  # the stage that holds all others, and what is between them
OTHER = "other"  # the time of a run in none of its stages


class RunDirectory:
  """Paths of one run, and its record of finished stages."""

  def __init__(self, root: pathlib.Path, checkpoints: str | None = None):
    """`checkpoints` is a folder or bucket for them; "" keeps them in `root`.

    There they have a folder of their own, which no run of the same name has.
    None takes the one that the run began with.
    """
    self.root = root
    for folder in ("evaluations", "trajectories", "done"):
      (root / folder).mkdir(parents=True, exist_ok=True)
    self.checkpoints_root = _checkpoints_of(root, checkpoints)
    self.tokenizer = root / "tokenizer.json"
    self.demonstrations = root / "demonstrations.npz"
    self.best = root / "best.json"
    self.curves = root / "curves.png"
    self.summary = root / "summary.json"
    self.report = root / "report.html"
    self.first_prompts = root / "first_prompts.json"

  @contextmanager
  def held(self) -> Iterator[None]:
    """Locks the folder against other processes, however this one ends.

    Two processes, one of them perhaps still saving after a signal, would mix
    their checkpoints.
    """
    with held(
      self.root / "lock",
      f"another process is at work in {self.root}: wait for its end, or choose "
      "another --config.name",
    ):
      yield

  def checkpoints(self, stage: str) -> epath.Path:
    """Returns the folder of a stage's checkpoints."""
    return self.checkpoints_root / stage

  def owner(self, stage: str) -> dict[str, Any] | None:
    """Returns the facts by which a stage's checkpoints are known as this run's.

    They are the settings on which the stage's params depend, and a digest of
    the tokenizer. None before there are both, as in a learner process that has
    no files of the run.
    """
    chat = [path for path in files_of(self.root) if path.is_file()]
    path = self.root / CONFIG
    if not path.exists() or not chat:
      return None
    config = ml_collections.ConfigDict(read_config(path))
    digest = hashlib.sha256()
    for file in chat:
      digest.update(file.name.encode() + b"\0" + file.read_bytes())
    facts = decisive_keys(config, stage) | {TOKENIZER: digest.hexdigest()[:16]}
    model = kept_digest(self.root)
    return facts | {MODEL: model} if model else facts

  def newest_step(self, stage: str) -> int:
    """Returns the step of a stage's newest checkpoint, 0 without one."""
    folder = self.checkpoints(stage)
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=0)

  def newest(self) -> str:
    """Describes the newest checkpoint, for people."""
    for stage in ("rl", "warm_start"):
      if step := self.newest_step(stage):
        return f"checkpoint of {stage} step {step}"
    return "no checkpoint yet"

  def final_step(self, stage: str) -> int | None:
    """Returns the step that RL ended with; None if that is the newest one."""
    if stage != "rl" or not self.best.exists():
      return None
    with reading(self.best):
      return int(json.loads(self.best.read_text())["version"])

  def evaluation(self, policy: str, mode: str) -> pathlib.Path:
    """Returns the file of a policy's scores in a mode."""
    return self.root / "evaluations" / f"{policy}_{mode}.json"

  def trajectories(self, version: int) -> pathlib.Path:
    """Returns the file of the groups that updated `version`."""
    return self.root / "trajectories" / f"{version:06d}.jsonl.gz"

  def trajectories_of(self, policy: str, mode: str) -> pathlib.Path:
    """Returns the file of an evaluation's episodes."""
    return self.root / "trajectories" / f"{policy}_{mode}.jsonl.gz"

  def keep_config(self, config: ml_collections.ConfigDict) -> None:
    """Writes the config; refuses to continue a run that had another.

    A start that finished no stage holds the name to nothing. A run may be given
    more updates than it had: its RL goes on, and what was evaluated after the
    fewer is moved to `earlier/<updates>`.
    """
    _keep_checkpoints(self.root)
    path, config = self.root / CONFIG, absolute(config)
    text = yaml.safe_dump(_plain(config.to_dict()), sort_keys=True)
    if path.exists():
      try:
        filed, is_longer = self._continued(config)
      except ConfigError:
        if self.is_begun():
          raise
        for file in (path, self.root / MODEL_FILE, *files_of(self.root)):
          file.unlink(missing_ok=True)
        self.first_prompts.unlink(missing_ok=True)
        keep_model(config.pretrained.path, self.root)
      else:
        if is_longer:
          self._reopen(int(filed["train"]["steps"]))
        else:
          # A model that was moved is found there by commands about the run.
          text = yaml.safe_dump(
            filed | {"pretrained": config.pretrained.to_dict()}, sort_keys=True
          )
    else:
      keep_model(config.pretrained.path, self.root)
    write_whole(path, text)

  def _continued(
    self, config: ml_collections.ConfigDict
  ) -> tuple[dict[str, Any], bool]:
    """Returns the run's settings, and whether `config` only has more updates.

    Raises `ConfigError` for other settings, or another model.
    """
    path = self.root / CONFIG
    filed = read_config(path)
    changed = changed_settings(path, config)
    is_longer = list(changed) == [STEPS] and _may_be_longer(filed, config)
    if changed and not is_longer:
      raise ConfigError(
        f"{self.root} holds a run with other settings: "
        f"{describe(changed)}. Set them back, choose another "
        "--config.name, or remove the folder to start again"
      )
    # Raises before anything is changed, if the model is another.
    keep_model(config.pretrained.path, self.root)
    return filed, is_longer

  def is_begun(self) -> bool:
    """True if a stage has finished, or left a checkpoint."""
    steps = self.newest_step("rl") or self.newest_step("warm_start")
    return bool(steps) or any((self.root / "done").glob("*.json"))

  def _reopen(self, steps: int) -> None:
    """Moves the ends of a run that had `steps` updates out of the way.

    Before the config is written, so that a kill in between does it again.
    """
    earlier = self.root / "earlier" / f"{steps}"
    for pattern in _ENDS:
      for path in self.root.glob(pattern):
        earlier.mkdir(parents=True, exist_ok=True)
        path.replace(earlier / path.name)
    for path in (self.root / "done").glob("evaluate_rl_*"):
      path.unlink()
    for name in (RUN, "rl"):
      done = self.root / "done" / f"{name}.json"
      if done.exists():
        done.replace(done.with_suffix(".partial"))

  def seconds(self) -> dict[str, float]:
    """Returns the time of each stage so far, ordered by its last end.

    `OTHER` is the rest of the run's time, if the whole run was timed.
    """
    files = sorted(
      [
        path
        for path in (self.root / "done").iterdir()
        if path.suffix in (".json", ".partial")
      ],
      key=lambda p: p.stat().st_mtime,
    )
    seconds = {p.stem: _seconds(p) for p in files}
    rest = seconds.pop(RUN, 0.0) - math.fsum(seconds.values())
    return seconds | ({OTHER: rest} if rest > 0 else {})

  def is_done(self, stage: str) -> bool:
    """Returns True if the stage has finished, now or in an earlier start."""
    return (self.root / "done" / f"{stage}.json").exists()

  @contextmanager
  def stage(self, stage: str) -> Iterator[None]:
    """Times a stage, over all the starts it takes, and marks it done."""
    spent = self.root / "done" / f"{stage}.partial"
    before = _seconds(spent) if spent.exists() else 0.0
    started_at = time.monotonic()

    def write(path: pathlib.Path) -> None:
      seconds = before + time.monotonic() - started_at
      # In one move: the process may be killed as it writes. Not by a file that
      # ends with .partial, which is a stage that has begun.
      written = spent.with_suffix(".written")
      with writing(path):
        written.write_text(json.dumps({"seconds": seconds}))
        written.replace(path)

    try:
      yield
    except BaseException:
      write(spent)
      raise
    write(spent.with_suffix(".json"))
    spent.unlink(missing_ok=True)


def _checkpoints_of(root: pathlib.Path, directory: str | None) -> epath.Path:
  """Returns the folder below which the run at `root` has its checkpoints.

  In `directory` it has the run's name and random letters, and a file of the run
  names it, so that it is found wherever the run is moved. Runs that began
  before there was such a file have the name alone.
  """
  record, config = root / CHECKPOINTS, root / CONFIG
  if directory is None:
    directory = _filed_directory(config, record)
  if not directory:
    return epath.Path(root)
  if record.exists():
    place = epath.Path(_recorded(record)[0])
    near = open_folder(directory) / place.name
    is_moved = "://" not in str(place) and not place.exists() and near.exists()
    return near if is_moved else place
  if config.exists():
    return open_folder(directory) / root.name
  name = f"{root.name}-{secrets.token_hex(4)}"
  place = open_folder(directory) / name
  write_whole(record, f"{place}\n{root.resolve()}\n")
  return place


def _recorded(record: pathlib.Path) -> tuple[str, pathlib.Path]:
  """Returns the folder of the checkpoints, and of the run that has them."""
  with reading(record):
    place, root = record.read_text(encoding="utf-8").splitlines()
    if "://" not in place and not os.path.isabs(place):
      raise ValueError(f"{place!r:.80} is no absolute path")
  return place, pathlib.Path(root)


def _keep_checkpoints(root: pathlib.Path) -> None:
  """Makes the checkpoints those of the run at `root`, which may be moved.

  Raises `ConfigError` for a copy: two runs would delete each other's steps.
  """
  record = root / CHECKPOINTS
  if not record.exists():
    return
  place, owner = _recorded(record)
  is_copy = owner != root.resolve() and (owner / CHECKPOINTS).exists()
  if is_copy and _recorded(owner / CHECKPOINTS)[0] == place:
    raise ConfigError(
      f"{root} is a copy of {owner}, whose checkpoints are in {place}: copy "
      f"that folder too and write its name into {record}, or remove one of the "
      "two runs"
    )
  write_whole(record, f"{place}\n{root.resolve()}\n")


def _filed_directory(config: pathlib.Path, record: pathlib.Path) -> str:
  if config.exists():
    with reading(config):
      return str(read_config(config)["checkpoint"]["directory"])
  return str(epath.Path(_recorded(record)[0]).parent) if record.exists() else ""


def _seconds(path: pathlib.Path) -> float:
  with reading(path):
    return float(json.loads(path.read_text())["seconds"])


def environment_keys(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the keys of the environments that are played, flat.

  Where they are played is left out: it changes no episode.
  """
  found = {}
  for key, value in flat_keys(config):
    words = key.split(".")
    if (
      words[0] == "environments"
      and words[1] in config.tasks.names
      and words[2] != "place"
    ):
      found[key] = value
  return found


def decisive_keys(
  config: ml_collections.ConfigDict, stage: str
) -> dict[str, Any]:
  """Returns the keys on which the params of a stage depend, flat."""
  played = environment_keys(config)
  return {
    key: value
    for key, value in flat_keys(config)
    if _decides(key, stage)
    and (key in played or not key.startswith("environments."))
  }


def _decides(key: str, stage: str) -> bool:
  """True for a key on which the params of a stage depend."""
  sections = DECISIVE if stage == "warm_start" else (*DECISIVE, *DECISIVE_OF_RL)
  return (
    any(key == section or key.startswith(f"{section}.") for section in sections)
    and key != STEPS
    and not _may_change(key)
  )


def _may_be_longer(
  filed: Mapping[str, Any], config: ml_collections.ConfigDict
) -> bool:
  """True if a run may get the updates of `config`, which are not `filed`'s.

  More, and only if the learning rate of an update does not depend on their
  number: else the run would not be one that was begun with as many.
  """
  return bool(
    config.train.steps > filed["train"]["steps"]
    and config.optimizer.final_lr_ratio == 1
  )


def changed_settings(
  path: pathlib.Path, config: ml_collections.ConfigDict
) -> dict[str, tuple[Any, Any]]:
  """Compares a run's config.yaml with a config; what may change is left out.

  Returns both values of each key that differs; None for one that is missing.
  """
  filed = read_config(path)
  given = _plain(absolute(config).to_dict())
  return {
    key: values
    for key, values in _differences(filed, given).items()
    if not _may_change(key)
  }


def played_otherwise(
  root: pathlib.Path, config: ml_collections.ConfigDict
) -> str:
  """Says in which settings a config differs from the run that it evaluates.

  Returns "" if there are none, or no config of the run. Raises `ConfigError` if
  the run's weights would be played as those of another model.
  """
  path = root / CONFIG
  changed = changed_settings(path, config) if path.exists() else {}
  model = {
    key: (old, new)
    for key, (old, new) in changed.items()
    # A run from before there was a key has none of it.
    if key.startswith(_OF_WEIGHTS) and old is not None
  }
  if model:
    raise ConfigError(
      f"{root} is a run of another model: {describe(model)}. Set them back"
    )
  return (
    f"evaluated otherwise than trained: {describe(changed)}" if changed else ""
  )


def describe(changed: Mapping[str, tuple[Any, Any]]) -> str:
  """Returns changes as words: "loss.clip_high was 0.2 and is 0.3; ..."."""
  words = [
    f"{key} was {_SHORT.repr(old)} and is {_SHORT.repr(new)}"
    for key, (old, new) in list(changed.items())[:_MOST_NAMED]
  ]
  if more := len(changed) - len(words):
    words.append(f"and {more} more")
  return "; ".join(words)


def _plain(value: Any) -> Any:
  """Turns tuples into lists, since YAML's safe form has no tuples."""
  if isinstance(value, dict):
    return {key: _plain(v) for key, v in value.items()}
  if isinstance(value, tuple | list):
    return [_plain(v) for v in value]
  return value


def _may_change(key: str) -> bool:
  return key.split(".")[0] in MAY_CHANGE or any(
    fnmatch.fnmatchcase(key, pattern) for pattern in MAY_CHANGE
  )


def _differences(
  old: Any, new: Any, prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
  """Returns both values of each key that differs, None for one that lacks."""
  if not (isinstance(old, dict) and isinstance(new, dict)):
    return {} if old == new else {prefix: (old, new)}
  found: dict[str, tuple[Any, Any]] = {}
  for name in sorted({*old, *new}):
    key = f"{prefix}.{name}".lstrip(".")
    found |= _differences(old.get(name), new.get(name), key)
  return found
