"""Reads back the config that a run was started with.

A run may be older than a key of the config. A key that its file lacks has the
default of `configs/base.py`, so that such a run can be exported and served.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections
import yaml

from agentrl_jax.controller.groups.group_queue import ANY_AGE
from agentrl_jax.errors import ConfigError
from agentrl_jax.files import reading
from agentrl_jax.renamed import renamed_keys, sentence
from configs import base
from launch.storage.config_paths import located


def run_config(root: pathlib.Path) -> ml_collections.ConfigDict:
  """Reads the run's config.yaml, with absolute paths.

  Raises `ConfigError` if there is none.
  """
  path = root / "config.yaml"
  if not path.exists():
    raise ConfigError(
      f"--run={root} has no config.yaml: name the folder of a run, such as "
      "runs/quickstart"
    )
  filed = _frozen(filed_config(path))
  config = ml_collections.ConfigDict(
    _filled(filed, base.get_config().to_dict())
  )
  return located(config, root)


def filed_config(path: pathlib.Path) -> dict[str, Any]:
  """Reads a run's config.yaml, in the words of today.

  Raises `ConfigError` if it has old names of keys, or was cut off.
  """
  filed = read_config(path)
  require_names_of_today(filed, path)
  queue = filed.get("queue", {})
  if "max_age" in queue and queue["max_age"] is None:
    queue["max_age"] = ANY_AGE  # as it was called, until it had a default
  return filed


def read_config(path: pathlib.Path) -> dict[str, Any]:
  """Reads a run's config.yaml as it is. Raises `ConfigError` if it is damaged.

  What is left of a file that was cut off may be YAML too: its last line has no
  end, or its last section no keys.
  """
  with reading(path):
    text = path.read_text(encoding="utf-8")
    try:
      filed = yaml.safe_load(text)
    except yaml.YAMLError as error:
      raise ValueError(str(error)) from error
    if not isinstance(filed, dict) or not text.endswith("\n"):
      raise ValueError("it has no settings, or its last line no end")
    for name, known in base.get_config().to_dict().items():
      if isinstance(known, dict) and not isinstance(filed.get(name, {}), dict):
        raise ValueError(f"{name} is {filed[name]!r:.80}, and not a section")
  return filed


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
