"""FrozenLake: `studies.environments.frozen_lake:FrozenLake` in configs."""

from studies.environments.frozen_lake.environment import FrozenLake

__all__ = ["FrozenLake"]
