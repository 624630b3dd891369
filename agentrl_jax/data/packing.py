"""Packs trajectories into rows, first-fit decreasing, without cutting any.

Plain numpy, so that packing runs while the device computes. The tokens of a
line stay together in one row; lines of a trajectory may be in several. Rows
have one fixed length, so that only one shape compiles. Rows of several times
the length may stand beside a prefix tree, which has the tokens that lines share
once.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.prefix_tree import (
  PrefixTree,
  SortedPrefixes,
  TreeWriter,
  assign_tree_rows,
  keys_of,
)
from agentrl_jax.data.records import Line, Trajectory
from agentrl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
  """Fields of `data.batch.Batch` as numpy arrays [R, T].

  With a tree these are the tokens of its trajectories, and T is a multiple of
  the length of its rows.
  """

  token: np.ndarray
  position: np.ndarray
  segment: np.ndarray
  mask: np.ndarray
  behavior_logprob: np.ndarray
  trajectory: np.ndarray
  turn: np.ndarray
  policy_slot: np.ndarray
  tree: PrefixTree | None = None

  def arrays(self) -> dict[str, Any]:
    """Returns all fields but the tree, by name."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    del fields["tree"]
    return fields

  @property
  def num_tokens(self) -> int:
    """Number of tokens of the trajectories."""
    return int(np.count_nonzero(self.segment))

  @property
  def num_computed(self) -> int:
    """Number of tokens to compute: shared ones count once."""
    return self.tree.num_computed if self.tree else self.num_tokens

  @property
  def fill(self) -> float:
    """Share of the computed rows that is not padding."""
    computed = self.tree.token if self.tree else self.token
    return self.num_computed / computed.size


def assign_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
  """Assigns sequences to rows, first-fit decreasing.

  Ties keep their order, so equal lengths always give equal rows.
  """
  _refuse_too_long(lengths, row_length)
  rows: list[list[int]] = []
  room: list[int] = []
  for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
    row = next((r for r, left in enumerate(room) if left >= lengths[n]), None)
    if row is None:
      row = len(rows)
      rows.append([])
      room.append(row_length)
    rows[row].append(n)
    room[row] -= lengths[n]
  return rows


def pack(
  trajectories: Sequence[Trajectory],
  *,
  row_length: int,
  rows_multiple: int = 1,
  sharing: int = 1,
) -> Rows:
  """Packs trajectories; `Rows.trajectory` counts along the argument.

  Each of their lines is a segment. The number of rows is rounded up to
  `rows_multiple` with rows of padding. With `sharing` above 1 there is a tree,
  whose rows hold up to `row_length` tokens of up to `sharing * row_length`
  tokens of lines.
  """
  lines = _lines(trajectories)
  if sharing > 1:
    return _pack_trees(lines, row_length, rows_multiple, sharing)
  assigned = assign_rows([line.num_tokens for _, line in lines], row_length)
  rows = _empty_rows(_num_rows(assigned, rows_multiple), row_length)
  for r, members in enumerate(assigned):
    start = 0
    for segment, i in enumerate(members, 1):
      start = _place(rows, r, start, segment, *lines[i])
  return rows


def _lines(trajectories: Sequence[Trajectory]) -> list[tuple[int, Line]]:
  """Returns all lines, each with the number of its trajectory."""
  return [(n, line) for n, t in enumerate(trajectories) for line in t.lines]


def _pack_trees(
  numbered: Sequence[tuple[int, Line]],
  row_length: int,
  rows_multiple: int,
  sharing: int,
) -> Rows:
  lines = [line for _, line in numbered]
  _refuse_too_long([line.num_tokens for line in lines], row_length)
  prefixes = SortedPrefixes(keys_of(lines))
  assigned = assign_tree_rows(prefixes, row_length, sharing)
  num_rows = _num_rows(assigned, rows_multiple)
  most = max((sum(lines[i].num_tokens for i in m) for m in assigned), default=0)
  length = row_length * _multiple(most, row_length, sharing)
  writer = TreeWriter(num_rows, row_length, length)
  rows = dataclasses.replace(_empty_rows(num_rows, length), tree=writer.tree)
  for r, members in enumerate(assigned):
    start = 0
    for segment, (i, shared) in enumerate(prefixes.walk(members), 1):
      writer.write(r, start, lines[i], shared)
      start = _place(rows, r, start, segment, *numbered[i])
    writer.end_row(r)
  return rows


def _multiple(num_tokens: int, row_length: int, sharing: int) -> int:
  """Returns how many times the row's length holds the tokens.

  A power of two or `sharing`, so that few shapes compile, and a batch without
  shared tokens takes no more memory than it needs.
  """
  needed = max(-(-num_tokens // row_length), 1)
  return min(1 << (needed - 1).bit_length(), sharing)


def _refuse_too_long(lengths: Sequence[int], row_length: int) -> None:
  too_long = max(lengths, default=0)
  if too_long > row_length:
    raise ConfigError(
      f"a line of {too_long} tokens does not fit train.row_length="
      f"{row_length}: raise it, or lower episode.max_tokens"
    )


def _num_rows(assigned: Sequence[Sequence[int]], rows_multiple: int) -> int:
  return -(-max(len(assigned), 1) // rows_multiple) * rows_multiple


def _empty_rows(num_rows: int, row_length: int) -> Rows:
  shape = (num_rows, row_length)
  return Rows(
    token=np.zeros(shape, np.int32),
    position=np.zeros(shape, np.int32),
    segment=np.zeros(shape, np.int32),
    mask=np.zeros(shape, bool),
    behavior_logprob=np.zeros(shape, np.float32),
    trajectory=np.zeros(shape, np.int32),
    turn=np.zeros(shape, np.int32),
    policy_slot=np.zeros(shape, np.int32),
  )


def _place(
  rows: Rows, r: int, start: int, segment: int, n: int, line: Line
) -> int:
  """Writes a line of trajectory n into row r; returns where the next starts."""
  at = start
  for number, turn in zip(line.numbers, line.turns, strict=True):
    observed = at + len(turn.observation)
    end = observed + len(turn.sampled)
    rows.token[r, at:observed] = turn.observation
    rows.token[r, observed:end] = turn.sampled
    rows.mask[r, observed:end] = True
    rows.behavior_logprob[r, observed:end] = turn.behavior_logprob
    rows.policy_slot[r, observed:end] = turn.policy_slot
    rows.turn[r, at:end] = number
    at = end
  rows.position[r, start:at] = np.arange(at - start)
  rows.segment[r, start:at] = segment
  rows.trajectory[r, start:at] = n
  return at
