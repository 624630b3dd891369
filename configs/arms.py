"""Ablations as data: an arm is a name and the keys it changes."""

from collections.abc import Mapping
from typing import Any

import ml_collections

Arms = Mapping[str, Mapping[str, Any]]


def apply_arm(
  config: ml_collections.ConfigDict, arms: Arms, arm: str
) -> ml_collections.ConfigDict:
  """The config with one arm's keys changed; a key that is not there raises."""
  if arm not in arms:
    raise ValueError(f"no arm {arm!r}; choose one of {', '.join(arms)}")
  config.update_from_flattened_dict(arms[arm])
  config.name = f"{config.name}-{arm}"
  return config
