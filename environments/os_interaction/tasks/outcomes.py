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
import stat
import zlib
from collections.abc import Collection, Iterable, Mapping

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
_OWNER = stat.S_IRWXU
# Their lines begin with a name. The second of each holds the passwords.
_USER_FILES = ("/etc/passwd", "/etc/shadow")
_GROUP_FILES = ("/etc/group", "/etc/gshadow")
_COMMON_GROUP = "users"  # of every new user, where adduser is set up so


@dataclasses.dataclass(frozen=True)
class MachineState:
  """Files at and below the outcome's paths, and processes by id."""

  files: Tree
  processes: Mapping[str, str] = dataclasses.field(default_factory=dict)


class ChoreOutcome(abc.ABC):
  """Tells right final states from wrong ones."""

  sees_processes = False

  @property
  def paths(self) -> tuple[str, ...]:
    """The paths whose files decide, with everything below them."""
    return ()

  @abc.abstractmethod
  def is_right(self, before: MachineState, after: MachineState) -> bool:
    """Compares the two states."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Becomes(ChoreOutcome):
  """Files below `root` change as given, by path, and no others do.

  A file that gets an owner may get any group. With `text_only` a file's mode
  may lose bits of its group and of others, as if an editor had written it anew.
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

  def is_right(self, before: MachineState, after: MachineState) -> bool:
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
    for path, file in after.files.items():
      if path in self.owners and path in wanted:
        wanted[path] = dataclasses.replace(wanted[path], gid=file.gid)
      elif self.text_only and path in wanted:
        old = wanted[path].mode
        is_kept = file.mode | old == old and file.mode & _OWNER == old & _OWNER
        mode = file.mode if is_kept else old
        wanted[path] = dataclasses.replace(wanted[path], mode=mode)
    return wanted == after.files


@dataclasses.dataclass(frozen=True)
class PackedInto(ChoreOutcome):
  """`archive` is a gzipped tar of everything below `root`, which stays.

  Member names may begin with the full path, the folder's name or nothing. Its
  files keep their modes.
  """

  root: str
  archive: str

  @property
  def paths(self) -> tuple[str, ...]:
    return (self.root, self.archive)

  def is_right(self, before: MachineState, after: MachineState) -> bool:
    """Compares every file with its copy in the archive."""
    files = _files_below(self.root, before.files)
    archive = after.files.get(self.archive)
    if archive is None or archive.kind != FILE:
      return False
    if not archive.mode & stat.S_IRUSR:
      return False
    if _files_below(self.root, after.files) != files:
      return False
    packed = _unpack(archive.content)
    if packed is None:
      return False
    prefixes = (self.root.strip("/"), posixpath.basename(self.root), "")
    return any(_is_copy(packed, files, prefix) for prefix in prefixes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserMade(ChoreOutcome):
  """There is one more user, and no other account was changed.

  The user has a home, can use it, and is in the given groups; besides these, at
  most in a new group of its own and in `users`. The password may be locked or
  set, but not empty, and the account does not expire.
  """

  name: str
  uid: int
  home: str
  shell: str
  groups: tuple[str, ...]

  @property
  def paths(self) -> tuple[str, ...]:
    return (*_USER_FILES, *_GROUP_FILES, posixpath.dirname(self.home))

  def is_right(self, before: MachineState, after: MachineState) -> bool:
    """Compares the files of users and groups line by line."""
    users, secrets = (_entries(after, path) for path in _USER_FILES)
    user, secret = users.get(self.name, ()), secrets.get(self.name, ())
    if len(user) != 7 or "" in (user[1], *secret[1:2]) or any(secret[7:8]):
      return False
    if (*user[2:3], *user[5:]) != (str(self.uid), self.home, self.shell):
      return False
    own_group = self._own_group(user[3], before, after)
    return (
      self._has_home(after)
      and self._is_in_groups(user[3], own_group, after)
      and self._rest(before, ()) == self._rest(after, own_group)
    )

  def _has_home(self, state: MachineState) -> bool:
    home = state.files.get(self.home)
    return (
      home is not None
      and (home.kind, home.uid) == (FOLDER, self.uid)
      and home.mode & _OWNER == _OWNER
      and not home.mode & stat.S_IWOTH
    )

  def _own_group(
    self, gid: str, before: MachineState, after: MachineState
  ) -> set[str]:
    """Returns the name of the user's new group, where nobody else is."""
    old, groups = (
      _entries(state, _GROUP_FILES[0]) for state in (before, after)
    )
    old_gids = {fields[2:3] for fields in old.values()}
    own = {
      name
      for name in groups.keys() - old.keys()
      if (name == self.name or groups[name][2:3] == (gid,))
      and groups[name][2:3] not in old_gids
      and _is_plain_number("".join(groups[name][2:3]))
      and groups[name][3:] in (("",), (self.name,))
    }
    return own if len(own) == 1 else set()

  def _is_in_groups(
    self, gid: str, own_group: Collection[str], state: MachineState
  ) -> bool:
    groups = _entries(state, _GROUP_FILES[0])
    primary = {name for name, fields in groups.items() if fields[2:3] == (gid,)}
    others = {
      name
      for name, fields in groups.items()
      if self.name in fields[-1].split(",")
    }
    wanted = set(self.groups)
    allowed = wanted | {*own_group, _COMMON_GROUP}
    return bool(primary) and wanted <= primary | others <= allowed

  def _rest(self, state: MachineState, own_group: Collection[str]) -> object:
    """Selects what stays: others' lines, and the files' modes and owners."""
    files = {
      path: dataclasses.replace(state.files[path], content=b"")
      for path in self.paths
      if path in state.files
    }
    users = [_entries(state, path) for path in _USER_FILES]
    for entries in users:
      entries.pop(self.name, None)
    groups = [
      {
        name: (fields[1:3], set(fields[-1].split(",")) - {self.name, ""})
        for name, fields in _entries(state, path).items()
        if name not in own_group
      }
      for path in _GROUP_FILES
    ]
    return files, users, groups


@dataclasses.dataclass(frozen=True)
class ProcessesEnded(ChoreOutcome):
  """All processes of one program have ended, and none of another."""

  name: str
  other: str

  sees_processes = True

  def is_right(self, before: MachineState, after: MachineState) -> bool:
    """Compares ids and names, as a process may change its own name.

    A process that is only stopped has another name than before.
    """
    to_end = _ids_of(self.name, before)
    other = self.other[:COMM_LENGTH]
    return (
      bool(to_end)
      and not to_end & after.processes.keys()
      and not _ids_of(self.name, after)
      and _ids_of(other, before) == _ids_of(other, after)
    )


@dataclasses.dataclass(frozen=True)
class CommandMade(ChoreOutcome):
  """A command prints the right output for the arguments of each case."""

  name: str
  cases: tuple[tuple[tuple[str, ...], str], ...]

  def is_right(self, before: MachineState, after: MachineState) -> bool:
    raise NotImplementedError(
      "a command is judged by running it: judging.check_machine.command_works"
    )


def _ids_of(name: str, state: MachineState) -> set[str]:
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
    if copy is None or _packed_attributes(copy) != _packed_attributes(file):
      return False
  return True


def _packed_attributes(file: File) -> tuple[object, ...]:
  mode = file.mode if file.kind == FILE else 0
  return file.kind, mode, file.content, file.target


def _folders_of(paths: Iterable[str]) -> set[str]:
  folders = set()
  for path in paths:
    while path:
      path = path.rpartition("/")[0]
      folders.add(path)
  return folders


def _is_plain_number(text: str) -> bool:
  """Tells whether no other text of /etc/group means the same number."""
  return text.isdecimal() and len(text) <= 5 and str(int(text)) == text


def _entries(state: MachineState, path: str) -> dict[str, tuple[str, ...]]:
  """Splits a file's lines into fields, by the first; {} if names repeat."""
  file = state.files.get(path)
  if file is None or file.kind != FILE:
    return {}
  text = file.content.decode(errors="surrogateescape")
  lines = [tuple(line.split(":")) for line in text.split("\n") if line]
  names = {fields[0]: fields for fields in lines}
  return names if len(names) == len(lines) else {}
