"""The config that a run was started with, read back from its folder."""

import pathlib
from typing import Any

import ml_collections
import yaml

from agentrl_jax.errors import ConfigError


def filed_config(root: pathlib.Path) -> ml_collections.ConfigDict:
  """Reads the run's config.yaml. Raises `ConfigError` if there is none."""
  path = root / "config.yaml"
  if not path.exists():
    raise ConfigError(
      f"--run={root} has no config.yaml: name the folder of a run, such as "
      "runs/quickstart"
    )
  return ml_collections.ConfigDict(_frozen(yaml.safe_load(path.read_text())))


def _frozen(value: Any) -> Any:
  """Lists as tuples, which is what they were before they were filed."""
  if isinstance(value, dict):
    return {key: _frozen(v) for key, v in value.items()}
  if isinstance(value, list):
    return tuple(_frozen(v) for v in value)
  return value
