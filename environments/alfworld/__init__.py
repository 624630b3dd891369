from environments.alfworld.environment import ALFWorld

__all__ = ["ALFWorld"]
