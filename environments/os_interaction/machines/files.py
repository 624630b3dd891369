"""A machine's files as the judge reads them from outside, within a budget.

Nothing here follows a link, opens a pipe or a device, or runs a program of the
machine. Endless trees, deep trees and large files raise `Unreadable`: only the
policy can have made them.
"""

import dataclasses
import io
import stat
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

READ_TIMEOUT_S = 120.0  # for all that the judge reads of one machine
LOAD_TIMEOUT_S = 30.0  # for one command that writes files to a fresh machine
UNPACK = "tar -xpf - --numeric-owner"
MAX_ENTRIES = 20_000
MAX_BYTES = 64 << 20
MAX_DEPTH = 64  # of folders below the one that is read

# Package downloads and indexes are large and never part of a task; the others
# are the kernel's or the engine's.
IGNORED_PATHS = (
  "/var/cache",
  "/var/lib/apt",
  "/dev",
  "/proc",
  "/sys",
  "/etc/hostname",
)

FILE, FOLDER, LINK, OTHER = "file", "folder", "link", "other"


class Unreadable(Exception):
  """The policy left the machine in a state that the judge cannot read."""


@dataclasses.dataclass(frozen=True)
class File:
  """One path: permission bits, owner, content or link target.

  Modification times do not count when two files are compared.
  """

  kind: str
  mode: int
  uid: int
  gid: int
  content: bytes = b""
  mtime: int = dataclasses.field(default=0, compare=False)  # Unix seconds
  target: str = ""


# By absolute path; bytes that are not UTF-8 are surrogate escapes.
Tree = Mapping[str, File]


@dataclasses.dataclass(frozen=True)
class Changes:
  """Difference between a machine's files and its image's.

  Paths in `removed` were removed before those in `files` were written.
  """

  files: Tree
  removed: frozenset[str] = frozenset()


class ReadBudget:
  """Remaining entries, bytes and time for reading one machine."""

  def __init__(
    self,
    *,
    max_entries: int = MAX_ENTRIES,
    max_bytes: int = MAX_BYTES,
    limit_s: float = READ_TIMEOUT_S,
  ):
    self._num_entries = max_entries
    self._num_bytes = max_bytes
    self._limit_s = limit_s
    self._deadline = time.monotonic() + limit_s

  def count_entry(self, depth: int = 0) -> None:
    """Counts one file, folder or link."""
    self._num_entries -= 1
    if self._num_entries < 0:
      raise Unreadable("there are too many files where the judge reads")
    if depth > MAX_DEPTH:
      raise Unreadable(f"folders are nested deeper than {MAX_DEPTH} levels")
    self._check_deadline()

  def count_bytes(self, count: int) -> None:
    """Counts bytes; callers that know the size do so before they read."""
    self._num_bytes -= count
    if self._num_bytes < 0:
      raise Unreadable("files are too large where the judge reads")
    self._check_deadline()

  def _check_deadline(self) -> None:
    if time.monotonic() > self._deadline:
      raise Unreadable(
        f"the machine's files were not read within {self._limit_s:g} s"
      )


class BoundedStream(io.RawIOBase):
  """A stream of which no more is read than the budget allows."""

  def __init__(self, read: Callable[[int], bytes], budget: ReadBudget):
    self._read = read
    self._budget = budget

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    data = self._read(len(buffer))
    self._budget.count_bytes(len(data))
    buffer[: len(data)] = data
    return len(data)


def kind_of(mode: int) -> str:
  """Maps `st_mode` to the kind of a `File`."""
  if stat.S_ISREG(mode):
    return FILE
  if stat.S_ISDIR(mode):
    return FOLDER
  return LINK if stat.S_ISLNK(mode) else OTHER


def process_name(name: str, state: str) -> str:
  """Marks the name of a process that is alive and does not go on."""
  return f"{name} (stopped)" if state[:1] in ("T", "t") else name


def is_compared(path: str) -> bool:
  """Tells whether `Machine.read_changes` includes a changed path."""
  return not is_in(path, IGNORED_PATHS)


def is_in(path: str, folders: Iterable[str]) -> bool:
  """Tells whether a path is one of the folders, or below one."""
  return any(path == f or path.startswith(f"{f}/") for f in folders)


def read_archive(stream: BinaryIO, root: str, budget: ReadBudget) -> Tree:
  """Reads the files of an uncompressed tar whose first member is `root`.

  Pipes and devices become entries without content; a hard link has the content
  of its first name.
  """
  root = root.rstrip("/")
  parent = root.rpartition("/")[0]
  files: dict[str, File] = {}
  try:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
      for member in archive:
        path = f"{parent}/{member.name.rstrip('/')}"
        budget.count_entry(depth=path.count("/") - root.count("/"))
        files[path] = _read_member(archive, member, files, parent, budget)
  except (tarfile.TarError, EOFError) as error:
    raise Unreadable(f"{root or '/'} cannot be read: {error}") from error
  return files


def _read_member(
  archive: tarfile.TarFile,
  member: tarfile.TarInfo,
  files: Tree,
  parent: str,
  budget: ReadBudget,
) -> File:
  other = File(
    OTHER,
    stat.S_IMODE(member.mode),
    member.uid,
    member.gid,
    mtime=int(member.mtime),
  )
  if member.isdir():
    return dataclasses.replace(other, kind=FOLDER)
  if member.issym():
    return dataclasses.replace(other, kind=LINK, target=member.linkname)
  if member.islnk():
    return files.get(f"{parent}/{member.linkname}", other)
  if not member.isreg():
    return other
  budget.count_bytes(member.size)
  reader = archive.extractfile(member)
  content = reader.read() if reader else b""
  return dataclasses.replace(other, kind=FILE, content=content)


def write_archive(files: Tree) -> bytes:
  """Packs files into an uncompressed tar, to be unpacked at the root folder."""
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w") as archive:
    for path in sorted(files):
      file = files[path]
      member = tarfile.TarInfo(path.lstrip("/"))
      member.mode, member.uid, member.gid = file.mode, file.uid, file.gid
      member.type = {FOLDER: tarfile.DIRTYPE, LINK: tarfile.SYMTYPE}.get(
        file.kind, tarfile.REGTYPE
      )
      member.linkname = file.target
      member.mtime = file.mtime
      member.size = len(file.content)
      archive.addfile(member, io.BytesIO(file.content))
  return buffer.getvalue()
