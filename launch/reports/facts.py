"""Facts that a result depends on besides its config: code, versions, machine.

Contains no host, user or path: a report may be given to anyone.
"""

import importlib.metadata
import os
import pathlib
import platform
import subprocess
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = (
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "orbax-checkpoint",
  "google-jetstream",
  "grain",
  "numpy",
)
GIT_DEADLINE_S = 10


def run_facts(*, seed: int, devices: Sequence[str]) -> dict[str, Any]:
  """The `facts` of a summary; `devices` as jax names them, one per device."""
  return {
    "commit": commit(ROOT),
    "seed": seed,
    "versions": versions(),
    "machine": machine(devices),
  }


def commit(repository: pathlib.Path) -> str:
  """Returns the running commit, marked if files differ from it.

  "unknown" without a git history, as in a container.
  """
  try:
    head = _git(repository, "rev-parse", "HEAD")
    changed = _git(repository, "status", "--porcelain", "--untracked-files=no")
  except (OSError, subprocess.SubprocessError):
    return "unknown"
  return f"{head} with uncommitted changes" if changed else head


def versions() -> dict[str, str]:
  """Versions of Python and of each package that a result may depend on."""
  versions_by_name = {"python": platform.python_version()}
  for package in PACKAGES:
    try:
      versions_by_name[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      versions_by_name[package] = "not installed"
  return versions_by_name


def machine(devices: Sequence[str]) -> dict[str, Any]:
  """Hardware: cores that this process may use, memory, accelerators."""
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return {
    "system": f"{platform.system()} {platform.machine()}",
    "cores": len(os.sched_getaffinity(0)),
    "memory_gib": round(memory / 2**30, 1),
    "devices": list(devices),
  }


def _git(repository: pathlib.Path, *arguments: str) -> str:
  return subprocess.run(
    ["git", "-C", str(repository), *arguments],
    check=True,
    capture_output=True,
    text=True,
    timeout=GIT_DEADLINE_S,
  ).stdout.strip()
