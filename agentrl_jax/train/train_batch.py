"""Packed rows into the micro-batches of one update.

A row is in one micro-batch whole. What was computed over the whole batch is cut
along with it, so the cut changes nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from agentrl_jax.data.answer_masks import AnswerMasks
from agentrl_jax.data.batch import Batch
from agentrl_jax.data.packing import Rows
from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding

Array = jax.Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
  """A packed batch and what its tokens are worth.

  Arrays are float32 [..., B, T]; what the config has no use for is None.
  """

  batch: Batch
  advantage: Array  # 0 off the mask
  reference_logprob: Array | None = None
  proximal_logprob: Array | None = None
  weight: Array | None = None  # of the token in the loss
  token_weight: Array | None = None  # that its surrogate is multiplied by
  old_value: Array | None = None  # the critic's, before the update
  value_target: Array | None = None
  value_mask: Array | None = None  # bool, where the critic is fitted
  task: Array | None = None  # int32, the number of the token's task
  version: Array | None = None  # int32, as `answer_versions` has it
  # [], this micro-batch's share of the weight of sequences that count in the
  # mean and are not packed, since they add 0 to its total.
  left_out: Array | None = None


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


def batch_shardings(mesh: Mesh) -> TrainBatch:
  """Of each field: rows split as `sharding.BATCH_SPEC` says, the rest whole.

  A prefix of the tree that a lesson is, whichever of its fields it has.
  """
  rows = sharding.batch_sharding(mesh)
  of_batch = {field.name: rows for field in dataclasses.fields(Batch)}
  whole = sharding.replicated(mesh)
  of_batch["mask_MX"] = whole
  fields = {field.name: rows for field in dataclasses.fields(TrainBatch)}
  return TrainBatch(**fields | {"batch": Batch(**of_batch), "left_out": whole})


def on_mesh(lesson: TrainBatch, mesh: Mesh | None) -> TrainBatch:
  """Its arrays on the devices, as `batch_shardings` says.

  What is on devices already stays as it is; without a mesh everything does.
  """
  if mesh is None:
    return lesson
  where = jax.tree.broadcast(batch_shardings(mesh), lesson)
  return jax.tree.map(_place, lesson, where)


def whole_on_mesh(
  array: np.ndarray, mesh: Mesh | None
) -> np.ndarray | jax.Array:
  """What all lessons share, on every device once; without a mesh as it is."""
  if mesh is None:
    return array
  return _place(array, sharding.replicated(mesh))


def _place(x: np.ndarray | jax.Array, where: NamedSharding) -> jax.Array:
  if isinstance(x, jax.Array):
    return x
  return jax.make_array_from_callback(x.shape, where, lambda part: x[part])
