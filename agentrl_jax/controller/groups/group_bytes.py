"""Groups as bytes, for the learner processes that did not play them.

Tokens and log-probabilities are most of a batch, and go as they lie in memory,
one array after another. What else the learner reads is JSON before them.
Transcripts and `Turn.raw_logprob`, which process 0 alone reads, are left out.
"""

import dataclasses
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.record_file import group_from_json, group_to_json
from agentrl_jax.data.records import Group, Trajectory, Turn

_ARRAYS = {
  "observation": "<i4",
  "sampled": "<i4",
  "behavior_logprob": "<f4",
  "version": "<i4",
}
_HEADER_SIZE = struct.Struct("<Q")
_NO_INTS, _NO_FLOATS = np.empty(0, np.int32), np.empty(0, np.float32)


def encode_groups(groups: Sequence[Group]) -> bytes:
  """Encodes the parts of groups that every learner process reads."""
  turns = [
    turn
    for group in groups
    for trajectory in group.trajectories
    for turn in trajectory.turns
  ]
  header = json.dumps(
    {
      "groups": [group_to_json(_without_arrays(group)) for group in groups],
      "observed": [len(turn.observation) for turn in turns],
      "sampled": [len(turn.sampled) for turn in turns],
      "experts": [
        None if x.experts is None else (x.experts.dtype.str, x.experts.shape)
        for x in turns
      ],
    }
  ).encode()
  arrays = [
    np.asarray(getattr(turn, name), dtype).tobytes()
    for name, dtype in _ARRAYS.items()
    for turn in turns
  ]
  experts = [x.experts.tobytes() for x in turns if x.experts is not None]
  return b"".join([_HEADER_SIZE.pack(len(header)), header, *arrays, *experts])


def decode_groups(value: bytes) -> list[Group]:
  """Inverts `encode_groups`: no transcripts, and NaN as `raw_logprob`.

  The arrays are views of `value`.
  """
  (size,) = _HEADER_SIZE.unpack_from(value)
  start = _HEADER_SIZE.size + size
  header = json.loads(value[_HEADER_SIZE.size : start])
  lengths = {"observation": header["observed"]}
  columns = []
  for name, dtype in _ARRAYS.items():
    ends = np.cumsum(lengths.get(name, header["sampled"]), dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    array = np.frombuffer(value, dtype, total, start)
    start += array.nbytes
    columns.append(np.split(array, ends[:-1]) if len(ends) else [])
  of_turns: list[np.ndarray | None] = []
  for form in header["experts"]:
    experts = None
    if form is not None:
      dtype, shape = form
      experts = np.ndarray(shape, dtype, value, start)
      start += experts.nbytes
    of_turns.append(experts)
  rows = zip(*columns, of_turns, strict=True)
  groups = [group_from_json(body) for body in header["groups"]]
  return [_with_arrays(group, rows) for group in groups]


def _without_arrays(group: Group) -> Group:
  def empty(turn: Turn) -> Turn:
    return dataclasses.replace(
      turn,
      observation=_NO_INTS,
      sampled=_NO_INTS,
      behavior_logprob=_NO_FLOATS,
      raw_logprob=_NO_FLOATS,
      version=_NO_INTS,
      experts=None,
    )

  return _with_turns(group, empty, transcript=())


def _with_arrays(group: Group, rows: Iterator[Sequence[np.ndarray]]) -> Group:
  def filled(turn: Turn) -> Turn:
    observation, sampled, behavior_logprob, version, experts = next(rows)
    return dataclasses.replace(
      turn,
      observation=observation,
      sampled=sampled,
      behavior_logprob=behavior_logprob,
      raw_logprob=np.full(len(sampled), np.nan, np.float32),
      version=version,
      experts=experts,
    )

  return _with_turns(group, filled)


def _with_turns(
  group: Group, of_turn: Callable[[Turn], Turn], **changes: Any
) -> Group:
  def changed(trajectory: Trajectory) -> Trajectory:
    turns = tuple(map(of_turn, trajectory.turns))
    return dataclasses.replace(trajectory, turns=turns, **changes)

  members = tuple(map(changed, group.trajectories))
  return dataclasses.replace(group, trajectories=members)
