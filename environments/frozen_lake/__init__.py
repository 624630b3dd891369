"""FrozenLake; `environments.frozen_lake:FrozenLake` names it in configs."""

from environments.frozen_lake.environment import FrozenLake

__all__ = ["FrozenLake"]
