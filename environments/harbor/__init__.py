from environments.harbor.environment import Harbor

__all__ = ["Harbor"]
