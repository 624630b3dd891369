"""FrozenLake: cross a lake of thin ice, another one in every task.

Gymnasium's environment of this name by the adapter of `env.adapters.gym`. The
observation is the lake after each move, so that it shows where a slip led.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from agentrl_jax.data.records import Task
from agentrl_jax.env.adapters.gym import GymEnvironment
from agentrl_jax.env.interface import Expert
from agentrl_jax.errors import ConfigError
from studies.environments.frozen_lake.expert import MISTAKES, Walker
from studies.environments.frozen_lake.grid import MOVES, draw
from studies.environments.frozen_lake.scripted import POLICIES

MOST_SLIP = (
  2 / 3
)  # of Gymnasium's slippery lake: each of three ways is as likely
LEAST_SIZE, MOST_SIZE = 3, 10


class FrozenLake(GymEnvironment):
  """Task i of a split has a random lake, over which there is a way.

  Args:
    size: rows and columns of the lake, 3 to 10.
    frozen: share of the cells that are ice, above 0; lakes without a way are
      drawn again.
    slip: probability that a move goes to one of its two sides, 0 to 2/3, which
      is Gymnasium's `is_slippery`.
    max_rounds, num_tasks, chance_by, ...: those of `reset_step.Rules`. With
      `chance_by` "episode" attempts at a task slip differently, with "task"
      all slip alike after the same moves.
  """

  mistakes = MISTAKES
  policies = POLICIES
  baseline = "down_then_right"

  def __init__(
    self,
    *,
    size: int = 4,
    frozen: float = 0.8,
    slip: float = 0.0,
    max_rounds: int = 10,
    chance_by: str = "episode",
    **rules: Any,
  ):
    if not LEAST_SIZE <= size <= MOST_SIZE:
      raise ConfigError(
        f"size={size}; allowed is {LEAST_SIZE} to {MOST_SIZE} rows and columns"
      )
    if not 0 < frozen < 1:
      raise ConfigError(
        f"frozen={frozen}; allowed is a share of the cells between 0 and 1, "
        "such as 0.8: without holes all lakes are one, without ice there is "
        "no way"
      )
    if not 0 <= slip <= MOST_SLIP:
      raise ConfigError(
        f"slip={slip}; allowed is 0 to 2/3, where a move goes each of three "
        "ways as often"
      )
    super().__init__(
      "FrozenLake-v1",
      options={"is_slippery": slip > 0, "success_rate": 1 - slip},
      actions=tuple(MOVES),
      tool="move",
      argument="direction",
      description="Moves one step.",
      instructions="Go from P to G. Do not step on O, a hole.",
      max_rounds=max_rounds,
      chance_by=chance_by,
      **rules,
    )
    self.name = "frozen_lake"
    self._size, self._frozen = size, frozen

  def make(self, seed: int) -> Any:
    """Makes the lake that the seed decides about."""
    lake = generate_random_map(size=self._size, p=self._frozen, seed=seed)
    return gymnasium.make(
      self._id, desc=lake, disable_env_checker=True, **self._options
    )

  def show(self, wrapped: Any, observation: Any) -> str:
    """Returns the lake with the player in it."""
    lake = ["".join(row) for row in wrapped.unwrapped.desc.astype(str)]
    row, column = divmod(int(observation), self._size)
    return draw(lake, (row, column))

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that takes a shortest way; see `expert.MISTAKES`.

    It reads the lake from the messages, so a policy can learn to play as it
    does. On a slippery lake it may lose.
    """
    del task
    return Walker(seed=seed, mistakes=mistakes)
