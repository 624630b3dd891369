"""Reads a sandbox's files and processes from the process that owns it.

The sandbox's root folder is opened before its policy begins, in the mount
namespace of a process that the policy cannot see. From there names are looked
up one at a time without following links, so that no link leads out.
"""

import dataclasses
import errno
import os
import stat

from agentrl_jax.errors import EnvironmentFault
from environments.os_interaction.machines.files import (
  FILE,
  FOLDER,
  LINK,
  OTHER,
  Changes,
  File,
  ReadBudget,
  Tree,
  Unreadable,
  is_compared,
  kind_of,
  process_name,
)

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_HOSTS_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_OPAQUE = "trusted.overlay.opaque"  # marks a folder that replaces the image's


def read_tree(root: int, path: str, budget: ReadBudget) -> Tree:
  """Reads `path` and everything below it; empty if a parent is a link."""
  *parents, name = path.strip("/").split("/")
  folder = os.dup(root)
  try:
    for parent in parents:
      inner = os.open(parent, _FOLDER_FLAGS, dir_fd=folder)
      os.close(folder)
      folder = inner
    files: dict[str, File] = {}
    _read(folder, name, path.rstrip("/"), 0, files, budget)
    return files
  except OSError as error:
    if error.errno in _ABSENT:
      return {}
    raise _cause(f"{path} cannot be read", error) from error
  finally:
    os.close(folder)


def read_changes(root: int, upper: int, budget: ReadBudget) -> Changes:
  """Reads the paths that the overlay's upper layer holds, and no others."""
  files: dict[str, File] = {}
  removed: set[str] = set()
  try:
    _read_layer(root, upper, "", 0, files, removed, budget)
  except OSError as error:
    raise _cause("changes cannot be read", error) from error
  return Changes(files, frozenset(removed))


def read_processes(cgroup: str) -> dict[str, str]:
  """Names a control group's living processes, by pid and start time."""
  names = {}
  try:
    with open(f"{cgroup}/cgroup.procs") as file:
      pids = file.read().split()
  except OSError as error:
    if error.errno not in (errno.ENOENT, errno.ENODEV):
      raise
    return {}  # with the last process went its group
  for pid in pids:
    try:
      with open(f"/proc/{pid}/stat", errors="surrogateescape") as file:
        head, _, tail = file.read().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
      continue
    state, start = tail.split()[0], tail.split()[19]
    if state not in "ZX":
      names[f"{pid}@{start}"] = process_name(head.partition("(")[2], state)
  return names


def _cause(text: str, error: OSError) -> Exception:
  """Blames the policy, unless this process or the host has reached a limit."""
  if error.errno in _HOSTS_ERRORS:
    return EnvironmentFault(f"{text}: {error}; look at the host's limits")
  return Unreadable(f"{text}: {error}")


def _read(
  folder: int,
  name: str,
  path: str,
  depth: int,
  files: dict[str, File],
  budget: ReadBudget,
) -> None:
  budget.count_entry(depth)
  status = os.stat(name, dir_fd=folder, follow_symlinks=False)
  files[path] = _read_file(folder, name, status, budget)
  if not stat.S_ISDIR(status.st_mode):
    return
  inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
  try:
    with os.scandir(inner) as entries:
      for entry in entries:
        below = f"{path}/{entry.name}"
        _read(inner, entry.name, below, depth + 1, files, budget)
  finally:
    os.close(inner)


def _read_file(
  folder: int, name: str, status: os.stat_result, budget: ReadBudget
) -> File:
  file = File(
    kind_of(status.st_mode),
    stat.S_IMODE(status.st_mode),
    status.st_uid,
    status.st_gid,
    mtime=int(status.st_mtime),
  )
  if file.kind == LINK:
    target = os.readlink(name, dir_fd=folder)
    return dataclasses.replace(file, target=target)
  if file.kind != FILE:
    return file
  fd = os.open(name, _FILE_FLAGS, dir_fd=folder)
  with os.fdopen(fd, "rb") as stream:
    # A process may have replaced the path since `status` was read.
    opened = os.fstat(fd)
    if not stat.S_ISREG(opened.st_mode):
      return dataclasses.replace(file, kind=OTHER)
    budget.count_bytes(opened.st_size)
    return dataclasses.replace(file, content=stream.read(opened.st_size))


def _read_layer(
  folder: int,
  upper: int,
  path: str,
  depth: int,
  files: dict[str, File],
  removed: set[str],
  budget: ReadBudget,
) -> None:
  with os.scandir(upper) as entries:
    for entry in entries:
      below = f"{path}/{entry.name}"
      if not is_compared(below):
        continue
      budget.count_entry(depth)
      written = entry.stat(follow_symlinks=False)
      # The overlay marks a removed path by a character device 0.
      if stat.S_ISCHR(written.st_mode) and written.st_rdev == 0:
        removed.add(below)
        continue
      status = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
      files[below] = _read_file(folder, entry.name, status, budget)
      if files[below].kind == FOLDER:
        inner = os.open(entry.name, _FOLDER_FLAGS, dir_fd=folder)
        inner_upper = os.open(entry.name, _FOLDER_FLAGS, dir_fd=upper)
        try:
          if _is_opaque(inner_upper):
            removed.add(below)
          _read_layer(
            inner, inner_upper, below, depth + 1, files, removed, budget
          )
        finally:
          os.close(inner)
          os.close(inner_upper)


def _is_opaque(folder: int) -> bool:
  try:
    return os.getxattr(folder, _OPAQUE) == b"y"
  except OSError as error:
    if error.errno in (errno.ENODATA, errno.ENOTSUP):
      return False
    raise
