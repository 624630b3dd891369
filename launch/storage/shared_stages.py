"""Keeps the stages before reinforcement learning for the runs that share them.

Runs whose configs agree in `KEYS` have the same tokenizer, demonstrations, warm
start and evaluations of it. With `warm_start.store` the first such run keeps
them in a folder by the hash of these keys, and the others begin with a copy:

  <store>/<hash>/         as in a run's folder, without its RL
    shared.json           the keys, and the run and commit that made it
"""

import contextlib
import hashlib
import json
import pathlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.data.dataset_file import files_of
from agentrl_jax.errors import ConfigError, DeadlineExceeded, RunInUse
from agentrl_jax.files import reading, write_whole
from agentrl_jax.model.hugging_face.tensor_files import model_digest
from configs.base import flat_keys
from launch.storage.config_paths import paths_of
from launch.storage.lock import held

RECORD = "shared.json"
# Keys and sections on which the stages depend.
KEYS = (
  "seed",
  "tasks",
  "environments",
  "tokenizer",
  "pretrained",
  "chat",
  "model",
  "lora",
  "mesh",
  "compute",
  "warm_start",
  "train.row_length",
  "train.micro_batch",
  "loss.token_chunk",
  "loss.vocab_chunk",
  "episode",
  "sampling.calls",
  "subagent",
  "engine.weights",
  "evaluation",
)
# Below them, but of reinforcement learning alone.
_LATER_KEYS = ("tasks.held_out",)
_STORE = "warm_start.store"
_BY_AGENTS = "evaluation.agents"
# What the stages leave in a run's folder.
_FILES = (
  "tokenizer.json",
  "demonstrations.npz",
  "metrics.jsonl",
  "evaluations/*.json",
  "trajectories/*_*.jsonl.gz",
  "done/*.json",
)
_FOLDERS = ("chat", "warm_start")
_LATER = ("rl*", "evaluate_rl*", "run.json")  # of reinforcement learning


def shared_keys(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the config's keys that `KEYS` name, flat.

  Environments that are not played, and where they are played, do not count.
  """
  played = set(config.tasks.names)
  during = config.evaluation
  # Demonstrations leave out the tasks of evaluations during RL, which has none
  # of a task that is held out.
  later = () if during.every and during.split != "test" else _LATER_KEYS
  found = {}
  for key, value in flat_keys(config):
    words = key.split(".")
    if key in (_STORE, _BY_AGENTS, *later):
      continue
    if not any(_is_below(key, each) for each in KEYS):
      continue
    if words[0] == "environments":
      if value and words[1] in played and words[2:] == ["place", "options"]:
        found[key] = value  # another environment there
      continue
    if words[:2] == ["tasks", "weights"] and words[2] not in played:
      continue
    found[key] = value
  return (
    found | _digests(config) | _agent_keys(config) | environment_keys(config)
  )


def _agent_keys(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the keys of the program that may play the stages' evaluations.

  It does if the config says so, or where an environment is of agents alone:
  such a run is shown nothing by an expert. Else it plays in RL only.
  """
  agents, start = config.agents, config.warm_start
  without_expert = not start.epochs or bool(start.chats)
  if not (config.evaluation.agents or (agents.port >= 0 and without_expert)):
    return {}
  return {
    _BY_AGENTS: config.evaluation.agents,
    "agents.program": agents.program,
    "agents.max_lines": agents.max_lines,
  }


def _digests(config: ml_collections.ConfigDict) -> dict[str, str]:
  """Returns hashes of the files that keys name, wherever these are."""
  found = {}
  if model := model_digest(config.pretrained.path):
    found["pretrained.path"] = model
  if config.warm_start.store and config.warm_start.chats:
    found["warm_start.chats"] = _digest(config.warm_start.chats)
  if pathlib.Path(config.chat.template).is_file():  # else one that has a name
    found["chat.template"] = _digest(config.chat.template)
  played = environment_keys(config)
  for key, paths in paths_of(config):
    if key in played:
      found[f"{key}: files"] = _stamp(paths)
  return found


def _stamp(paths: Sequence[str]) -> str:
  """Hashes the names, sizes and times of files, which may be large."""
  digest = hashlib.sha256()
  for root in map(pathlib.Path, paths):
    within = [path for path in root.rglob("*") if not path.is_symlink()]
    for path in filter(pathlib.Path.is_file, (root, *sorted(within))):
      stat, name = path.stat(), path.relative_to(root)
      digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
  return digest.hexdigest()


def _digest(path: str) -> str:
  """Returns a hash of the content of a file, or of the chats in a folder."""
  digest = hashlib.sha256()
  for file in files_of(pathlib.Path(path)):
    with file.open("rb") as content:
      digest.update(hashlib.file_digest(content, "sha256").digest())
  return digest.hexdigest()


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


def hash_of(keys: Mapping[str, Any]) -> str:
  """Returns the name of the stages that these keys make."""
  text = json.dumps(keys, sort_keys=True, default=str)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


class SharedStages:
  """The stages of one config in a store; without a store it does nothing."""

  def __init__(self, config: ml_collections.ConfigDict) -> None:
    store = config.warm_start.store
    if store and config.checkpoint.directory:
      raise ConfigError(
        f"{_STORE}={store!r} keeps the warm start's checkpoint with the other "
        f"stages, and checkpoint.directory={config.checkpoint.directory!r} "
        "keeps checkpoints elsewhere: set one of them"
      )
    self._keys = shared_keys(config)
    self._folder = pathlib.Path(store) / hash_of(self._keys) if store else None
    self._lock = contextlib.ExitStack()

  @property
  def are_kept(self) -> bool:
    """True if the store has them."""
    return self._folder is not None and self._folder.exists()

  @contextlib.contextmanager
  def begun(self, run: pathlib.Path, *, timeout_s: float) -> Iterator[None]:
    """Copies the stages into a new run, or lets it make them within.

    Other runs that need the same stages wait for those that this one makes, at
    most `timeout_s`. A run whose RL has begun keeps those that it has.
    """
    with self._lock:
      if self._folder is not None and not _is_settled(run):
        self._wait_for_lock(timeout_s)
        if self.are_kept:
          _copy(self._folder, run)
          _file(run, _record(self._folder / RECORD))
          self._lock.close()
      yield

  def keep(self, run: pathlib.Path, made_by: Mapping[str, Any]) -> None:
    """Copies a run's stages into the store, unless it has them.

    `made_by` has facts of the run, for the record.
    """
    if self._folder is None or _is_settled(run):
      return
    record = {"keys": self._keys, "made_by": dict(made_by)}
    if not self.are_kept:
      partial = self._folder.with_suffix(".partial")
      shutil.rmtree(partial, ignore_errors=True)
      _copy(run, partial)
      _file(partial, record)
      partial.rename(self._folder)
    _file(run, record)
    self._lock.close()

  def _wait_for_lock(self, timeout_s: float) -> None:
    assert self._folder is not None
    self._folder.parent.mkdir(parents=True, exist_ok=True)
    path = self._folder.with_suffix(".lock")
    deadline = time.monotonic() + timeout_s
    while True:
      try:
        self._lock.enter_context(
          held(
            path,
            f"waited {timeout_s:g} s (processes.wait_timeout_s) for the run "
            f"that makes the stages {self._folder}; see whether it goes on",
          )
        )
      except RunInUse as error:
        if time.monotonic() > deadline:
          raise DeadlineExceeded(str(error)) from error
      else:
        return


def shared_facts(run: pathlib.Path) -> dict[str, Any]:
  """Returns which run made the stages that this run has; {} if it is alone."""
  path = run / RECORD
  if not path.exists():
    return {}
  record = _record(path)
  with reading(path):
    return {
      "stages_before_rl": {"hash": hash_of(record["keys"]), **record["made_by"]}
    }


def _record(path: pathlib.Path) -> dict[str, Any]:
  with reading(path):
    return dict(json.loads(path.read_text()))


def _is_settled(run: pathlib.Path) -> bool:
  """True if the run has shared stages, or goes on from stages of its own."""
  return (run / RECORD).exists() or (run / "trained_groups.jsonl").exists()


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
  """Copies the stages of one folder over those of another."""
  for pattern in _FILES:
    for path in source.glob(pattern):
      if any(path.match(later) for later in _LATER):
        continue
      copy = target / path.relative_to(source)
      copy.parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(path, copy)
  for name in _FOLDERS:
    if (source / name).exists():
      shutil.rmtree(target / name, ignore_errors=True)
      shutil.copytree(source / name, target / name)


def _file(folder: pathlib.Path, record: Mapping[str, Any]) -> None:
  """Writes the record, which is the last file of a copy."""
  write_whole(folder / RECORD, json.dumps(record, indent=2, default=str))


def _is_below(key: str, section: str) -> bool:
  return key == section or key.startswith(f"{section}.")
