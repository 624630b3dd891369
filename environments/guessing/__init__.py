"""The guessing game; `environments.guessing:Guessing` names it in configs."""

from environments.guessing.environment import Guessing

__all__ = ["Guessing"]
