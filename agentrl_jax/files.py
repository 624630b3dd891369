"""Files that are whole or not there, on disks that may be full.

A file of a run is read by later starts and by other programs. So it is written
beside its place and then moved there, a line is appended whole or not at all,
and what can be neither read nor written is said in one sentence.
"""

import contextlib
import csv
import errno
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import BinaryIO

from agentrl_jax.errors import ConfigError, NotWritten

_NO_SPACE = os.strerror(errno.ENOSPC)
# Errors of a path at which no file is that may be read.
_NO_FILE = (
  errno.ENOENT,
  errno.EISDIR,
  errno.ENOTDIR,
  errno.ELOOP,
  errno.EACCES,
  errno.EPERM,
)


@contextlib.contextmanager
def reading(path: pathlib.Path) -> Iterator[None]:
  """Turns errors of a damaged file into a `ConfigError` that names it.

  So does it those of a path that has no file, or none that may be read.
  """
  try:
    yield
  except ConfigError:
    raise
  except (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    EOFError,
    OverflowError,
    RecursionError,
    OSError,
    csv.Error,
  ) as error:
    if isinstance(error, OSError) and error.errno not in _NO_FILE:
      raise  # of a disk or a network, which may pass
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    raise ConfigError(
      f"{path} cannot be read, perhaps because it was cut off or changed by "
      f"hand ({reason[:200]}): restore it from a copy, or move it away"
    ) from error


@contextlib.contextmanager
def writing(path: os.PathLike[str]) -> Iterator[None]:
  """Turns an error of the disk into `NotWritten`, which names the path."""
  try:
    yield
  except NotWritten:
    raise
  except OSError as error:
    raise not_written(path, error) from error
  except (ValueError, RuntimeError) as error:  # of libraries that write
    if _NO_SPACE not in str(error):
      raise
    full = OSError(errno.ENOSPC, _NO_SPACE)
    raise not_written(path, full) from error


def not_written(path: os.PathLike[str], error: OSError) -> NotWritten:
  """Makes the error of a file that could not be written."""
  there = pathlib.Path(path).absolute()
  while not there.exists():
    there = there.parent
  free = ""
  with contextlib.suppress(OSError):
    usage = shutil.disk_usage(there)
    free = f"; {usage.free / 1e6:,.1f} of {usage.total / 1e6:,.0f} MB are free"
  return NotWritten(
    f"{os.fspath(path)} cannot be written: {error.strerror or error}{free}. "
    "Make room, or allow it to be written, and start the same command again; "
    "what was written before is whole"
  )


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a file in one step: a reader sees the old content or the new.

  Raises `NotWritten`; the old file is then as it was.
  """
  data = content if isinstance(content, bytes) else content.encode()
  partial = path.with_name(f"{path.name}.partial")
  with writing(path):
    try:
      partial.write_bytes(data)
      partial.replace(path)
    except OSError:
      with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
      raise


def append_whole(
  path: pathlib.Path, text: str, file: BinaryIO | None = None
) -> None:
  """Appends text to a file, all of it or none of it.

  `file` is the path's, open for appending without a buffer. Raises
  `NotWritten`.
  """
  with writing(path), contextlib.ExitStack() as stack:
    opened = file or stack.enter_context(path.open("ab", buffering=0))
    before = os.fstat(opened.fileno()).st_size
    left = memoryview(text.encode())
    try:
      while left:
        left = left[opened.write(left) :]
    except OSError:
      with contextlib.suppress(OSError):
        os.ftruncate(opened.fileno(), before)
      raise


def drop_half_line(path: pathlib.Path) -> None:
  """Removes a line that a killed process has left without its end.

  Raises `NotWritten` for a folder in place of the file.
  """
  if path.exists():
    with writing(path):
      written = path.read_bytes()
      lines = written[: written.rfind(b"\n") + 1]
      if len(lines) < len(written):
        path.write_bytes(lines)
