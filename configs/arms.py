"""Ablations as data: an arm is a name and the keys that it changes."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.errors import ConfigError, suggestion
from configs.base import why_unknown

Arms = Mapping[str, Mapping[str, Any]]


def apply_arm(
  config: ml_collections.ConfigDict, arms: Arms, arm: str
) -> ml_collections.ConfigDict:
  """Changes one arm's keys.

  Raises `ConfigError` for an arm or a key that does not exist, and for a value
  of another type than the key's.
  """
  if arm not in arms:
    raise ConfigError(
      f"arm {arm!r} after the colon of --config is not one of "
      f"{', '.join(arms)}{suggestion(arm, arms)}"
    )
  for key in arms[arm]:
    if why := why_unknown(key, config):
      raise ConfigError(f"the arm {arm}: {why}")
  try:
    config.update_from_flattened_dict(arms[arm])
  except (TypeError, ValueError) as error:
    raise ConfigError(f"the arm {arm}: {error}") from error
  config.name = f"{config.name}-{arm}"
  return config


_OF_A_BATCH = (
  "admission.groups_per_step",
  "admission.max_concurrent_groups",
  "queue.max_groups",
)


def on_tasks(
  config: ml_collections.ConfigDict, names: Sequence[str]
) -> dict[str, Any]:
  """Returns the keys that train on some of a config's tasks.

  Each has as many demonstrations and groups per update as in the whole.
  """
  keys = ("warm_start.num_demonstrations", *_OF_A_BATCH)
  return {"tasks.names": tuple(names), **_scaled(config, keys, len(names))}


def learning_without(
  config: ml_collections.ConfigDict, names: Sequence[str]
) -> dict[str, Any]:
  """Returns the keys that leave tasks out of reinforcement learning alone.

  Each of the others has as many groups per update as in the whole.
  """
  num_others = len(config.tasks.names) - len(names)
  return {
    "tasks.held_out": tuple(names),
    **_scaled(config, _OF_A_BATCH, num_others),
  }


def _scaled(
  config: ml_collections.ConfigDict, keys: Sequence[str], num_tasks: int
) -> dict[str, Any]:
  share = num_tasks / len(config.tasks.names)
  whole = config.to_dict()
  scaled = {}
  for key in keys:
    section, name = key.split(".")
    scaled[key] = round(share * whole[section][name])
  return scaled
