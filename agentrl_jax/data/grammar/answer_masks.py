"""Masks of allowed tokens for packed trajectories, from their grammars.

They are computed again from the sampled tokens, as in the sampler. Most masks
of a batch are equal, so they are stored in a table. Needs no jax.

Axes: R rows, T tokens, A tokens of an answer, M masks, X words of bits.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.packing import Rows
from agentrl_jax.data.records import Trajectory
from agentrl_jax.errors import ConfigError, GeneratorFault

_ALL_TOKENS = np.uint32(2**32 - 1)


@dataclasses.dataclass(frozen=True, eq=False)
class AnswerMasks:
  """The mask fields of `data.batch.Batch`."""

  allowed_RT: np.ndarray  # int32, row of the table
  mask_MX: np.ndarray  # uint32; M is a power of two, row 0 allows everything


def answer_masks(
  rows: Rows,
  trajectories: Sequence[Trajectory],
  make_grammars: Callable[[], Grammars] | None,
) -> AnswerMasks:
  """Returns the masks of all rows, some answers of which had a grammar.

  `trajectories` are those that were packed. Raises
  `ConfigError` if `make_grammars` is None, and `GeneratorFault`
  for a token that its grammar does not allow.
  """
  if make_grammars is None:
    raise ConfigError(
      "answers had to follow a grammar, and the learner was given no "
      "`Grammars` to find out what it allowed: pass those of the chat that "
      "the answers were sampled in, `ChatCodec.grammars(vocab_size)`"
    )
  grammars = make_grammars()
  all_tokens = np.full(grammars.num_mask_words, _ALL_TOKENS)
  row_of = {all_tokens.tobytes(): 0}
  allowed_RT = np.zeros(rows.mask.shape, np.int32)
  for index_A, n, turn in _answers(rows):
    mask_AX = _masks_of(trajectories[n], turn, grammars)
    if mask_AX is not None:
      allowed_RT.flat[index_A] = [
        row_of.setdefault(mask_X.tobytes(), len(row_of)) for mask_X in mask_AX
      ]
  return AnswerMasks(allowed_RT, _table(list(row_of), grammars.num_mask_words))


def _answers(rows: Rows) -> Iterator[tuple[np.ndarray, int, int]]:
  """Yields the flat indices, the trajectory and the turn of each answer."""
  index = np.flatnonzero(rows.mask)
  key = np.stack([rows.trajectory.flat[index], rows.turn.flat[index]])
  starts = np.flatnonzero(np.any(np.diff(key, axis=1), axis=0)) + 1
  for index_A in np.split(index, starts):
    first = index_A[0]
    yield index_A, int(rows.trajectory.flat[first]), int(rows.turn.flat[first])


def _masks_of(
  trajectory: Trajectory, number: int, grammars: Grammars
) -> np.ndarray | None:
  turn = trajectory.turns[number]
  if not turn.grammar:
    return None
  try:
    return grammars.masks(turn.grammar, turn.sampled)
  except GeneratorFault as fault:
    raise GeneratorFault(
      f"turn {number} of attempt {trajectory.attempt} in group "
      f"{trajectory.group_id}, at {trajectory.task}, was not sampled under its "
      f"grammar: {fault}. Sampler and learner need the same tokenizer, chat "
      "template and version of llguidance"
    ) from fault


def _table(masks: Sequence[bytes], num_mask_words: int) -> np.ndarray:
  """Returns the table, padded to a power of two so that few shapes compile."""
  size = 1 << (len(masks) - 1).bit_length()
  mask_MX = np.zeros((size, num_mask_words), np.uint32)
  mask_MX[: len(masks)] = np.frombuffer(b"".join(masks), np.uint32).reshape(
    -1, num_mask_words
  )
  return mask_MX
