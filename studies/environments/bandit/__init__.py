"""The risky bandit: `studies.environments.bandit:Bandit` in configs."""

from studies.environments.bandit.environment import Bandit

__all__ = ["Bandit"]
