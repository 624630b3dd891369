"""A machine's files as they are read from outside, and how much is read.

Nothing here follows a link, opens a pipe or a device, or runs a program of the
machine. Trees without end, deep trees and large files are `Unreadable`: making
them was the policy's doing.
"""

import dataclasses
import io
import stat
import tarfile
import time
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

READ_S = 120.0  # for the judge to read what it needs of one machine
LOAD_S = 30.0  # for a fresh machine to take them
UNPACK = "tar -xpf - --numeric-owner"
MAX_ENTRIES = 20_000
MAX_BYTES = 64 << 20
MAX_DEPTH = 64  # of folders below the one that is read

# Downloads and indexes of packages: large, and never what a task is about.
UNREAD = (
  "/var/cache",
  "/var/lib/apt",
  "/dev",
  "/proc",
  "/sys",
  "/etc/hostname",
)

FILE, FOLDER, LINK, OTHER = "file", "folder", "link", "other"


class Unreadable(Exception):
  """The judge cannot read the machine, by what the policy did; says how."""


@dataclasses.dataclass(frozen=True)
class File:
  """What stands at one path: mode of 12 bits, a link's target, seconds.

  Two are equal if all but their times are.
  """

  kind: str
  mode: int
  uid: int
  gid: int
  content: bytes = b""
  mtime: int = dataclasses.field(default=0, compare=False)
  target: str = ""


Tree = Mapping[str, File]  # by absolute path; odd bytes as surrogate escapes


@dataclasses.dataclass(frozen=True)
class Changes:
  """How a machine's files differ from its image's.

  What is in `removed` went before what is in `files` came.
  """

  files: Tree
  removed: frozenset[str] = frozenset()


class Budget:
  """How much may still be read of one machine, and until when."""

  def __init__(
    self,
    *,
    max_entries: int = MAX_ENTRIES,
    max_bytes: int = MAX_BYTES,
    limit_s: float = READ_S,
  ):
    self._num_entries = max_entries
    self._num_bytes = max_bytes
    self._limit_s = limit_s
    self._ends_at = time.monotonic() + limit_s

  def take_entry(self, depth: int = 0) -> None:
    """Counts one file, folder or link."""
    self._num_entries -= 1
    if self._num_entries < 0:
      raise Unreadable("there are too many files where the judge reads")
    if depth > MAX_DEPTH:
      raise Unreadable(f"folders are deeper than {MAX_DEPTH} where it reads")
    self.require_time()

  def take_bytes(self, count: int) -> None:
    """Counts bytes, before they are read where that is possible."""
    self._num_bytes -= count
    if self._num_bytes < 0:
      raise Unreadable("files are too large where the judge reads")
    self.require_time()

  def require_time(self) -> None:
    """Raises `Unreadable` once the time is over."""
    if time.monotonic() > self._ends_at:
      raise Unreadable(
        f"the judge waited for the machine's files for {self._limit_s:g} s"
      )


class Bounded(io.RawIOBase):
  """A stream of which no more is read than the budget allows."""

  def __init__(self, read: Callable[[int], bytes], budget: Budget):
    self._read = read
    self._budget = budget

  def readable(self) -> bool:
    return True

  def readinto(self, into: Any) -> int:
    """Waits for some of it."""
    piece = self._read(len(into))
    self._budget.take_bytes(len(piece))
    into[: len(piece)] = piece
    return len(piece)


def kind_of(mode: int) -> str:
  """The kind of file that `st_mode` stands for."""
  if stat.S_ISREG(mode):
    return FILE
  if stat.S_ISDIR(mode):
    return FOLDER
  return LINK if stat.S_ISLNK(mode) else OTHER


def is_read(path: str) -> bool:
  """Tells whether a changed path is among what `Machine.changes` reads."""
  return not any(path == p or path.startswith(f"{p}/") for p in UNREAD)


def depth_of(path: str, root: str) -> int:
  """How many folders below `root` a path lies."""
  return path.count("/") - root.rstrip("/").count("/")


def read_archive(stream: BinaryIO, root: str, budget: Budget) -> Tree:
  """The files of an uncompressed tar whose first member is `root`.

  Pipes and devices are named, never opened; of a hard link the content is its
  first name's.
  """
  parent = root.rstrip("/").rpartition("/")[0]
  files: dict[str, File] = {}
  try:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
      for member in archive:
        path = f"{parent}/{member.name.rstrip('/')}"
        budget.take_entry(depth_of(path, root))
        files[path] = _member(archive, member, files, parent, budget)
  except (tarfile.TarError, EOFError) as error:
    raise Unreadable(f"{root} cannot be read: {error}") from error
  return files


def _member(
  archive: tarfile.TarFile,
  member: tarfile.TarInfo,
  files: Tree,
  parent: str,
  budget: Budget,
) -> File:
  plain = File(
    OTHER,
    stat.S_IMODE(member.mode),
    member.uid,
    member.gid,
    mtime=int(member.mtime),
  )
  if member.isdir():
    return dataclasses.replace(plain, kind=FOLDER)
  if member.issym():
    return dataclasses.replace(plain, kind=LINK, target=member.linkname)
  if member.islnk():
    return files.get(f"{parent}/{member.linkname}", plain)
  if not member.isreg():
    return plain
  budget.take_bytes(member.size)
  reader = archive.extractfile(member)
  content = reader.read() if reader else b""
  return dataclasses.replace(plain, kind=FILE, content=content)


def write_archive(files: Tree) -> bytes:
  """An uncompressed tar of the files, to be unpacked at the root folder."""
  written = io.BytesIO()
  with tarfile.open(fileobj=written, mode="w") as archive:
    for path in sorted(files):
      file = files[path]
      member = tarfile.TarInfo(path.lstrip("/"))
      member.mode, member.uid, member.gid = file.mode, file.uid, file.gid
      member.type = {
        FOLDER: tarfile.DIRTYPE,
        LINK: tarfile.SYMTYPE,
      }.get(file.kind, tarfile.REGTYPE)
      member.linkname = file.target
      member.mtime = file.mtime
      member.size = len(file.content)
      archive.addfile(member, io.BytesIO(file.content))
  return written.getvalue()
