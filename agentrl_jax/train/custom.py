"""Functions outside the package as parts of the objective.

A config names one as `module:function`. Its parameters say what it is given:
arrays and counts by the names that `losses` uses for them, such as
`log_ratio_BT`; every other parameter is a setting, taken from the config. What
does not fit is refused before anything is compiled, and `train.custom_trial`
runs each function once on a few numbers.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax.core import FrozenDict

from agentrl_jax.errors import ConfigError
from agentrl_jax.losses import Mean
from agentrl_jax.named_objects import import_module_of, signature_of


@dataclasses.dataclass(frozen=True)
class Role:
  """A place in the objective that a function may take."""

  what: str  # it computes, in errors
  result: str  # that it must return
  inputs: tuple[str, ...]  # that it may take
  needed: tuple[str, ...]  # of which it must take at least one


_TOKENS = (
  "mask_BT",
  "segment_BT",
  "num_segments",
  "turn_BT",
  "task_BT",
  "policy_slot_BT",
  "version_BT",
  "behavior_logprob_BT",
)
SURROGATE = Role(
  what="surrogate",
  result="the loss of each token, [B, T]",
  inputs=(
    "log_ratio_BT",
    "advantage_BT",
    "policy_logprob_BT",
    "entropy_BT",
    *_TOKENS,
  ),
  needed=("log_ratio_BT", "policy_logprob_BT"),
)
TOKEN_WEIGHT = Role(
  what="weight of tokens",
  result="the weight of each token's surrogate, [B, T]",
  inputs=("advantage_BT", "policy_logprob_BT", "entropy_BT", *_TOKENS),
  needed=(
    "advantage_BT",
    "policy_logprob_BT",
    "entropy_BT",
    "mask_BT",
    "turn_BT",
    "task_BT",
    "policy_slot_BT",
    "version_BT",
    "behavior_logprob_BT",
  ),
)
KL_ESTIMATOR = Role(
  what="KL estimator",
  result="the estimate of each token, [B, T]",
  inputs=("log_ratio_BT", "behavior_log_ratio_BT", "mask_BT"),
  needed=("log_ratio_BT",),
)
REDUCTION = Role(
  what="reduction",
  result="an agentrl_jax.losses.Mean of two scalars",
  inputs=("x_BT", "mask_BT", "segment_BT", "num_segments", "task_BT"),
  needed=("x_BT",),
)
_OF_CRITICS = ("reward_BT", "value_BT", "mask_BT", "turn_BT", "segment_BT")
ESTIMATOR = Role(
  what="advantage estimator",
  result="one advantage per attempt, [N]; per turn, [N, U], if it takes an "
  "array of turns; advantage and target of the critic, each [B, T], if it "
  "takes value_BT",
  inputs=(
    "reward_N",
    "group_N",
    "task_N",
    "num_tokens_N",
    "valid_N",
    "reward_NU",
    "state_NU",
    "num_tokens_NU",
    "valid_NU",
    "num_groups",
    "num_tasks",
    "num_states",
    *_OF_CRITICS,
  ),
  needed=("reward_N", "reward_NU", "value_BT"),
)
KEEP = Role(
  what="filter of groups",
  result="which groups to keep, bool [M]",
  inputs=(
    "reward_N",
    "group_N",
    "task_N",
    "num_tokens_N",
    "valid_N",
    "num_groups",
  ),
  needed=("reward_N", "group_N", "num_tokens_N", "task_N"),
)


@dataclasses.dataclass(frozen=True)
class CustomFunction:
  """A function that was found, with its settings."""

  key: str  # of the config, that names it
  target: str  # module:function
  role: Role
  function: Callable[..., Any]
  reads: frozenset[str]  # of the role's inputs
  settings: Mapping[str, Any]

  def __call__(self, available: Mapping[str, Any]) -> Any:
    """Calls it with those of the available inputs that it takes."""
    inputs = {name: available[name] for name in self.reads}
    return self.function(**inputs, **self.settings)

  @property
  def name(self) -> str:
    """That of the function alone, for metrics."""
    return self.target.partition(":")[2]

  def refuse(self, found: str) -> ConfigError:
    """The error for a result that is not what the role asks for."""
    return ConfigError(
      f"{self.key}={self.target!r} {found}; a {self.role.what} returns "
      f"{self.role.result}"
    )

  def require_shape(self, result: Any, shape: Sequence[int]) -> Any:
    """The result. Raises `ConfigError` unless it is an array of that shape."""
    if not hasattr(result, "shape") or not hasattr(result, "dtype"):
      raise self.refuse(f"returned {type(result).__name__}, no array")
    if tuple(result.shape) != tuple(shape):
      raise self.refuse(
        f"returned an array of shape {tuple(result.shape)} where "
        f"{tuple(shape)} is expected"
      )
    return result

  def require_mean(self, result: Any) -> Mean:
    """The result. Raises `ConfigError` unless it is a Mean of scalars."""
    if not isinstance(result, Mean):
      raise self.refuse(f"returned {type(result).__name__}")
    for name in ("total", "weight"):
      shape = jnp.shape(getattr(result, name))
      if shape:
        raise self.refuse(f"returned a Mean whose {name} has the shape {shape}")
    return Mean(
      *(jnp.asarray(x, jnp.float32) for x in (result.total, result.weight))
    )


def is_custom(name: str) -> bool:
  """Whether a name of the config is `module:function`."""
  return isinstance(name, str) and ":" in name


def freeze(key: str, value: Any) -> Any:
  """JSON-like settings as hashable ones. Raises `ConfigError` for others."""
  if isinstance(value, Mapping):
    for name in value:
      if not isinstance(name, str):
        raise ConfigError(f"{key} has the key {name!r}: keys are texts")
    return FrozenDict({n: freeze(f"{key}.{n}", v) for n, v in value.items()})
  if isinstance(value, list | tuple):
    return tuple(freeze(f"{key}[{n}]", v) for n, v in enumerate(value))
  if type(value) is float and not math.isfinite(value):
    raise ConfigError(f"{key}={value} is no number that can be computed with")
  if value is not None and type(value) not in (bool, int, float, str):
    raise ConfigError(
      f"{key}={value!r} is of type {type(value).__name__}: a setting is a "
      "number, a text, True, False, None, or a list or mapping of those"
    )
  return value


def find_custom(
  key: str, target: str, role: Role, settings: Mapping[str, Any]
) -> CustomFunction:
  """The function that `target` names, with settings that it takes.

  Raises `ConfigError` if it cannot be imported or called, takes what it cannot
  be given, or needs settings that are not there.
  """
  module, name = import_module_of(
    target,
    kind=key,
    form="module:function",
    example="my_lab.losses:my_function",
  )
  function = getattr(module, name, None)
  if function is None:
    known = sorted(
      n for n, value in vars(module).items() if inspect.isfunction(value)
    )
    raise ConfigError(
      f"{key}={target!r}: {module.__name__} has no {name!r}; its functions "
      f"are {', '.join(known) or 'none'}"
    )
  if not callable(function):
    raise ConfigError(
      f"{key}={target!r} is of type {type(function).__name__}, which cannot be "
      "called: name a function"
    )
  reads = _check_signature(key, target, role, function, settings)
  return CustomFunction(key, target, role, function, reads, settings)


def _check_signature(
  key: str,
  target: str,
  role: Role,
  function: Callable[..., Any],
  settings: Mapping[str, Any],
) -> frozenset[str]:
  """The inputs that a function takes; `ConfigError` if it does not fit."""
  parameters = signature_of(target, function).parameters.values()
  takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
  by_name = [
    p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
  ]
  unnamed = [p.name for p in by_name if p.kind is p.POSITIONAL_ONLY]
  reads = frozenset(p.name for p in by_name) & frozenset(role.inputs)
  own = {p.name: p for p in by_name if p.name not in role.inputs}
  needed = [n for n, p in own.items() if p.default is p.empty]
  may_take = (
    f"A {role.what} may take {', '.join(role.inputs)}; all else are its "
    f"settings, here {', '.join(own) or 'none'}"
  )
  at = f"{key}={target!r}"
  if unnamed:
    raise ConfigError(
      f"{at} takes {', '.join(unnamed)} by position only: what it is given is "
      f"known by name. {may_take}"
    )
  if not reads & set(role.needed):
    raise ConfigError(
      f"{at} takes none of {', '.join(role.needed)}, one of which a "
      f"{role.what} needs. {may_take}"
    )
  given = [n for n in settings if n in role.inputs]
  if given:
    raise ConfigError(
      f"{key}_settings has {', '.join(given)}, which {target!r} is given "
      "anyhow: remove it"
    )
  unknown = [n for n in settings if n not in own]
  missing = [n for n in needed if n not in settings]
  if missing or (unknown and not takes_any):
    found = ", ".join(settings) or "none"
    raise ConfigError(
      f"{at} does not fit {key}_settings, which has {found}: "
      + "; ".join(
        f"{problem} {', '.join(names)}"
        for problem, names in (
          ("it does not take", unknown if not takes_any else []),
          ("it needs", missing),
        )
        if names
      )
      + f". {may_take}"
    )
  return reads
