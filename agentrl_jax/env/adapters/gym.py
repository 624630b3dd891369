"""Adapter of Gymnasium's environments to tool calls, or to answers in text.

  environment = GymEnvironment("FrozenLake-v1", split_by="seed")

The action space becomes the tool's schema, and observations become text. A
space of texts, `spaces.Text`, has no tool: the answer itself is the action.
Override `show` where words describe an observation better than numbers.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from agentrl_jax.data.grammar.json_schema import shortened
from agentrl_jax.data.records import Tool
from agentrl_jax.env.adapters.reset_step import ResetStep
from agentrl_jax.errors import ConfigError

_DIGITS = 4  # of a number that the policy reads
_SHOWN = 200  # characters of an action that is refused


def schema_of(space: spaces.Space[Any]) -> dict[str, Any]:
  """Returns the JSON schema of the space's members."""
  match space:
    case spaces.Text():
      return {
        "type": "string",
        "minLength": space.min_length,
        "maxLength": space.max_length,
      }
    case spaces.Dict():
      return _object({name: schema_of(part) for name, part in space.items()})
    case spaces.Tuple():
      parts = enumerate(space.spaces)
      return _object({_part(n): schema_of(part) for n, part in parts})
    case spaces.Sequence():
      return {"type": "array", "items": schema_of(space.feature_space)}
  return _numbers(space)


def member_of(space: spaces.Space[Any], value: Any) -> Any:
  """Converts JSON to a member; raises `InvalidAction` if there is none."""
  member = _read(space, value)
  if not space.contains(member):
    raise gymnasium.error.InvalidAction(
      f"{shortened(repr(value), _SHOWN)} is not in {space}"
    )
  return member


def as_json(observation: Any) -> Any:
  """Converts an observation's NumPy values to numbers, lists and dicts."""
  if isinstance(observation, np.ndarray | np.generic):
    return as_json(observation.tolist())
  if isinstance(observation, float):
    return round(observation, _DIGITS)
  if isinstance(observation, Mapping):
    return {str(key): as_json(value) for key, value in observation.items()}
  if isinstance(observation, tuple | list):
    return [as_json(value) for value in observation]
  return observation


def _numbers(space: spaces.Space[Any]) -> dict[str, Any]:
  """Returns the schema of numbers, each from the lowest to the highest."""
  low: Any
  high: Any
  match space:
    case spaces.Discrete():
      low, high = space.start, space.start + space.n - 1
    case spaces.MultiDiscrete():
      low, high = space.start, space.start + space.nvec - 1
    case spaces.MultiBinary():
      low, high = 0, 1
    case spaces.Box():
      low, high = space.low, space.high
    case _:
      raise ConfigError(
        f"actions in {space} cannot be asked for by a schema, only those in "
        "Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text and "
        "Tuple; override `tools` and `action`"
      )
  schema: dict[str, Any] = {
    "type": "integer" if np.issubdtype(space.dtype, np.integer) else "number"
  }
  for keyword, bound in (("minimum", np.min(low)), ("maximum", np.max(high))):
    if np.isfinite(bound):
      schema[keyword] = bound.item()
  for length in reversed(space.shape or ()):
    schema = {
      "type": "array",
      "items": schema,
      "minItems": int(length),
      "maxItems": int(length),
    }
  return schema


def _object(properties: dict[str, Any]) -> dict[str, Any]:
  return {
    "type": "object",
    "properties": properties,
    "required": list(properties),
    "additionalProperties": False,
  }


def _part(n: int) -> str:
  return f"part_{n}"


def _read(space: spaces.Space[Any], value: Any) -> Any:
  match space:
    case spaces.Discrete():
      return int(value)
    case spaces.Dict():
      return {name: _read(part, value[name]) for name, part in space.items()}
    case spaces.Tuple():
      parts = enumerate(space.spaces)
      return tuple(_read(part, value[_part(n)]) for n, part in parts)
    case spaces.Sequence():
      return tuple(_read(space.feature_space, item) for item in value)
    case spaces.Text():
      return value
  with np.errstate(over="ignore"):
    member = np.asarray(value, dtype=space.dtype)
  if not np.isfinite(member).all():  # 1e300 exceeds float32
    raise gymnasium.error.InvalidAction(f"{value!r} is too large")
  return member


class GymEnvironment(ResetStep):
  """An environment of Gymnasium's registry, by its id.

  `options` go to `gymnasium.make`, such as `max_episode_steps`. `actions` names
  the members of a `Discrete` space in their order, so that the policy may say
  "left" for 0. `tool` is the tool's name, by default `act`; without one a
  space of texts is answered in text. `argument`, by default `action`, is the
  name of the tool's only argument, unless the space is a `Dict`, whose keys are
  the arguments. The other options are those of `ResetStep`.
  """

  # Actions are checked before they are played, so that other exceptions are
  # faults of the environment.
  refusals = (gymnasium.error.InvalidAction,)

  def __init__(
    self,
    id: str,
    *,
    options: Mapping[str, Any] | None = None,
    actions: Sequence[str] = (),
    tool: str = "",
    argument: str = "",
    description: str = "",
    **rules: Any,
  ):
    super().__init__(**rules)
    self.name = id
    self._id = id
    self._options = dict(options or {})
    self._actions = tuple(actions)
    self._argument = argument or "action"
    self._space = self._find_space()
    if isinstance(self._space, spaces.Text) and not tool:
      if actions or argument or description:
        raise ConfigError(
          f"{id!r} is answered in text, so that there is no tool with actions, "
          "an argument and a description: leave them out, or name a `tool`"
        )
    else:
      self.tools = (
        Tool(
          tool or "act", description or "Takes an action.", self._parameters()
        ),
      )

  def make(self, seed: int) -> Any:
    """Makes a new environment from the registry."""
    del seed  # `reset` gets it
    return self._make()

  def begin(self, wrapped: Any, seed: int) -> Any:
    """Resets the environment with the seed."""
    return wrapped.reset(seed=seed)

  def action(self, name: str, arguments: Mapping[str, Any]) -> Any:
    """Converts the arguments to a member of the action space."""
    if self._is_flat:
      value = arguments[self._argument]
      if self._actions:
        value = self._actions.index(value) + int(self._space.start)
      return member_of(self._space, value)
    return member_of(self._space, arguments)

  def text_action(self, text: str) -> Any:
    """Returns the text, if it is a member of the action space."""
    return member_of(self._space, text)

  def show(self, wrapped: Any, observation: Any) -> str:
    """Returns text unchanged, and anything else as JSON."""
    del wrapped
    plain = as_json(observation)
    return plain if isinstance(plain, str) else json.dumps(plain)

  @property
  def _is_flat(self) -> bool:
    return not isinstance(self._space, spaces.Dict)

  def _make(self) -> gymnasium.Env[Any, Any]:
    # Warnings of the checker are for the environment's author, not for a run.
    return gymnasium.make(self._id, disable_env_checker=True, **self._options)

  def _find_space(self) -> Any:
    try:
      environment = self._make()
    except (gymnasium.error.Error, ImportError, TypeError) as error:
      raise ConfigError(
        f"Gymnasium cannot make {self._id!r} with options {self._options}: "
        f"{error}"
      ) from error
    try:
      return environment.action_space
    finally:
      environment.close()

  def _parameters(self) -> dict[str, Any]:
    schema = schema_of(self._space)
    if not self._is_flat:
      return schema
    if self._actions:
      schema = self._named()
    return {
      "type": "object",
      "properties": {self._argument: schema},
      "required": [self._argument],
      "additionalProperties": False,
    }

  def _named(self) -> dict[str, Any]:
    space = self._space
    if not isinstance(space, spaces.Discrete) or space.n != len(self._actions):
      raise ConfigError(
        f"actions={self._actions} must name each member of a Discrete space, "
        f"and the space of {self._id!r} is {space}"
      )
    return {"type": "string", "enum": list(self._actions)}
