"""The files of a sandbox, read by the process that owns it.

The sandbox's root folder is held open since before its policy began, in the
mount namespace of a process that the policy cannot see. From there one name is
looked up at a time, without following links, so that no link leads out.
"""

import dataclasses
import errno
import os
import stat

from environments.os_interaction.machines.files import (
  FILE,
  FOLDER,
  LINK,
  OTHER,
  Budget,
  Changes,
  File,
  Tree,
  Unreadable,
  is_read,
  kind_of,
)

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_OPAQUE = "trusted.overlay.opaque"  # hides what the image has in a folder


def read_tree(top: int, path: str, budget: Budget) -> Tree:
  """What is at `path` and below it; empty if there is nothing, or a link."""
  *folders, name = path.strip("/").split("/")
  folder = os.dup(top)
  try:
    for each in folders:
      inner = os.open(each, _FOLDER_FLAGS, dir_fd=folder)
      os.close(folder)
      folder = inner
    files: dict[str, File] = {}
    _read(folder, name, path.rstrip("/"), 0, files, budget)
    return files
  except OSError as error:
    if error.errno in _ABSENT:
      return {}
    raise Unreadable(f"{path} cannot be read: {error}") from error
  finally:
    os.close(folder)


def read_changes(top: int, upper: int, budget: Budget) -> Changes:
  """What was written, by the layer that holds it and nothing else."""
  files: dict[str, File] = {}
  removed: set[str] = set()
  try:
    _compare(top, upper, "", 0, files, removed, budget)
  except OSError as error:
    raise Unreadable(f"what was written cannot be read: {error}") from error
  return Changes(files, frozenset(removed))


def read_processes(group: str) -> dict[str, str]:
  """The names of a control group's living processes, by number and start."""
  found = {}
  with open(f"{group}/cgroup.procs") as file:
    numbers = file.read().split()
  for number in numbers:
    try:
      with open(f"/proc/{number}/stat", errors="surrogateescape") as file:
        head, _, tail = file.read().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
      continue
    state, start = tail.split()[0], tail.split()[19]
    if state not in "ZX":
      found[f"{number}@{start}"] = head.partition("(")[2]
  return found


def _read(
  folder: int,
  name: str,
  path: str,
  depth: int,
  files: dict[str, File],
  budget: Budget,
) -> None:
  budget.take_entry(depth)
  found = os.stat(name, dir_fd=folder, follow_symlinks=False)
  files[path] = _file(folder, name, found, budget)
  if not stat.S_ISDIR(found.st_mode):
    return
  inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
  try:
    with os.scandir(inner) as entries:
      for entry in entries:
        below = f"{path}/{entry.name}"
        _read(inner, entry.name, below, depth + 1, files, budget)
  finally:
    os.close(inner)


def _file(
  folder: int, name: str, found: os.stat_result, budget: Budget
) -> File:
  plain = File(
    kind_of(found.st_mode),
    stat.S_IMODE(found.st_mode),
    found.st_uid,
    found.st_gid,
    mtime=int(found.st_mtime),
  )
  if plain.kind == LINK:
    target = os.readlink(name, dir_fd=folder)
    return dataclasses.replace(plain, target=target)
  if plain.kind != FILE:
    return plain
  number = os.open(name, _FILE_FLAGS, dir_fd=folder)
  with os.fdopen(number, "rb") as file:
    size = os.fstat(number).st_size
    if not stat.S_ISREG(os.fstat(number).st_mode):
      return dataclasses.replace(plain, kind=OTHER)
    budget.take_bytes(size)
    return dataclasses.replace(plain, content=file.read(size))


def _compare(
  folder: int,
  upper: int,
  path: str,
  depth: int,
  files: dict[str, File],
  removed: set[str],
  budget: Budget,
) -> None:
  with os.scandir(upper) as entries:
    for entry in entries:
      below = f"{path}/{entry.name}"
      if not is_read(below):
        continue
      budget.take_entry(depth)
      written = entry.stat(follow_symlinks=False)
      if stat.S_ISCHR(written.st_mode) and written.st_rdev == 0:
        removed.add(below)
        continue
      found = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
      files[below] = _file(folder, entry.name, found, budget)
      if files[below].kind == FOLDER:
        inner = os.open(entry.name, _FOLDER_FLAGS, dir_fd=folder)
        inner_upper = os.open(entry.name, _FOLDER_FLAGS, dir_fd=upper)
        try:
          if _is_opaque(inner_upper):
            removed.add(below)
          _compare(inner, inner_upper, below, depth + 1, files, removed, budget)
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
