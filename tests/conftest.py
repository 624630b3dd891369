"""Settings of the test suite: quick compilation, tiers, and a limit of time.

Most of the suite's time is XLA's. Without its optimisations XLA compiles in
half the time programs that compute the same to the last digits that any test
looks at. The processes that tests start inherit this. `make conformance`
computes for longer than it compiles, and compiles as users do, as does a run in
which XLA_FLAGS is set, also to nothing: `XLA_FLAGS= make test`.

What one process has compiled, others load: programs of XLA from a folder that
ends with the run, or from JAX_COMPILATION_CACHE_DIR, which keeps them for the
next; bytecode of Python from beside its source, whatever
PYTHONDONTWRITEBYTECODE says, since every process would compile its imports.

With `--within=SECONDS` no test starts later than that; those left out are
skipped and counted. Tests marked `slow` come before those marked `full`, and
the files of each in an order that the name of the commit decides, so that
successive commits run different parts.

With `--passed=FILE` tests that the file names are left out, and those that pass
are added to it: a second run, on a machine that has more, is of the others.
"""

import functools
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import jaxlib.version
import pytest
from _pytest.mark.expression import Expression

QUICK = [
  "--xla_backend_optimization_level=0",
  "--xla_cpu_parallel_codegen_split_count=1",
]
# XLA refuses flags that it does not know, and later versions do not know this.
if jaxlib.version.__version_info__ < (0, 11):
  QUICK.append("--xla_cpu_use_fusion_emitters=false")
KEEP_PROGRAMS = {
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
PROGRAMS = "JAX_COMPILATION_CACHE_DIR"
_ENDED: dict[str, set[str]] = {}  # outcomes of a test's phases, by its name
STARTED = "AGENTRL_TESTS_STARTED"  # seconds since the epoch, for all workers


def pytest_addoption(parser: pytest.Parser) -> None:
  parser.addoption(
    "--within", type=float, help="seconds after which no test starts"
  )
  parser.addoption("--passed", type=pathlib.Path, help="tests to leave out")


def pytest_configure(config: pytest.Config) -> None:
  chosen = Expression.compile(config.option.markexpr)
  if not chosen.evaluate(lambda name, **_: name == "full"):
    os.environ.setdefault("XLA_FLAGS", " ".join(QUICK))
    for name, value in KEEP_PROGRAMS.items():
      os.environ.setdefault(name, value)
    if PROGRAMS not in os.environ:
      folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
      config.add_cleanup(folder.cleanup)
      os.environ[PROGRAMS] = folder.name
  # To shorten a traceback takes JAX longer than a refusal does.
  os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
  sys.dont_write_bytecode = False
  os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
  os.environ.setdefault(STARTED, str(time.time()))
  # A shell's background job ignores ctrl-C, and so would all that tests start.
  signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
  """One process more than processors: many a test waits for something."""
  del config
  return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
  config: pytest.Config, items: list[pytest.Item]
) -> None:
  if config.option.within is not None:
    items.sort(key=_turn)
  if passed := _read_passed(config):
    config.hook.pytest_deselected(
      items=[i for i in items if i.nodeid in passed]
    )
    items[:] = [item for item in items if item.nodeid not in passed]


def pytest_sessionstart(session: pytest.Session) -> None:
  del session
  _ENDED.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
  _ENDED.setdefault(report.nodeid, set()).add(report.outcome)


def pytest_sessionfinish(session: pytest.Session) -> None:
  """Adds what has passed; with several workers, in the process that leads."""
  path = session.config.option.passed
  if path is not None and not hasattr(session.config, "workerinput"):
    new = {name for name, how in _ENDED.items() if how == {"passed"}}
    path.write_text(json.dumps(sorted(_read_passed(session.config) | new)))


def _read_passed(config: pytest.Config) -> set[str]:
  path = config.option.passed
  return set(json.loads(path.read_text())) if path and path.exists() else set()


def pytest_runtest_setup(item: pytest.Item) -> None:
  within = item.config.option.within
  if within is None:
    return
  if time.time() - float(os.environ[STARTED]) > within:
    pytest.skip(f"left out: --within={within:g} s are over")


def _turn(item: pytest.Item) -> tuple[bool, str]:
  """The place of a test's file in the order of a run with a limit."""
  seed = f"{_commit()} {item.nodeid.partition('::')[0]}"
  is_full = item.get_closest_marker("full") is not None
  return is_full, hashlib.sha256(seed.encode()).hexdigest()


@functools.cache
def _commit() -> str:
  finished = subprocess.run(
    ["git", "rev-parse", "HEAD"],
    cwd=pathlib.Path(__file__).parent,
    capture_output=True,
    text=True,
    timeout=30,
  )
  return finished.stdout.strip()
