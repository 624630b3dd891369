"""Finds the files that a config names, from any working directory.

A run's config.yaml has paths as they were written. paths.json beside it says
where each of them was at the run's last start, so that a command about the run
finds them from elsewhere, and has a digest of the pretrained model, so that no
other model is taken for it.
"""

import copy
import fnmatch
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import ml_collections

from agentrl_jax.data.chat.named_template import NAMES as TEMPLATE_NAMES
from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading, write_whole
from agentrl_jax.model.hugging_face.tensor_files import model_digest
from configs.base import flat_keys

FILE = "paths.json"
MODEL = "the pretrained model's digest"
_PRETRAINED, _TEMPLATE = "pretrained.path", "chat.template"
# Keys whose values are files or folders; `*` is any name.
KEYS = (
  _PRETRAINED,
  "reference.path",
  "warm_start.from_run",
  "warm_start.chats",
  "checkpoint.directory",
  "rollouts.snapshots",
  "rollouts.token_file",
  "agents.token_file",
  _TEMPLATE,
  "cross_policy.policy_slots",
  "environments.*.place.token_file",
  *(
    f"environments.*.options.{name}"
    for name in (
      "source",
      "games",
      "ontology",
      "rootfs",
      "products",
      "attributes",
      "human_instructions",
    )
  ),
)
_SLOT = re.compile(r"(steps [\d,]+ of )(.+)")  # of cross_policy.policy_slots


def located(
  config: ml_collections.ConfigDict, root: pathlib.Path
) -> ml_collections.ConfigDict:
  """Returns the config of the run at `root` with absolute paths.

  A path that the run began with, in these words, is where it then was, unless
  it is only in the working directory.
  """
  places = {}
  kept = _kept(root)
  for key, value in _values(config):
    place = _absolute(value, key)
    known = kept.get(key, {})
    if known.get("text") == _plain(value) and not (
      _exist(place, key) and not _exist(known["place"], key)
    ):
      place = known["place"]
    if _plain(place) != _plain(value):
      places[key] = tuple(place) if isinstance(value, tuple) else place
  if not places:
    return config
  placed = copy.deepcopy(config)
  with placed.unlocked():
    placed.update_from_flattened_dict(places)
  return placed


def keep_paths(config: ml_collections.ConfigDict, root: pathlib.Path) -> None:
  """Writes where the files of a run are that is being started.

  Raises `ConfigError` if the pretrained model is not the run's.
  """
  placed = located(config, root)
  paths = dict(_values(placed))
  kept: dict[str, Any] = {
    key: {"text": _plain(text), "place": _plain(paths[key])}
    for key, text in _values(config)
    if _plain(text) != _plain(paths[key])
  }
  require_model(placed.pretrained.path, root)
  model = kept_digest(root) or model_digest(placed.pretrained.path)
  if model:
    kept[MODEL] = model
  if not kept:
    return
  write_whole(root / FILE, json.dumps(kept, indent=2))


def require_model(folder: str, root: pathlib.Path) -> None:
  """Raises `ConfigError` if a folder's model is not that of the run."""
  known = kept_digest(root)
  found = model_digest(folder) if known else None
  if found and found != known:
    raise ConfigError(
      f"pretrained.path={folder} holds another model than the one that "
      f"{root} began with (digest {found}, and {known} then): put that model "
      "back, or choose another --config.name"
    )


def kept_digest(root: pathlib.Path) -> str | None:
  """Returns the digest of the run's pretrained model, if it has one."""
  return _kept(root).get(MODEL)


def same_place(key: str, old: Any, new: Any, root: pathlib.Path) -> bool:
  """True for a path of the run at `root` and another text for the same file."""
  if not _is_path(key) or not (old and new):
    return False
  known = _kept(root).get(key, {})
  place = known["place"] if known.get("text") == _plain(old) else old
  return bool(_absolute(place, key) == _absolute(new, key))


def _kept(root: pathlib.Path) -> dict[str, Any]:
  path = root / FILE
  if not path.exists():
    return {}
  with reading(path):
    found = dict(json.loads(path.read_text(encoding="utf-8")))
    for key, known in found.items():
      if key != MODEL and _shape(known["text"]) != _shape(known["place"]):
        raise ValueError(f"{key} is {known!r:.80}")
  return found


def _shape(value: Any) -> list[type]:
  """Returns the type of a path, or of each in a list."""
  return [list, *map(type, value)] if isinstance(value, list) else [type(value)]


def _values(config: ml_collections.ConfigDict) -> Iterator[tuple[str, Any]]:
  """Yields the keys whose paths are read in this process, with their values."""
  for key, value in flat_keys(config):
    words = key.split(".")
    if words[0] == "environments" and words[2] == "options":
      place = config.environments[words[1]].place
      if any(map(place.get, ("containers", "worker", "controller"))):
        continue
    if value and _is_path(key):
      yield key, value


def _is_path(key: str) -> bool:
  return any(fnmatch.fnmatchcase(key, pattern) for pattern in KEYS)


def _plain(value: Any) -> Any:
  """Turns a tuple into a list, as JSON and YAML read it back."""
  return list(value) if isinstance(value, tuple) else value


def _absolute(value: Any, key: str) -> Any:
  if isinstance(value, list | tuple):
    return [_absolute(each, key) for each in value]
  return "".join(
    part if n % 2 else _absolute_path(part)
    for n, part in enumerate(_parts(value, key))
  )


def _exist(value: Any, key: str) -> bool:
  if isinstance(value, list | tuple):
    return all(_exist(each, key) for each in value)
  return all(map(os.path.exists, _paths_in(value, key)))


def _paths_in(text: str, key: str) -> list[str]:
  return [part for part in _parts(text, key)[::2] if part]


def _parts(text: str, key: str) -> list[str]:
  """Splits into paths and what stands between them, in turn, a path first."""
  if key == _TEMPLATE and text in TEMPLATE_NAMES:
    return ["", text, ""]
  if key == "cross_policy.policy_slots":
    match = _SLOT.fullmatch(text)
    return ["", match[1], match[2]] if match else ["", text, ""]
  if not key.startswith("environments.") or os.path.exists(text):
    return [text]
  # Names before paths, and the commas after them.
  return re.split(r"((?:^|,)(?:[\w.-]+=)?)", text)


def _absolute_path(path: str) -> str:
  """Leaves addresses of buckets and names of variables as they are."""
  if not path or "://" in path or path.startswith("env:"):
    return path
  return os.path.abspath(path)
