"""Packs trajectories into rows, first-fit decreasing, without cutting any.

Plain numpy, so that packing runs while the device computes. The tokens of a
line stay together in one row; lines of a trajectory may be in several. Rows
have one fixed length, so that only one shape compiles.

With `sharing` above 1, tokens that trajectories share are computed once:
attempts at a task share their prompt, and often turns after it. A row holds
their tokens as a prefix tree (trie) in depth-first order, each node once. A
token sees its ancestors: those before it in the row whose subtree has not
ended. Without shared tokens this is the attention of packed sequences.

- A row computes at most `row_length` tokens, for at most `sharing` times as
  many tokens of trajectories.
- A tree that does not fit into a row is cut between branches, and each part
  computes the path to its branches again.
- Tokens of an answer under a grammar are shared only if the grammar allowed the
  same tokens there, since their log-probabilities differ otherwise.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.records import Line, Trajectory
from agentrl_jax.errors import ConfigError

# Layers, experts per token, and the type of their numbers.
ExpertsKind = tuple[int, int, str]


@dataclasses.dataclass(frozen=True, eq=False)
class PrefixTree:
  """Tokens to compute, each row a forest in depth-first order.

  Axes: [..., B, T], and L tokens of the trajectories of a row.
  """

  token: np.ndarray  # int32
  position: np.ndarray  # int32, depth in the tree
  # int32, index in the row after the last descendant; 0 is padding. Token t
  # sees token s if s <= t < end[s].
  end: np.ndarray
  parent: np.ndarray  # int32, index of the token before; 0 for a first token
  mask: np.ndarray  # bool, some trajectory is trained on it
  # int32 [..., B, L], index of each token of a trajectory; 0 is padding.
  place: np.ndarray
  allowed: np.ndarray | None = None  # int32, as in `data.batch.Batch`
  experts: np.ndarray | None = None  # [..., B, T, L, K], likewise

  @property
  def num_computed(self) -> int:
    """Number of tokens without padding."""
    return int(np.count_nonzero(self.end))


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
  experts: np.ndarray | None = None  # [R, T, L, K], if any turn has them
  tree: PrefixTree | None = None

  def arrays(self) -> dict[str, Any]:
    """Returns all fields but the tree that are not None, by name."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    del fields["tree"]
    return {name: x for name, x in fields.items() if x is not None}

  @property
  def num_tokens(self) -> int:
    """Number of tokens of the trajectories."""
    return int(np.count_nonzero(self.segment))

  @property
  def num_computed(self) -> int:
    """Number of tokens to compute: shared ones count once."""
    return self.tree.num_computed if self.tree else self.num_tokens

  def metrics(self) -> dict[str, float]:
    """Returns how full the rows are, and how much they share."""
    return {
      "batch/fill": self.fill,
      "batch/shared": 1 - self.num_computed / max(self.num_tokens, 1),
    }

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
  experts: ExpertsKind | None = None,
) -> Rows:
  """Packs trajectories; `Rows.trajectory` counts along the argument.

  Each of their lines is a segment. The number of rows is rounded up to
  `rows_multiple` with rows of padding. With `sharing` above 1 there is a tree,
  whose rows hold up to `row_length` tokens of up to `sharing * row_length`
  tokens of lines. Turns that have `experts` of
  this kind keep them.
  """
  lines = _lines(trajectories)
  turns = [turn for _, line in lines for turn in line.turns]
  kind = (
    experts if any(_is_of(turn.experts, experts) for turn in turns) else None
  )
  if sharing > 1:
    return _pack_trees(lines, row_length, rows_multiple, sharing, kind)
  assigned = assign_rows([line.num_tokens for _, line in lines], row_length)
  rows = _empty_rows(_num_rows(assigned, rows_multiple), row_length, kind)
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
  kind: ExpertsKind | None,
) -> Rows:
  lines = [line for _, line in numbered]
  _refuse_too_long([line.num_tokens for line in lines], row_length)
  prefixes = SortedPrefixes(keys_of(lines))
  assigned = assign_tree_rows(prefixes, row_length, sharing)
  num_rows = _num_rows(assigned, rows_multiple)
  most = max((sum(lines[i].num_tokens for i in m) for m in assigned), default=0)
  length = row_length * _multiple(most, row_length, sharing)
  writer = TreeWriter(num_rows, row_length, length)
  rows = _empty_rows(num_rows, length, kind)
  rows = dataclasses.replace(rows, tree=writer.tree)
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


def _is_of(experts: np.ndarray | None, kind: ExpertsKind | None) -> bool:
  return experts is not None and (*experts.shape[1:], experts.dtype) == kind


def _empty_rows(
  num_rows: int, row_length: int, kind: ExpertsKind | None
) -> Rows:
  shape = (num_rows, row_length)
  experts = None
  if kind is not None:
    *sizes, dtype = kind
    experts = np.full((*shape, *sizes), np.iinfo(dtype).max, dtype)
  return Rows(
    token=np.zeros(shape, np.int32),
    position=np.zeros(shape, np.int32),
    segment=np.zeros(shape, np.int32),
    mask=np.zeros(shape, bool),
    behavior_logprob=np.zeros(shape, np.float32),
    trajectory=np.zeros(shape, np.int32),
    turn=np.zeros(shape, np.int32),
    policy_slot=np.zeros(shape, np.int32),
    experts=experts,
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
    if rows.experts is not None:
      _place_experts(rows.experts[r, start:end], at - start, turn.experts)
    at = end
  rows.position[r, start:at] = np.arange(at - start)
  rows.segment[r, start:at] = segment
  rows.trajectory[r, start:at] = n
  return at


def _place_experts(
  line_TLK: np.ndarray, begin: int, experts: np.ndarray | None
) -> None:
  """Writes a turn's experts, whose tokens begin at `begin`, into its line.

  The first entry is about the token before; a line's first turn has none.
  """
  kind = (*line_TLK.shape[1:], line_TLK.dtype)
  if (
    experts is None
    or not _is_of(experts, kind)
    or len(experts) != len(line_TLK) - begin
  ):
    return
  first = 0 if begin else 1
  line_TLK[begin - 1 + first : -1] = experts[first:]


class SortedPrefixes:
  """Sequences in lexicographic order, and how much neighbours share."""

  def __init__(self, sequences: Sequence[np.ndarray]):
    """`sequences` are keys, uint64 [T]: equal ones may share a node."""
    order = sorted(
      range(len(sequences)), key=lambda n: sequences[n].astype(">u8").tobytes()
    )
    self.order = order  # of sequences, by rank
    self.rank = np.argsort(order)
    self.lengths = np.array([len(sequences[n]) for n in order], int)
    # Tokens that each shares with the one before it; 0 for the first.
    self.shared = np.array(
      [0]
      + [
        _num_equal(sequences[a], sequences[b])
        for a, b in zip(order[:-1], order[1:], strict=True)
      ],
      int,
    )[: len(order)]

  @property
  def num_nodes(self) -> int:
    """Number of nodes of the prefix tree of all sequences."""
    return int(self.lengths.sum() - self.shared.sum())

  def walk(self, members: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields some sequences in order, each with what it shares with the last.

    Args:
      members: indices into the sequences that the object was made of.
    """
    ranks = sorted(int(self.rank[n]) for n in members)
    before = None
    for rank in ranks:
      shared = 0
      if before is not None:
        shared = int(self.shared[before + 1 : rank + 1].min())
      yield self.order[rank], shared
      before = rank


def keys_of(lines: Sequence[Line]) -> list[np.ndarray]:
  """Returns a key for each token, uint64: equal keys may share a node.

  A key is the token, and under a grammar also the grammar and the place in the
  answer, which decide the mask after equal tokens.
  """
  numbers: dict[str, int] = {}
  longest = max((line.num_tokens for line in lines), default=0)
  keys = []
  for line in lines:
    parts = [np.zeros(0, np.uint64)]
    for turn in line.turns:
      sampled = turn.sampled.astype(np.uint64)
      if turn.grammar:
        number = numbers.setdefault(turn.grammar, len(numbers))
        index_A = np.arange(len(sampled), dtype=np.uint64)
        sampled |= (number * longest + index_A + 1) << np.uint64(32)
      parts += [turn.observation.astype(np.uint64), sampled]
    keys.append(np.concatenate(parts))
  return keys


def assign_tree_rows(
  prefixes: SortedPrefixes, row_length: int, sharing: int
) -> list[list[int]]:
  """Assigns sequences to rows of at most `row_length` nodes.

  From the leaves of the tree to its root, first-fit decreasing at every node:
  its branches, which share the path to the node, go to as few rows as they
  need, and rows with room left are filled with branches of its ancestors. So
  sequences that share the most are together first.
  """
  lengths, order = prefixes.lengths, prefixes.order
  if not order:
    return []
  limit = sharing * row_length
  open_nodes: list[tuple[int, list[_Part]]] = []  # depth, parts below it
  for rank, depth in enumerate([*prefixes.shared[1:].tolist(), 0]):
    parts = [_Part(int(lengths[rank]), int(lengths[rank]), [order[rank]])]
    while open_nodes and open_nodes[-1][0] > depth:
      below, others = open_nodes.pop()
      parts = _first_fit(others + parts, below, row_length, limit)
    if open_nodes and open_nodes[-1][0] == depth:
      open_nodes[-1][1].extend(parts)
    else:
      open_nodes.append((depth, parts))
  parts = _first_fit(open_nodes[0][1], 0, row_length, limit)
  return [sorted(part.members) for part in parts]


@dataclasses.dataclass
class _Part:
  """Sequences that go to the same row."""

  num_nodes: int  # from the root on
  num_tokens: int  # of all its sequences
  members: list[int]


def _first_fit(
  parts: list[_Part], depth: int, row_length: int, limit: int
) -> list[_Part]:
  """Joins parts that share their first `depth` nodes, first-fit decreasing.

  Ties go to the earlier sequence, so equal batches give equal rows.
  """
  joined: list[_Part] = []
  for part in sorted(parts, key=lambda p: (-p.num_nodes, min(p.members))):
    added = part.num_nodes - depth
    other = next(
      (
        other
        for other in joined
        if other.num_nodes + added <= row_length
        and other.num_tokens + part.num_tokens <= limit
      ),
      None,
    )
    if other is None:
      joined.append(part)
    else:
      other.num_nodes += added
      other.num_tokens += part.num_tokens
      other.members += part.members
  return joined


class TreeWriter:
  """Writes the sequences of each row, and where their tokens are."""

  def __init__(self, num_rows: int, row_length: int, num_tokens: int):
    """A row holds `num_tokens` tokens of trajectories."""
    shape = (num_rows, row_length)
    self.tree = PrefixTree(
      token=np.zeros(shape, np.int32),
      position=np.zeros(shape, np.int32),
      end=np.zeros(shape, np.int32),
      parent=np.zeros(shape, np.int32),
      mask=np.zeros(shape, bool),
      place=np.zeros((num_rows, num_tokens), np.int32),
    )
    self._path = np.zeros(0, np.int32)  # indices of the last sequence's tokens
    self._cursor = 0

  def write(self, row: int, start: int, line: Line, shared: int) -> None:
    """Writes a line that shares `shared` tokens with the one before.

    Its tokens are counted from `start` on among those of the row's lines.
    """
    tree, begin = self.tree, self._cursor
    new = line.num_tokens - shared
    self._close(row, shared)
    path = np.concatenate(
      [self._path[:shared], np.arange(begin, begin + new, dtype=np.int32)]
    )
    here = slice(begin, begin + new)
    token, mask = _tokens(line)
    tree.token[row, here] = token[shared:]
    tree.position[row, here] = np.arange(shared, shared + new)
    tree.parent[row, here] = np.append(np.int32(0), path)[shared:-1]
    tree.mask[row, path[mask]] = True
    tree.place[row, start : start + len(path)] = path
    self._path, self._cursor = path, begin + new

  def end_row(self, row: int) -> None:
    """Ends all subtrees of a row; the next one starts afresh."""
    self._close(row, 0)
    self._path, self._cursor = self._path[:0], 0

  def _close(self, row: int, depth: int) -> None:
    """Ends the subtrees of the last sequence's tokens from `depth` on."""
    self.tree.end[row, self._path[depth:]] = self._cursor


def allowed_nodes(
  tree: PrefixTree, mask_RL: np.ndarray, allowed_RL: np.ndarray
) -> np.ndarray:
  """Returns the masks of the nodes, int32 [R, T], from those of trajectories.

  Trajectories meet in a node only with equal masks; see `keys_of`.
  """
  allowed_RT = np.zeros(tree.token.shape, np.int32)
  row, at = np.nonzero(mask_RL)
  allowed_RT[row, tree.place[row, at]] = allowed_RL[row, at]
  return allowed_RT


def expert_nodes(tree: PrefixTree, expert_RTLK: np.ndarray) -> np.ndarray:
  """Returns the experts of the nodes from those of trajectories.

  Where trajectories meet, those of any of them that has some.
  """
  none = np.iinfo(expert_RTLK.dtype).max
  shape = (*tree.token.shape, *expert_RTLK.shape[2:])
  node_RTLK = np.full(shape, none, expert_RTLK.dtype)
  row, at = np.nonzero((expert_RTLK != none).all((2, 3)))
  node_RTLK[row, tree.place[row, at]] = expert_RTLK[row, at]
  return node_RTLK


def _tokens(line: Line) -> tuple[np.ndarray, np.ndarray]:
  """Returns all tokens, and a mask of those that are trained on."""
  sizes = [len(x) for t in line.turns for x in (t.observation, t.sampled)]
  is_sampled = np.tile([False, True], len(line.turns))
  return line.tokens, np.repeat(is_sampled, sizes)


def _num_equal(a: np.ndarray, b: np.ndarray) -> int:
  """Counts equal entries before the first difference."""
  size = min(len(a), len(b))
  different = np.flatnonzero(a[:size] != b[:size])
  return int(different[0]) if different.size else size
