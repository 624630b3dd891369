"""Packed rows into the micro-batches of one update.

A row is in one micro-batch whole. What was computed over the whole batch is cut
along with it, so the cut changes nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from agentrl_jax.data.batch import Batch
from agentrl_jax.data.grammar.answer_masks import AnswerMasks
from agentrl_jax.data.packing import Rows
from agentrl_jax.errors import ConfigError
from agentrl_jax.train.objective import TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchConfig:
  """The `train` section's part about shapes."""

  row_length: int  # tokens
  micro_batch: int  # rows

  def __post_init__(self) -> None:
    for name in ("row_length", "micro_batch"):
      if getattr(self, name) < 1:
        raise ConfigError(f"train.{name}={getattr(self, name)} is below 1")


def cut(
  rows: Rows,
  advantage_RT: np.ndarray,
  micro_batch: int,
  masks: AnswerMasks | None = None,
) -> list[TrainBatch]:
  """Lessons of `micro_batch` rows each; the rows are a multiple of it.

  All have the table of `masks` whole, so that they are equal in shape.
  """
  lessons = []
  for part in _parts(len(rows.token), micro_batch):
    fields = {
      field.name: getattr(rows, field.name)[part]
      for field in dataclasses.fields(rows)
    }
    if masks is not None:
      fields |= {"allowed": masks.allowed_RT[part], "mask_MX": masks.mask_MX}
    lessons.append(TrainBatch(Batch(**fields), advantage_RT[part]))
  return lessons


def add_fields(
  lessons: Sequence[TrainBatch], fields: Mapping[str, np.ndarray]
) -> list[TrainBatch]:
  """The lessons with arrays [R, T] of the whole batch, cut to their rows."""
  size = len(lessons[0].advantage)
  return [
    dataclasses.replace(
      lesson, **{name: x_RT[part] for name, x_RT in fields.items()}
    )
    for lesson, part in zip(
      lessons, _parts(size * len(lessons), size), strict=True
    )
  ]


def _parts(num_rows: int, size: int) -> list[slice]:
  return [slice(start, start + size) for start in range(0, num_rows, size)]
