from environments.bfcl.environment import BFCL

__all__ = ["BFCL"]
