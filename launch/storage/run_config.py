"""Reads back the config that a run was started with.

A run may be older than a key of the config. A key that its file lacks has the
default, so that such a run can be exported and served.
"""

import math
import pathlib
from typing import Any

import ml_collections
import yaml

from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading
from configs import base, environments
from launch.storage.config_paths import located

_FILE = "config.yaml"


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
  filed = _frozen(read_config(path))
  config = ml_collections.ConfigDict(_filled(filed, base.default_values()))
  return located(config, root)


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
