"""Keys, metrics and folders whose names have changed, and their names today.

The one table of old names. The command line, the folder of a run and the reader
of metrics all use `new_name`, so that an old name costs a sentence, not a
search.

Folders that have moved are imported by their old names too, and `python -m`
starts them, so that programs and Dockerfiles with an old name go on working.
"""

import importlib
import importlib.util
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
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


MOVED = {
  "agentrl_jax.controller.service": "agentrl_jax.service.controller",
  "agentrl_jax.env.docker": "agentrl_jax.service.docker",
  "agentrl_jax.env.protocol": "agentrl_jax.service.protocol",
  "agentrl_jax.env.remote": "agentrl_jax.service.remote",
  "agentrl_jax.env.worker": "agentrl_jax.service.worker",
}


def _spec_of_today(name: str) -> ModuleSpec | None:
  for old, new in MOVED.items():
    if name == old or name.startswith(f"{old}."):
      return importlib.util.find_spec(new + name.removeprefix(old))
  return None


class MovedModules(MetaPathFinder, Loader):
  """Finds modules by their old names, and gives those of today."""

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None,
    target: types.ModuleType | None = None,
  ) -> ModuleSpec | None:
    today = _spec_of_today(fullname)
    if today is None:
      return None
    is_package = today.submodule_search_locations is not None
    return ModuleSpec(fullname, self, is_package=is_package)

  def create_module(self, spec: ModuleSpec) -> types.ModuleType:
    today = _spec_of_today(spec.name)
    assert today is not None
    module = importlib.import_module(today.name)
    spec.loader_state = module.__spec__
    return module

  def exec_module(self, module: types.ModuleType) -> None:
    """Leaves the module as it is, with the spec of its name of today."""
    assert module.__spec__ is not None
    module.__spec__ = module.__spec__.loader_state

  def get_code(self, fullname: str) -> types.CodeType | None:
    """Returns what `python -m` runs."""
    today = _spec_of_today(fullname)
    assert today is not None and isinstance(today.loader, InspectLoader)
    return today.loader.get_code(today.name)
