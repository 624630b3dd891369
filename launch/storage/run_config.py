"""Reads back the config that a run was started with."""

import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections
import yaml

from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading
from configs import base
from configs.base import flat_keys

_FILE = "config.yaml"


def is_run(folder: pathlib.Path) -> bool:
  """True for the folder of a run."""
  return (folder / _FILE).exists()


def run_config(root: pathlib.Path) -> ml_collections.ConfigDict:
  """Reads the run's config.yaml, in which paths are absolute.

  Raises `ConfigError` if there is none.
  """
  path = root / _FILE
  if not path.exists():
    raise ConfigError(
      f"--run={root} has no config.yaml: name the folder of a run, such as "
      "runs/quickstart"
    )
  filed = read_config(path)
  if others := _keys(base.default_values()) ^ _keys(filed):
    found = "has" if min(others) in _keys(filed) else "lacks"
    raise ConfigError(
      f"{path} {found} the key {min(others)}: another version of this program "
      "wrote it, so use that one for this run"
    )
  return ml_collections.ConfigDict(_frozen(filed))


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
  return filed


def _keys(config: Mapping[str, Any]) -> set[str]:
  """Returns the keys that every config has: environments are its own."""
  return {
    key
    for key, _ in flat_keys(config)
    if not key.startswith(("environments.", "tasks.weights."))
  }


def _frozen(value: Any) -> Any:
  """Turns lists into tuples, which they were before they were written."""
  if isinstance(value, dict):
    return {key: _frozen(v) for key, v in value.items()}
  if isinstance(value, list):
    return tuple(_frozen(v) for v in value)
  return value
