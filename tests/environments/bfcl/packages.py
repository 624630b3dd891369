"""Skips BFCL's tests where its packages are not installed."""

import importlib.util
import unittest


def require_packages() -> None:
  """Skips the test where bfcl-eval, or what it imports, is not installed."""
  for name in ("bfcl_eval", "mpmath"):
    if importlib.util.find_spec(name) is None:
      raise unittest.SkipTest(
        f"{name} is not installed; see environments/bfcl/README.md"
      )
