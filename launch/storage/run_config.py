"""Reads back the config that a run was started with.

A run may be older than a key of the config. A key that its file lacks has the
default, so that such a run can be exported and served.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections
import yaml

from agentrl_jax.controller.groups.group_queue import ANY_AGE
from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading
from agentrl_jax.renamed import renamed_keys, sentence
from configs import base, environments
from launch.storage.config_paths import located

_FILE = "config.yaml"
# Keys that are now settings of a function, and their values where no function
# read them: a run that has these goes on.
_WITHOUT_READER = {
  ("loss", "sapo_tau_positive"): 1.0,
  ("loss", "sapo_tau_negative"): 1.05,
  ("loss", "reduction_length"): 0,
  ("advantage", "k"): 1,
  ("advantage", "step_weight"): 1.0,
  ("advantage", "turn_discount"): 1.0,
  ("advantage", "keep_threshold"): 0.0,
}


def is_run(folder: pathlib.Path) -> bool:
  """True for the folder of a run."""
  return (folder / _FILE).exists()


def run_config(root: pathlib.Path) -> ml_collections.ConfigDict:
  """Reads the run's config.yaml, with absolute paths.

  Raises `ConfigError` if there is none.
  """
  path = root / _FILE
  if not path.exists():
    raise ConfigError(
      f"--run={root} has no config.yaml: name the folder of a run, such as "
      "runs/quickstart"
    )
  filed = _frozen(filed_config(path))
  config = ml_collections.ConfigDict(_filled(filed, base.default_values()))
  return located(config, root)


def filed_config(path: pathlib.Path) -> dict[str, Any]:
  """Reads a run's config.yaml, in the words of today.

  Raises `ConfigError` if it has old names of keys, or was cut off.
  """
  filed = read_config(path)
  require_names_of_today(filed, path)
  return filed


def read_config(path: pathlib.Path) -> dict[str, Any]:
  """Reads a run's config.yaml as it is. Raises `ConfigError` if it is damaged.

  What is left of a file that was cut off may be YAML too: its last line has no
  end, its last section no keys, or the sections end too early.
  """
  with reading(path):
    text = path.read_text(encoding="utf-8")
    try:
      filed = yaml.safe_load(text)
    except yaml.YAMLError as error:
      raise ValueError(str(error)) from error
    if not isinstance(filed, dict) or not text.endswith("\n"):
      raise ValueError("it has no settings, or its last line no end")
    # Sections are in the order of their names, and all runs have this one.
    if "train" not in filed:
      raise ValueError("it ends before `train`, and was cut off")
    queue = filed.get("queue")
    if isinstance(queue, dict) and queue.get("max_age", 0) is None:
      queue["max_age"] = ANY_AGE  # as it was called, until it had a default
    for (section, key), value in _WITHOUT_READER.items():
      held = filed.get(section)
      if isinstance(held, dict) and held.get(key) == value:
        del held[key]
    known = base.default_values()
    section = environments.entry("").to_dict()
    played = dict.fromkeys(filed.get("environments") or (), section)
    _refuse_other_kinds(filed, {**known, "environments": played})
  return filed


def _refuse_other_kinds(filed: Any, known: Any, key: str = "") -> None:
  """Raises `ValueError` for a value of another kind than the default's."""
  if (kind := _kind(known)) and _kind(filed) != kind:
    raise ValueError(f"{key.lstrip('.')} is {filed!r:.80}, and not {kind}")
  if isinstance(known, dict):
    for name in known.keys() & filed.keys():
      _refuse_other_kinds(filed[name], known[name], f"{key}.{name}")
  elif isinstance(known, tuple) and known:
    for each in filed:
      _refuse_other_kinds(each, known[0], key)


def _kind(value: Any) -> str:
  """Returns what a value is; of None, which any may replace, nothing."""
  if isinstance(value, float) and not math.isfinite(value):
    return "no number"
  kinds = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    dict: "a section",
    list: "a list",
    tuple: "a list",
  }
  return kinds.get(type(value), "")


def require_names_of_today(
  filed: Mapping[str, Any], path: pathlib.Path
) -> None:
  """Raises `ConfigError` for a run's config that has old key names."""
  if old := renamed_keys(filed):
    raise ConfigError(
      f"{path} was written before config keys were renamed: {sentence(old)}. "
      "To use the run, check out the commit in its summary.json, or rename the "
      "keys in this file and read docs/glossary.md on what else has changed"
    )


def _filled(filed: Any, known: Any) -> Any:
  """Adds defaults for the keys that a file lacks."""
  if not isinstance(filed, dict) or not isinstance(known, dict):
    return filed
  return known | {
    name: _filled(value, known.get(name)) for name, value in filed.items()
  }


def _frozen(value: Any) -> Any:
  """Turns lists into tuples, which they were before they were written."""
  if isinstance(value, dict):
    return {key: _frozen(v) for key, v in value.items()}
  if isinstance(value, list):
    return tuple(_frozen(v) for v in value)
  return value
