from environments.dbbench.environment import DBBench

__all__ = ["DBBench"]
