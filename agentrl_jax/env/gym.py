"""Gymnasium's environments, played by tool calls.

  environment = GymEnvironment("FrozenLake-v1", split_by="seed")

The action space becomes the tool's schema, the observation text. Override
`show` where a picture in words says more than numbers do.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces

from agentrl_jax.data.messages import Tool
from agentrl_jax.env.gym_spaces import as_json, member_of, schema_of
from agentrl_jax.env.reset_step import ResetStep
from agentrl_jax.errors import ConfigError

_ARGUMENT = "action"  # of the tool, where the space is no `Dict`


class GymEnvironment(ResetStep):
  """An environment of Gymnasium's registry, by its id.

  `options` go to `gymnasium.make`, such as `max_episode_steps`. `actions` names
  the members of a `Discrete` space in their order, so that the policy may say
  "left" for 0. The other options are those of `reset_step.Rules`.
  """

  # An action is checked before it is played, so what else is raised is broken.
  refusals = (gymnasium.error.InvalidAction,)

  def __init__(
    self,
    id: str,
    *,
    options: Mapping[str, Any] | None = None,
    actions: Sequence[str] = (),
    tool: str = "act",
    description: str = "Takes an action.",
    instructions: str = "",
    **rules: Any,
  ):
    super().__init__(**rules)
    self.name = id
    self.instructions = instructions or self.instructions
    self._id = id
    self._options = dict(options or {})
    self._actions = tuple(actions)
    self._space = self._find_space()
    self.tools = (Tool(tool, description, self._parameters()),)

  def make(self, seed: int) -> Any:
    """The environment, fresh from the registry."""
    del seed  # it is given to `reset`
    return self._make()

  def begin(self, wrapped: Any, seed: int) -> Any:
    """Its first observation."""
    return wrapped.reset(seed=seed)

  def action(self, name: str, arguments: Mapping[str, Any]) -> Any:
    """The member of the action space that the arguments stand for."""
    if self._is_flat:
      value = arguments[_ARGUMENT]
      if self._actions:
        value = self._actions.index(value) + int(self._space.start)
      return member_of(self._space, value)
    return member_of(self._space, arguments)

  def show(self, wrapped: Any, observation: Any) -> str:
    """Text as it is, anything else as JSON."""
    del wrapped
    plain = as_json(observation)
    return plain if isinstance(plain, str) else json.dumps(plain)

  @property
  def _is_flat(self) -> bool:
    return not isinstance(self._space, spaces.Dict)

  def _make(self) -> gymnasium.Env[Any, Any]:
    # What the checker would warn of is the author's business, not a run's.
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
      "properties": {_ARGUMENT: schema},
      "required": [_ARGUMENT],
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
