"""Makes the paths of a config absolute, and knows a run's pretrained model.

A run's config.yaml has absolute paths, so that commands about the run find its
files from any directory. pretrained.json beside it has a digest of the model,
so that no other one is taken for it.
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

FILE = "pretrained.json"
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


def absolute(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns the config with absolute paths."""
  places = {key: _absolute(value, key) for key, value in _values(config)}
  placed = copy.deepcopy(config)
  with placed.unlocked():
    placed.update_from_flattened_dict(places)
  return placed


def keep_model(folder: str, root: pathlib.Path) -> None:
  """Writes which pretrained model a run has that is being started.

  Raises `ConfigError` if it is not the run's.
  """
  require_model(folder, root)
  if kept_digest(root) is None and (found := model_digest(folder)):
    write_whole(root / FILE, json.dumps({MODEL: found}))


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
  path = root / FILE
  if not path.exists():
    return None
  with reading(path):
    return str(json.loads(path.read_text(encoding="utf-8"))[MODEL])


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


def _absolute(value: Any, key: str) -> Any:
  if isinstance(value, list | tuple):
    return tuple(_absolute(each, key) for each in value)
  return "".join(
    part if n % 2 else _absolute_path(part)
    for n, part in enumerate(_parts(value, key))
  )


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
