"""Lists the trajectories that a run has kept, without holding them.

A file of `trajectories/` is read once, and again when it has changed, so that a
list of a running run costs no more than the updates that it made meanwhile.
"""

import contextlib
import dataclasses
import gzip
import json
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.data.record_file import (
  DAMAGED,
  learned_from_json,
  trajectory_from_json,
)
from agentrl_jax.data.records import LearnedTurn, Trajectory
from agentrl_jax.errors import AgentRLError
from agentrl_jax.files import reading
from launch.reports.episodes import listed_trajectory
from launch.reports.schema import ListedTrajectory, Listing

FOLDER, _ENDING = "trajectories", ".jsonl.gz"
TRAINING = "training"  # the policy of an update's groups; others are evaluated


class UnknownTrajectoryError(AgentRLError):
  """The run has kept no trajectory of this id."""


@dataclasses.dataclass(frozen=True)
class KeptTrajectory:
  """A trajectory and, if it was trained on, what the learner made of it."""

  trajectory: Trajectory
  learned: Sequence[LearnedTurn] | None  # one per turn


class TrajectoryIndex:
  """Lists and reads the trajectories of one run; may be used by any thread."""

  def __init__(self, run: pathlib.Path):
    self._folder = run / FOLDER
    self._lock = threading.Lock()
    # By file: its time and size when it was read, and what it listed.
    self._read: dict[pathlib.Path, tuple[Any, Listing]] = {}

  def listing(self) -> Listing:
    """Reads new and changed files, and returns the list of all."""
    with self._lock:
      known, self._read = self._read, {}
      for path in sorted(self._folder.glob(f"*{_ENDING}"), key=_order):
        try:
          stat = path.stat()
        except FileNotFoundError:  # moved away by a run that goes on
          continue
        stamp = (stat.st_mtime_ns, stat.st_size)
        old = known.get(path)
        if old is None or old[0] != stamp:
          old = (stamp, list_file(path))
        self._read[path] = old
      return _listing(self._read)

  def trajectory(self, id: str) -> KeptTrajectory:
    """Reads the trajectory of an id. Raises `UnknownTrajectoryError`."""
    group, _, place = id.rpartition(".")
    members = self._group(group)["trajectories"]
    if not place.isdecimal() or int(place) >= len(members):
      raise UnknownTrajectoryError(
        f"group {group!r} has {len(members)} trajectories, numbered from 0: "
        f"found {place!r}"
      )
    body = members[int(place)]
    with reading(self._folder):
      return KeptTrajectory(trajectory_from_json(body), learned_from_json(body))

  def _group(self, id: str) -> dict[str, Any]:
    name, _, line = id.rpartition(".")
    with self._lock:
      paths = {_stem(path): path for path in self._read}
    # A run that goes back to an earlier update may have removed the file.
    with contextlib.suppress(FileNotFoundError):
      if name in paths and line.isdecimal():
        for number, body in enumerate(_bodies(paths[name])):
          if number == int(line):
            return body
    raise UnknownTrajectoryError(
      f"no group {id!r} is kept in {self._folder}: take an id from the list"
    )


def _listing(read: Mapping[pathlib.Path, tuple[Any, Listing]]) -> Listing:
  files = [listing for _, listing in read.values()]
  stamps = [(_stem(path), stamp) for path, (stamp, _) in read.items()]
  return Listing(
    trajectories=[t for file in files for t in file.trajectories],
    problems=[problem for file in files for problem in file.problems],
    tag=f"{hash(tuple(stamps)) & (2**64 - 1):016x}",
  )


def _order(path: pathlib.Path) -> tuple[int, str]:
  """Sorts the newest update first, and evaluations after all updates."""
  stem = _stem(path)
  return (-int(stem) if stem.isdecimal() else 1, stem)


def _stem(path: pathlib.Path) -> str:
  return path.name.removesuffix(_ENDING)


def list_file(path: pathlib.Path) -> Listing:
  """Lists the trajectories of one file, as far as it can be read."""
  listed: list[ListedTrajectory] = []
  problems = []
  try:
    for line, body in enumerate(_bodies(path)):
      listed += _list_group(_stem(path), line, body)
  except DAMAGED as error:
    problems = [f"{FOLDER}/{path.name} cannot be read to its end: {error!r}"]
  return Listing(trajectories=listed, problems=problems)


def _bodies(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  with gzip.open(path, "rt", encoding="utf-8") as file:
    for line in file:
      yield json.loads(line)


def _list_group(
  stem: str, line: int, body: Mapping[str, Any]
) -> list[ListedTrajectory]:
  members = [trajectory_from_json(member) for member in body["trajectories"]]
  mean = sum(member.reward for member in members) / max(len(members), 1)
  return [
    listed_trajectory(
      member,
      id=f"{stem}.{line}.{place}",
      group=f"{stem}.{line}",
      played=TRAINING if stem.isdecimal() else stem.replace("_", " "),
      update=int(stem) if stem.isdecimal() else None,
      group_mean=mean,
    )
    for place, member in enumerate(members)
  ]
