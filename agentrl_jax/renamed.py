"""Config keys and metrics whose names have changed, and their names today.

The one table of old names. The command line, the folder of a run and the reader
of metrics all use `new_name`, so that an old name costs a sentence, not a
search.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

# Patterns of a whole name, and what replaces it; the first match counts.
_RENAMED = (
  # Config keys.
  (r"cross_policy\.slots", "cross_policy.policy_slots"),
  (r"slot_weights(\..*)?", r"policy_slot_weights\1"),
  (r"engine\.lanes", "engine.slots"),
  (r"engine\.num_lane_sizes", "engine.num_slot_sizes"),
  (r"engine\.prefill_lanes", "engine.prefill_slots"),
  (r"engine\.store_tokens", "engine.prefix_cache_tokens"),
  (r"engine\.host_tokens", "engine.prefix_cache_host_tokens"),
  (r"engine\.block_tokens", "engine.block_size"),
  (r"train\.take_s", "train.batch_timeout_s"),
  (r"retry\.pause_s", "retry.backoff_s"),
  (r"rollouts\.lost_s", "rollouts.server_timeout_s"),
  (r"rollouts\.settle_s", "rollouts.sync_timeout_s"),
  (r"rollouts\.(answer|start)_s", r"rollouts.\1_timeout_s"),
  (r"rollouts\.(poll|health)_s", r"rollouts.\1_interval_s"),
  (r"agents\.idle_s", "agents.idle_timeout_s"),
  (r"http\.(head|body|compile)_s", r"http.\1_timeout_s"),
  (r"processes\.(join|heartbeat|wait)_s", r"processes.\1_timeout_s"),
  (r"containers\.start_s", "containers.start_timeout_s"),
  (r"(.*\b)optimizer\.final_share", r"\1optimizer.final_lr_ratio"),
  (r"model\.rotary_share", "model.partial_rotary_factor"),
  (r"advantage\.trace", "advantage.gae_lambda"),
  (
    r"loss\.sapo_(tau_positive|tau_negative)",
    r"loss.surrogate_settings={'\1': ...}",
  ),
  (r"loss\.reduction_length", "loss.reduction_settings={'length': ...}"),
  (
    r"advantage\.(k|step_weight|turn_discount)",
    r"advantage.estimator_settings={'\1': ...}",
  ),
  (
    r"advantage\.keep_threshold",
    "advantage.keep_settings={'threshold': ...}, or {'share': ...}",
  ),
  # Metrics.
  (r"engine/lane_occupancy/slot(\d+)", r"engine/slot_occupancy/policy_slot\1"),
  (r"slots/(\w+)/slot(\d+)/(.*)", r"policy_slots/\1/policy_slot\2/\3"),
  (r"slots/(predicted_sample_size/.*)", r"policy_slots/\1"),
  (r"(.*)/slot(\d+)(.*)", r"\1/policy_slot\2\3"),
)


def new_name(name: str) -> str | None:
  """The name of today for an old config key or metric; None if it is no such.

  A config key is written with dots, as on the command line without `config.`.
  """
  for pattern, replacement in _RENAMED:
    if match := re.fullmatch(pattern, name):
      return match.expand(replacement)
  return None


def renamed_keys(config: Mapping[str, Any]) -> dict[str, str]:
  """The old keys of a config, each with its name of today."""
  pairs = ((key, new_name(key)) for key in _keys(config))
  return {key: name for key, name in pairs if name is not None}


def sentence(names: Mapping[str, str]) -> str:
  """Old names and those of today, as part of a message."""
  return ", ".join(f"{old} is now {new}" for old, new in names.items())


def _keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
  for name, value in config.items():
    yield prefix + name
    if isinstance(value, Mapping):
      yield from _keys(value, f"{prefix}{name}.")
