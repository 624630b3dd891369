"""The files and processes of a container, as its engine tells them.

The engine packs files without running anything of the container, whether it
runs or has ended. Answers are read piece by piece and no further than the
bounds of `view`. All calls block.
"""

import base64
import contextlib
import io
import json
import stat
from collections.abc import Callable, Iterator
from typing import Any

import docker
import docker.errors

from environments.os_interaction.machines.files import (
  FOLDER,
  Bounded,
  Budget,
  Changes,
  File,
  Tree,
  Unreadable,
  is_read,
  read_archive,
)

# Read with one request each: they are small, and often changed.
TOGETHER = ("/etc", "/home", "/root", "/usr/local")
_TOLD_BYTES = 500  # of the reason for an error
READ_TIMEOUT_S = 60.0  # of silence, while the engine answers
_CHANGED, _ADDED, _REMOVED = 0, 1, 2
# Go's bits for what is beyond rwx, which the engine tells modes with.
_GO_FOLDER = 1 << 31
_GO_TYPES = sum(1 << bit for bit in (19, 21, 24, 25, 26, 27, 31))
_GO_BITS = (
  (1 << 23, stat.S_ISUID),
  (1 << 22, stat.S_ISGID),
  (1 << 20, stat.S_ISVTX),
)
_KEPT_OWNER = 0  # of a changed folder of the image, whose owner is not told


def read_tree(
  engine: docker.DockerClient, name: str, path: str, budget: Budget
) -> Tree:
  """What is at `path` and below it; empty if there is nothing."""
  params = {"path": path}
  with _asked(engine, "GET", name, "archive", params) as (_, stream):
    return {} if stream is None else read_archive(stream, path, budget)


def read_changes(
  engine: docker.DockerClient, name: str, budget: Budget
) -> Changes:
  """What was written, by the engine's list of changed paths."""
  with _asked(engine, "GET", name, "changes", {}) as (_, stream):
    listed = json.load(stream) if stream is not None else None
  kinds = {str(each["Path"]): each["Kind"] for each in listed or ()}
  kinds = {path: kind for path, kind in kinds.items() if is_read(path)}
  files: dict[str, File] = {}
  for folder in TOGETHER:
    if any(path.startswith(f"{folder}/") for path in kinds):
      below = read_tree(engine, name, folder, budget)
      files.update({path: below[path] for path in below if path in kinds})
  for path in sorted(kinds.keys() - files.keys()):
    budget.take_entry()
    if path not in files and kinds[path] != _REMOVED:
      _read_changed(engine, name, path, kinds, files, budget)
  removed = {path for path, kind in kinds.items() if kind == _REMOVED}
  return Changes(files, frozenset(removed))


def _read_changed(
  engine: docker.DockerClient,
  name: str,
  path: str,
  kinds: dict[str, int],
  files: dict[str, File],
  budget: Budget,
) -> None:
  """One path, with all below it if that was added."""
  if kinds[path] == _ADDED:
    files.update(read_tree(engine, name, path, budget))
  elif not any(other.startswith(f"{path}/") for other in kinds):
    folder = _folder(engine, name, path)
    read = {path: folder} if folder else None
    files.update(read or read_tree(engine, name, path, budget))


def is_plain(engine: docker.DockerClient, name: str, path: str) -> bool:
  """Tells whether a path is a plain file, or nothing at all."""
  mode = _mode(engine, name, path)
  return mode is None or not mode & _GO_TYPES


def read_processes(engine: docker.DockerClient, name: str) -> dict[str, str]:
  """The names of living processes, by their numbers on the engine's host."""
  api: Any = engine.api
  told = api.top(name, "-eo pid,stat,comm")
  return {
    number: command
    for number, state, command in told["Processes"] or ()
    if not state.startswith(("Z", "X"))
  }


def _folder(engine: docker.DockerClient, name: str, path: str) -> File | None:
  """A folder by itself; None if the path is none."""
  mode = _mode(engine, name, path)
  if mode is None or not mode & _GO_FOLDER:
    return None
  bits = mode & 0o777 | sum(ours for go, ours in _GO_BITS if mode & go)
  return File(FOLDER, bits, _KEPT_OWNER, _KEPT_OWNER)


def _mode(engine: docker.DockerClient, name: str, path: str) -> int | None:
  """What stands at a path, in Go's bits; None if nothing does."""
  params = {"path": path}
  with _asked(engine, "HEAD", name, "archive", params) as (head, _):
    told = head.get("X-Docker-Container-Path-Stat")
  return (
    None if told is None else int(json.loads(base64.b64decode(told))["mode"])
  )


@contextlib.contextmanager
def _asked(
  engine: docker.DockerClient,
  method: str,
  name: str,
  what: str,
  params: dict[str, str],
) -> Iterator[tuple[Any, Any]]:
  """The head and the body of an answer; no body if there is no such path."""
  api: Any = engine.api
  url = f"{api.base_url}/v{api.api_version}/containers/{name}/{what}"
  answer = api.request(
    method, url, params=params, stream=True, timeout=READ_TIMEOUT_S
  )
  try:
    if not _is_there(answer, name):
      yield {}, None
      return
    # Names and padding count by themselves, beside what the files hold.
    body = Bounded(_reader(answer), Budget())
    yield answer.headers, io.BufferedReader(body)
  finally:
    answer.close()


def _is_there(answer: Any, name: str) -> bool:
  """Tells whether there is such a path; raises where it cannot be told.

  A path that leads through a file, or in a ring of links, is not there.
  """
  if answer.status_code < 400:
    return True
  told = answer.raw.read(_TOLD_BYTES, decode_content=True)
  if b"No such container" in told:
    raise docker.errors.NotFound(told.decode(errors="replace"))
  if answer.status_code == 404 or b"not a directory" in told:
    return False
  raise Unreadable(
    f"the engine answers {answer.status_code} for {name}: {told!r}"
  )


def _reader(answer: Any) -> Callable[[int], bytes]:
  def read(count: int) -> bytes:
    piece: bytes = answer.raw.read(count, decode_content=True)
    return piece

  return read
