"""What tests compile runs for moments: it is compiled in a hurry.

Most of the suite's time is XLA's. Without its optimisations it compiles in half
the time what computes the same to the last digits that any test looks at. The
processes that tests start inherit this. Whole suites (`make conformance`)
compute for longer than they compile, and compile as users do, as does whoever
sets XLA_FLAGS, also to nothing: `XLA_FLAGS= make test`.
"""

import os

import jaxlib.version
import pytest

HURRY = [
  "--xla_backend_optimization_level=0",
  "--xla_cpu_parallel_codegen_split_count=1",
]
# XLA refuses flags that it does not know, and later versions do not know this.
if jaxlib.version.__version_info__ < (0, 11):
  HURRY.append("--xla_cpu_use_fusion_emitters=false")
# The losses are tested compiled; whole suites test them without jit, too.
UNCOMPILED = "__without_jit"


def pytest_configure(config: pytest.Config) -> None:
  if config.option.markexpr != "full":
    os.environ.setdefault("XLA_FLAGS", " ".join(HURRY))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  for item in items:
    if item.name.endswith(UNCOMPILED):
      item.add_marker(pytest.mark.full)
