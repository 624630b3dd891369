"""What a generated chore must have made of the machine.

Each outcome says which files (and whether processes) it is about, and tells
from their states before the policy's first command and after its last whether
the work was done, and nothing else in those places. Both states were read from
outside; nothing here runs a program or asks a machine.
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
  Bounded,
  Budget,
  File,
  Tree,
  Unreadable,
  read_archive,
)

COMM_LENGTH = 15  # of a process's name, as the kernel keeps it


@dataclasses.dataclass(frozen=True)
class State:
  """Files at and below the outcome's places, and processes by number."""

  files: Tree
  processes: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Outcome(abc.ABC):
  """Tells right states from wrong ones."""

  sees_processes = False

  @property
  @abc.abstractmethod
  def places(self) -> tuple[str, ...]:
    """The paths whose files decide, with all below them."""

  @abc.abstractmethod
  def is_right(self, before: State, after: State) -> bool:
    """Compares the two states."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Becomes(Outcome):
  """Files below `root` change as told, by path, and no others do.

  Groups are not compared, and with `text_only` neither modes nor owners.
  """

  root: str
  modes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  owners: Mapping[str, int] = dataclasses.field(default_factory=dict)
  renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  removed: tuple[str, ...] = ()
  text_only: bool = False

  @property
  def places(self) -> tuple[str, ...]:
    return (self.root,)

  def is_right(self, before: State, after: State) -> bool:
    """Applies the changes to `before`; all of it must be `after`."""
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
    return self._compared(wanted) == self._compared(after.files)

  def _compared(self, files: Tree) -> dict[str, tuple[object, ...]]:
    return {
      path: (file.kind, file.content, file.target)
      + (() if self.text_only else (file.mode, file.uid))
      for path, file in files.items()
    }


@dataclasses.dataclass(frozen=True)
class PackedInto(Outcome):
  """`archive` is a gzipped tar of all that is below `root`, which stays.

  Names in it may begin with the whole path, the folder's own name or nothing.
  """

  root: str
  archive: str

  @property
  def places(self) -> tuple[str, ...]:
    return (self.root, self.archive)

  def is_right(self, before: State, after: State) -> bool:
    """Compares every file with its copy in the archive, to the byte."""
    below = _below(self.root, before.files)
    archive = after.files.get(self.archive)
    if archive is None or archive.kind != FILE:
      return False
    if _below(self.root, after.files) != below:
      return False
    packed = _unpacked(archive.content)
    if packed is None:
      return False
    prefixes = (self.root.strip("/"), posixpath.basename(self.root), "")
    return any(_is_copy(packed, below, prefix) for prefix in prefixes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserMade(Outcome):
  """There is one more user, and no other was changed."""

  name: str
  uid: int
  home: str
  shell: str
  groups: tuple[str, ...]

  @property
  def places(self) -> tuple[str, ...]:
    return ("/etc/passwd", "/etc/group", self.home)

  def is_right(self, before: State, after: State) -> bool:
    """Compares the two files of users and groups, line by line."""
    users, old_users = (_lines(s, "/etc/passwd") for s in (after, before))
    groups, old_groups = (_lines(s, "/etc/group") for s in (after, before))
    user = users.pop(self.name, ())
    home = after.files.get(self.home)
    if users != old_users or len(user) != 7 or home is None:
      return False
    if (*user[2:3], *user[5:]) != (str(self.uid), self.home, self.shell):
      return False
    mine = {
      name
      for name, fields in groups.items()
      if self.name in fields[-1].split(",") or fields[2:3] == user[3:4]
    }
    return (
      home.kind == FOLDER
      and mine >= set(self.groups)
      and (self._without(groups).items() >= self._without(old_groups).items())
    )

  def _without(
    self, groups: Mapping[str, tuple[str, ...]]
  ) -> dict[str, tuple[object, ...]]:
    """The groups as they are but for this user."""
    return {
      name: (fields[1:3], set(fields[-1].split(",")) - {self.name, ""} or 0)
      for name, fields in groups.items()
    }


@dataclasses.dataclass(frozen=True)
class ProcessesEnded(Outcome):
  """The processes of one program have ended, those of another go on."""

  name: str
  other: str

  sees_processes = True

  @property
  def places(self) -> tuple[str, ...]:
    return ()

  def is_right(self, before: State, after: State) -> bool:
    """Goes by the numbers that they had before, and by names after."""
    left = {n for n, name in after.processes.items() if name == self.name}
    ended = self._named(before, self.name)
    kept = self._named(before, self.other[:COMM_LENGTH])
    return (
      not left
      and not ended & after.processes.keys()
      and (bool(ended) and kept == self._named(after, self.other[:COMM_LENGTH]))
    )

  def _named(self, state: State, name: str) -> set[str]:
    return {n for n, its in state.processes.items() if its == name}


@dataclasses.dataclass(frozen=True)
class CommandMade(Outcome):
  """A command does as was asked: per case arguments, and what it prints.

  It is run by the judge, on a machine of the judge's own.
  """

  name: str
  cases: tuple[tuple[tuple[str, ...], str], ...]

  @property
  def places(self) -> tuple[str, ...]:
    return ()

  def is_right(self, before: State, after: State) -> bool:
    raise NotImplementedError("a command is run: see judging.check_machine")


def _below(root: str, files: Tree) -> dict[str, File]:
  """The files by their paths from `root`, without the folder itself."""
  return {
    path[len(root) + 1 :]: file
    for path, file in files.items()
    if path.startswith(f"{root}/")
  }


def _unpacked(content: bytes) -> dict[str, File] | None:
  """The members of a gzipped tar by their plain names; None if it is none."""
  budget = Budget()
  try:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as unzipped:
      stream = io.BufferedReader(Bounded(unzipped.read1, budget))
      files = read_archive(stream, "/", budget)
      while stream.read(1 << 16):
        pass  # the end of it must be whole, too
  except (OSError, EOFError, zlib.error, Unreadable):
    return None
  return {posixpath.normpath(p).lstrip("/"): f for p, f in files.items()}


def _is_copy(
  packed: Mapping[str, File], below: Mapping[str, File], prefix: str
) -> bool:
  wanted = {posixpath.join(prefix, p): f for p, f in below.items()}
  folders = {"", ".", prefix} | _folders_of([*wanted, prefix])
  if not all(path in wanted or path in folders for path in packed):
    return False
  for path, file in wanted.items():
    copy = packed.get(path)
    if copy is None and file.kind == FOLDER and path in _folders_of(packed):
      continue  # a folder may be told by what is in it
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


def _lines(state: State, path: str) -> dict[str, tuple[str, ...]]:
  """The fields of a file's lines, by the first; {} for what is no such file."""
  file = state.files.get(path)
  if file is None or file.kind != FILE:
    return {}
  text = file.content.decode(errors="surrogateescape")
  lines = [tuple(line.split(":")) for line in text.split("\n") if line]
  names = {fields[0]: fields for fields in lines}
  return names if len(names) == len(lines) else {}
