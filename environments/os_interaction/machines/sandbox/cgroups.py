"""Limits a sandbox's memory, processors and processes by control groups.

Supports version 1 (a tree per controller) and version 2 (one tree). Without a
writable tree memory would be unlimited, so `NoGroups` refuses the sandbox.
Imports the standard library alone, as it runs in the zygote.
"""

import errno
import os
import time

_PERIOD_US = 100_000
_REMOVE_TIMEOUT_S = 5.0
_POLL_S = 0.002
NAME = "agentrl"  # folder of all sandboxes' groups
CONTROLLERS = ("memory", "pids", "cpu")


class NoGroups(Exception):
  """A control group is missing or cannot be written to."""


def find_trees() -> dict[str, str]:
  """Finds the folder of each controller; in version 2 all share one."""
  trees: dict[str, str] = {}
  with open("/proc/self/mountinfo") as file:
    for line in file:
      fields, _, source = line.partition(" - ")
      kind, _, options = source.split(" ", 2)
      folder = fields.split()[4]
      if kind == "cgroup":
        names = options.strip().split(",")
        trees.update({c: folder for c in CONTROLLERS if c in names})
      elif kind == "cgroup2":
        offered = _read(f"{folder}/cgroup.controllers").split()
        trees.update({c: folder for c in CONTROLLERS if c in offered})
  missing = [c for c in CONTROLLERS if c not in trees]
  if missing:
    raise NoGroups(f"no control group for {', '.join(missing)} is mounted")
  return trees


def make_parents(trees: dict[str, str]) -> dict[str, str]:
  """Creates a folder per controller for all sandboxes of the host."""
  parents = {}
  for controller, tree in trees.items():
    parent = f"{tree}/{NAME}"
    try:
      if _is_version_2(tree):
        _write(f"{tree}/cgroup.subtree_control", f"+{controller}")
      os.makedirs(parent, exist_ok=True)
      if _is_version_2(tree):
        _write(f"{parent}/cgroup.subtree_control", f"+{controller}")
    except OSError as error:
      raise NoGroups(f"{parent} cannot be set up: {error}") from error
    parents[controller] = parent
  return parents


def remove_orphans(parents: dict[str, str]) -> None:
  """Removes groups whose owner, a process that has ended, left them behind."""
  for parent in set(parents.values()):
    for entry in os.scandir(parent):
      owner = entry.name.partition("-")[0]
      if entry.is_dir() and not os.path.exists(f"/proc/{owner}"):
        _remove_if_empty(entry.path)


def create(
  parents: dict[str, str], name: str, *, memory_mb: int, pids: int, cpus: float
) -> list[str]:
  """Creates the groups of one sandbox; `name` begins with the owner's pid."""
  folders = {c: f"{parent}/{name}" for c, parent in parents.items()}
  for folder in set(folders.values()):
    os.mkdir(folder)
  memory, quota = memory_mb << 20, int(cpus * _PERIOD_US)
  _write(f"{folders['pids']}/pids.max", str(pids))
  if _is_version_2(folders["memory"]):
    _write(f"{folders['memory']}/memory.max", str(memory))
    _write_if_exists(f"{folders['memory']}/memory.swap.max", "0")
  else:
    _write(f"{folders['memory']}/memory.limit_in_bytes", str(memory))
    swap = f"{folders['memory']}/memory.memsw.limit_in_bytes"
    _write_if_exists(swap, str(memory))
  if _is_version_2(folders["cpu"]):
    _write(f"{folders['cpu']}/cpu.max", f"{quota} {_PERIOD_US}")
  else:
    _write(f"{folders['cpu']}/cpu.cfs_period_us", str(_PERIOD_US))
    _write(f"{folders['cpu']}/cpu.cfs_quota_us", str(quota))
  return sorted(set(folders.values()))


def join(folders: list[str]) -> None:
  """Moves this process, and those it will fork, into the groups."""
  for folder in folders:
    _write(f"{folder}/cgroup.procs", str(os.getpid()))


def ran_out_of_memory(folders: list[str]) -> bool:
  """Tells whether a process was killed because a group's memory was full."""
  for folder in folders:
    # Version 2 has both counts in one file. A count of kills alone includes
    # those for the sake of the host's memory.
    counts: dict[str, int] = {}
    for name in ("memory.events", "memory.oom_control"):
      if os.path.exists(f"{folder}/{name}"):
        lines = [
          line.split() for line in _read(f"{folder}/{name}").splitlines()
        ]
        counts.update({line[0]: int(line[1]) for line in lines})
    if os.path.exists(f"{folder}/memory.failcnt"):
      counts["max"] = int(_read(f"{folder}/memory.failcnt"))
    if counts.get("oom_kill") and counts.get("max"):
      return True
  return False


def remove(folders: list[str]) -> None:
  """Removes the groups of a sandbox that has ended."""
  deadline = time.monotonic() + _REMOVE_TIMEOUT_S
  while not all([_remove_if_empty(folder) for folder in folders]):
    if time.monotonic() > deadline:
      return  # `remove_orphans` of the next zygote removes them
    time.sleep(_POLL_S)


def _remove_if_empty(folder: str) -> bool:
  try:
    os.rmdir(folder)
  except FileNotFoundError:
    return True
  except OSError as error:
    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
      raise
    return False
  return True


def _is_version_2(folder: str) -> bool:
  return os.path.exists(f"{folder}/cgroup.controllers")


def _read(path: str) -> str:
  with open(path) as file:
    return file.read()


def _write(path: str, text: str) -> None:
  with open(path, "w") as file:
    file.write(text)


def _write_if_exists(path: str, text: str) -> None:
  if os.path.exists(path):
    _write(path, text)
