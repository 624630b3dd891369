"""Right outcomes of generated chores.

An outcome names the files (or processes) that decide. It compares their states
before the policy's first command and after its last, both read from outside
the machine: the work must be done, and nothing else changed there.
"""

import abc
import dataclasses
import gzip
import io
import posixpath
import zlib
from collections.abc import Iterable, Mapping

from environments.os_interaction.machines.files import (
  FILE,
  FOLDER,
  BoundedStream,
  File,
  ReadBudget,
  Tree,
  Unreadable,
  read_archive,
)

COMM_LENGTH = 15  # to which the kernel cuts a process's name


@dataclasses.dataclass(frozen=True)
class State:
  """Files at and below the outcome's paths, and processes by id."""

  files: Tree
  processes: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Outcome(abc.ABC):
  """Tells right final states from wrong ones."""

  sees_processes = False

  @property
  def paths(self) -> tuple[str, ...]:
    """The paths whose files decide, with everything below them."""
    return ()

  @abc.abstractmethod
  def is_right(self, before: State, after: State) -> bool:
    """Compares the two states."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Becomes(Outcome):
  """Files below `root` change as given, by path, and no others do.

  Groups are not compared, and with `text_only` neither are modes and owners.
  """

  root: str
  modes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  owners: Mapping[str, int] = dataclasses.field(default_factory=dict)
  renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  removed: tuple[str, ...] = ()
  text_only: bool = False

  @property
  def paths(self) -> tuple[str, ...]:
    return (self.root,)

  def is_right(self, before: State, after: State) -> bool:
    """Applies the changes to `before` and compares the result with `after`."""
    wanted = dict(before.files)
    for path, mode in self.modes.items():
      wanted[path] = dataclasses.replace(wanted[path], mode=mode)
    for path, owner in self.owners.items():
      wanted[path] = dataclasses.replace(wanted[path], uid=owner)
    for path, text in self.texts.items():
      content = text.encode()
      wanted[path] = dataclasses.replace(wanted[path], content=content)
    for path in self.removed:
      del wanted[path]
    moved = {new: wanted.pop(old) for old, new in self.renamed.items()}
    wanted.update(moved)
    return self._attributes(wanted) == self._attributes(after.files)

  def _attributes(self, files: Tree) -> dict[str, tuple[object, ...]]:
    return {
      path: (file.kind, file.content, file.target)
      + (() if self.text_only else (file.mode, file.uid))
      for path, file in files.items()
    }


@dataclasses.dataclass(frozen=True)
class PackedInto(Outcome):
  """`archive` is a gzipped tar of everything below `root`, which stays.

  Member names may begin with the full path, the folder's name or nothing.
  """

  root: str
  archive: str

  @property
  def paths(self) -> tuple[str, ...]:
    return (self.root, self.archive)

  def is_right(self, before: State, after: State) -> bool:
    """Compares every file with its copy in the archive."""
    files = _files_below(self.root, before.files)
    archive = after.files.get(self.archive)
    if archive is None or archive.kind != FILE:
      return False
    if _files_below(self.root, after.files) != files:
      return False
    packed = _unpack(archive.content)
    if packed is None:
      return False
    prefixes = (self.root.strip("/"), posixpath.basename(self.root), "")
    return any(_is_copy(packed, files, prefix) for prefix in prefixes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserMade(Outcome):
  """There is one more user, and no other user was changed."""

  name: str
  uid: int
  home: str
  shell: str
  groups: tuple[str, ...]

  @property
  def paths(self) -> tuple[str, ...]:
    return ("/etc/passwd", "/etc/group", self.home)

  def is_right(self, before: State, after: State) -> bool:
    """Compares /etc/passwd and /etc/group line by line."""
    users, old_users = (_entries(s, "/etc/passwd") for s in (after, before))
    groups, old_groups = (_entries(s, "/etc/group") for s in (after, before))
    user = users.pop(self.name, ())
    home = after.files.get(self.home)
    if users != old_users or len(user) != 7 or home is None:
      return False
    if (*user[2:3], *user[5:]) != (str(self.uid), self.home, self.shell):
      return False
    memberships = {
      name
      for name, fields in groups.items()
      if self.name in fields[-1].split(",") or fields[2:3] == user[3:4]
    }
    return (
      home.kind == FOLDER
      and memberships >= set(self.groups)
      and self._without_user(groups).items()
      >= self._without_user(old_groups).items()
    )

  def _without_user(
    self, groups: Mapping[str, tuple[str, ...]]
  ) -> dict[str, tuple[object, ...]]:
    return {
      name: (fields[1:3], set(fields[-1].split(",")) - {self.name, ""} or 0)
      for name, fields in groups.items()
    }


@dataclasses.dataclass(frozen=True)
class ProcessesEnded(Outcome):
  """All processes of one program have ended, and none of another."""

  name: str
  other: str

  sees_processes = True

  def is_right(self, before: State, after: State) -> bool:
    """Compares ids and names, as a process may change its own name."""
    to_end = _ids_of(self.name, before)
    other = self.other[:COMM_LENGTH]
    return (
      bool(to_end)
      and not to_end & after.processes.keys()
      and not _ids_of(self.name, after)
      and _ids_of(other, before) == _ids_of(other, after)
    )


@dataclasses.dataclass(frozen=True)
class CommandMade(Outcome):
  """A command prints the right output for the arguments of each case."""

  name: str
  cases: tuple[tuple[tuple[str, ...], str], ...]

  def is_right(self, before: State, after: State) -> bool:
    raise NotImplementedError(
      "a command is judged by running it: judging.check_machine.command_works"
    )


def _ids_of(name: str, state: State) -> set[str]:
  return {i for i, its_name in state.processes.items() if its_name == name}


def _files_below(root: str, files: Tree) -> dict[str, File]:
  """Selects the files below `root`, by their paths relative to it."""
  return {
    path[len(root) + 1 :]: file
    for path, file in files.items()
    if path.startswith(f"{root}/")
  }


def _unpack(content: bytes) -> dict[str, File] | None:
  """Reads a gzipped tar, by normalized names; None if it is no such archive."""
  budget = ReadBudget()
  try:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as unzipped:
      stream = io.BufferedReader(BoundedStream(unzipped.read1, budget))
      files = read_archive(stream, "/", budget)
      while stream.read(1 << 16):
        pass  # to the end, where the checksum is verified
  except (OSError, EOFError, zlib.error, Unreadable):
    return None
  return {posixpath.normpath(p).lstrip("/"): f for p, f in files.items()}


def _is_copy(
  packed: Mapping[str, File], files: Mapping[str, File], prefix: str
) -> bool:
  wanted = {posixpath.join(prefix, p): f for p, f in files.items()}
  folders = {"", ".", prefix} | _folders_of([*wanted, prefix])
  if not all(path in wanted or path in folders for path in packed):
    return False
  for path, file in wanted.items():
    copy = packed.get(path)
    if copy is None and file.kind == FOLDER and path in _folders_of(packed):
      continue  # a folder needs no member of its own if a file in it has one
    if copy is None or (copy.kind, copy.content, copy.target) != (
      file.kind,
      file.content,
      file.target,
    ):
      return False
  return True


def _folders_of(paths: Iterable[str]) -> set[str]:
  folders = set()
  for path in paths:
    while path:
      path = path.rpartition("/")[0]
      folders.add(path)
  return folders


def _entries(state: State, path: str) -> dict[str, tuple[str, ...]]:
  """Splits a file's lines into fields, by the first; {} if names repeat."""
  file = state.files.get(path)
  if file is None or file.kind != FILE:
    return {}
  text = file.content.decode(errors="surrogateescape")
  lines = [tuple(line.split(":")) for line in text.split("\n") if line]
  names = {fields[0]: fields for fields in lines}
  return names if len(names) == len(lines) else {}
