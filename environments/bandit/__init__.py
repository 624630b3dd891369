"""The risky bandit; `environments.bandit:Bandit` names it in configs."""

from environments.bandit.environment import Bandit

__all__ = ["Bandit"]
