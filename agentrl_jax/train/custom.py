"""Functions outside the package as parts of the objective.

A config names one as `module:function`. Its parameters select its inputs:
arrays and counts have the names that `losses` uses for them, such as
`log_ratio_BT`; every other parameter is a setting, taken from the config. A
function that does not fit is refused before anything is compiled, and
`train.custom_trial` calls each function once on a few numbers.
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
from agentrl_jax.named_objects import import_module_of


@dataclasses.dataclass(frozen=True)
class FunctionRole:
  """A place in the objective that a function may take."""

  name: str  # for error messages
  result: str  # the value that a function must return, for error messages
  inputs: tuple[str, ...]  # parameters that a function may have
  needed: tuple[str, ...]  # parameters of which it must have at least one


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
SURROGATE = FunctionRole(
  name="surrogate",
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
TOKEN_WEIGHT = FunctionRole(
  name="weight of tokens",
  result="the weight of each token's surrogate, [B, T]",
  inputs=(
    "advantage_BT",
    "policy_logprob_BT",
    "entropy_BT",
    "trajectory_BT",  # its lines may be in several rows
    *_TOKENS,
  ),
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
KL_ESTIMATOR = FunctionRole(
  name="KL estimator",
  result="the estimate of each token, [B, T]",
  inputs=("log_ratio_BT", "behavior_log_ratio_BT", "mask_BT"),
  needed=("log_ratio_BT",),
)
REDUCTION = FunctionRole(
  name="reduction",
  result="an agentrl_jax.losses.Mean of two scalars",
  inputs=("x_BT", "mask_BT", "segment_BT", "num_segments", "task_BT"),
  needed=("x_BT",),
)
_OF_CRITICS = ("reward_BT", "value_BT", "mask_BT", "turn_BT", "segment_BT")
ESTIMATOR = FunctionRole(
  name="advantage estimator",
  result="one advantage per trajectory, [N]; per turn, [N, U], if it takes an "
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
KEEP = FunctionRole(
  name="filter of groups",
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
  """A function outside the package, with its settings."""

  key: str  # of the config, that names it
  target: str  # module:function
  role: FunctionRole
  function: Callable[..., Any]
  reads: frozenset[str]  # of the role's inputs
  settings: Mapping[str, Any]

  def __call__(self, available: Mapping[str, Any]) -> Any:
    """Calls the function with those of the available inputs that it takes."""
    inputs = {name: available[name] for name in self.reads}
    return self.function(**inputs, **self.settings)

  @property
  def name(self) -> str:
    """Name of the function without its module, for metrics."""
    return self.target.partition(":")[2]

  def refuse(self, problem: str) -> ConfigError:
    """Returns the error for a result that does not fit the role."""
    return ConfigError(
      f"{self.key}={self.target!r} {problem}; a {self.role.name} returns "
      f"{self.role.result}"
    )

  def require_shape(self, result: Any, shape: Sequence[int]) -> Any:
    """Returns `result`; raises `ConfigError` if it has another shape."""
    if not hasattr(result, "shape") or not hasattr(result, "dtype"):
      raise self.refuse(f"returned {type(result).__name__}, no array")
    if tuple(result.shape) != tuple(shape):
      raise self.refuse(
        f"returned an array of shape {tuple(result.shape)} where "
        f"{tuple(shape)} is expected"
      )
    return result

  def require_mean(self, result: Any) -> Mean:
    """Returns `result`; raises `ConfigError` unless it is a Mean of scalars."""
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
  """Returns True if a name of the config is `module:function`."""
  return isinstance(name, str) and ":" in name


def freeze(key: str, value: Any) -> Any:
  """Makes JSON-like settings hashable. Raises `ConfigError` for others."""
  if isinstance(value, Mapping):
    for name in value:
      if not isinstance(name, str):
        raise ConfigError(f"{key} has the key {name!r}: keys are strings")
    return FrozenDict({n: freeze(f"{key}.{n}", v) for n, v in value.items()})
  if isinstance(value, list | tuple):
    return tuple(freeze(f"{key}[{n}]", v) for n, v in enumerate(value))
  if type(value) is float and not math.isfinite(value):
    raise ConfigError(f"{key}={value} is not a finite number")
  if value is not None and type(value) not in (bool, int, float, str):
    raise ConfigError(
      f"{key}={value!r} is of type {type(value).__name__}: a setting is a "
      "number, a string, True, False, None, or a list or mapping of those"
    )
  return value


def find_custom(
  key: str, target: str, role: FunctionRole, settings: Mapping[str, Any]
) -> CustomFunction:
  """Imports the function that `target` names and checks its settings.

  Raises `ConfigError` if it cannot be imported or called, or if its signature
  fits neither the role nor the settings.
  """
  module, name = import_module_of(
    target,
    kind=key,
    form="module:function",
    example="my_lab.losses:my_function",
  )
  function = getattr(module, name, None)
  if not callable(function):
    names = sorted(
      n for n, value in vars(module).items() if inspect.isfunction(value)
    )
    raise ConfigError(
      f"{key}={target!r}: {module.__name__} has no function {name!r}; its "
      f"functions are {', '.join(names) or 'none'}"
    )
  signature = inspect.signature(function)
  reads = signature.parameters.keys() & {*role.inputs}
  may_take = (
    f"A {role.name} may take {', '.join(role.inputs)}; all others are its "
    f"settings. It is {name}{signature}"
  )
  if not reads & {*role.needed}:
    raise ConfigError(
      f"{key}={target!r} takes none of {', '.join(role.needed)}, one of which "
      f"a {role.name} needs. {may_take}"
    )
  try:
    signature.bind(**dict.fromkeys(reads), **settings)
  except TypeError as error:
    raise ConfigError(
      f"{key}={target!r} does not fit {key}_settings={dict(settings)}: "
      f"{error}. {may_take}"
    ) from error
  return CustomFunction(key, target, role, function, frozenset(reads), settings)
