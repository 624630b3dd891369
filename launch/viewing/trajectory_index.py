"""Lists the trajectories that a run has kept, without holding them.

A file of `trajectories/` is read once, and again when it has changed, so that a
list of a running run costs no more than the updates that it made meanwhile.
"""

import base64
import contextlib
import dataclasses
import gzip
import json
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.record_file import (
  DAMAGED,
  learned_from_json,
  trajectory_from_json,
)
from agentrl_jax.data.records import LearnedTurn, Trajectory
from agentrl_jax.errors import AgentRLError
from agentrl_jax.files import reading

FOLDER, _ENDING = "trajectories", ".jsonl.gz"
TRAINING = "training"  # the policy of an update's groups; others are evaluated
_ITEM = 4  # bytes of a token, a log-probability or a version


class UnknownTrajectoryError(AgentRLError):
  """The run has kept no trajectory of this id."""


@dataclasses.dataclass(frozen=True)
class ListedTrajectory:
  """A kept trajectory, without its text and its tokens.

  `id` is `<file>.<line>.<place in the group>`, which stays the same while the
  run goes on. `played` says who played: in training, or in which evaluation.
  """

  id: str
  group: str  # the id, without the place in the group
  played: str  # "training", or "rl greedy"
  update: int | None  # that the group was trained on in; None if evaluated
  task: str
  split: str
  index: int
  attempt: int
  status: str
  is_success: bool
  reward: float
  group_mean: float  # mean reward of the group
  num_turns: int
  num_tokens: int  # of prompts, observations and answers together
  num_sampled: int
  oldest_version: int  # -1 if no policy answered
  newest_version: int
  policy_slots: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Listing:
  """All kept trajectories, the newest update first, then the evaluations.

  `problems` are sentences about files that cannot be read. `tag` differs
  whenever a file differs.
  """

  trajectories: tuple[ListedTrajectory, ...]
  problems: tuple[str, ...]
  tag: str


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
    self._read: dict[pathlib.Path, tuple[Any, _FileListing]] = {}

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
          old = (stamp, _list_file(path))
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


@dataclasses.dataclass(frozen=True)
class _FileListing:
  trajectories: tuple[ListedTrajectory, ...] = ()
  problem: str = ""


def _listing(read: Mapping[pathlib.Path, tuple[Any, _FileListing]]) -> Listing:
  files = [listing for _, listing in read.values()]
  stamps = [(_stem(path), stamp) for path, (stamp, _) in read.items()]
  return Listing(
    trajectories=tuple(t for file in files for t in file.trajectories),
    problems=tuple(file.problem for file in files if file.problem),
    tag=f"{hash(tuple(stamps)) & (2**64 - 1):016x}",
  )


def _order(path: pathlib.Path) -> tuple[int, str]:
  """Sorts the newest update first, and evaluations after all updates."""
  stem = _stem(path)
  return (-int(stem) if stem.isdecimal() else 1, stem)


def _stem(path: pathlib.Path) -> str:
  return path.name.removesuffix(_ENDING)


def _list_file(path: pathlib.Path) -> _FileListing:
  listed: list[ListedTrajectory] = []
  try:
    for line, body in enumerate(_bodies(path)):
      listed += _list_group(_stem(path), line, body)
  except DAMAGED as error:
    return _FileListing(
      tuple(listed),
      f"{FOLDER}/{path.name} cannot be read to its end: {error!r}",
    )
  return _FileListing(tuple(listed))


def _bodies(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  with gzip.open(path, "rt", encoding="utf-8") as file:
    for line in file:
      yield json.loads(line)


def _list_group(
  stem: str, line: int, body: Mapping[str, Any]
) -> Iterator[ListedTrajectory]:
  members = body["trajectories"]
  mean = sum(member["reward"] for member in members) / max(len(members), 1)
  for place, member in enumerate(members):
    turns = member["turns"]
    versions = [v for turn in turns for v in _first_and_last(turn["version"])]
    sampled = sum(_length(turn["sampled"]) for turn in turns)
    yield ListedTrajectory(
      id=f"{stem}.{line}.{place}",
      group=f"{stem}.{line}",
      played=TRAINING if stem.isdecimal() else stem.replace("_", " "),
      update=int(stem) if stem.isdecimal() else None,
      task=member["task"]["name"],
      split=member["task"]["split"],
      index=member["task"]["index"],
      attempt=member["attempt"],
      status=member["status"],
      is_success=_is_success(member),
      reward=member["reward"],
      group_mean=mean,
      num_turns=len(turns),
      num_tokens=sampled + sum(_length(t["observation"]) for t in turns),
      num_sampled=sampled,
      oldest_version=min(versions, default=-1),
      newest_version=max(versions, default=-1),
      policy_slots=tuple(sorted({turn["policy_slot"] for turn in turns})),
    )


def _is_success(member: Mapping[str, Any]) -> bool:
  """Equals `Trajectory.is_success`, of the record as it is in the file."""
  if "success" in member["metrics"]:
    return bool(member["metrics"]["success"] > 0.5)
  return bool(member["reward"] == 1.0)


def _length(array: str) -> int:
  """Returns the number of entries of an array in base64."""
  return (len(array) * 3 // 4 - array[-2:].count("=")) // _ITEM


def _first_and_last(array: str) -> Sequence[int]:
  """Returns smallest and largest version of an answer."""
  versions = np.frombuffer(base64.b64decode(array), "<i4")
  return (int(versions.min()), int(versions.max())) if len(versions) else ()
