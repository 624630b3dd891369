"""Micro-batches of an update: their fields, the cut, their place on a mesh.

Every learner process holds the whole batch, since advantages are computed over
all of it. A row belongs to one micro-batch, and each device gets its own rows.

The loss is a mean over all trajectories that count, also those that are not
computed, since their advantage is 0 and adds nothing to the total: their weight
is `left_out` of the micro-batches.

Axes: N trajectories, R rows of the whole batch, T tokens, P micro-batches.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.data.grammar.answer_masks import AnswerMasks, answer_masks
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.packing import (
  ExpertsKind,
  Rows,
  allowed_nodes,
  expert_nodes,
  pack,
)
from agentrl_jax.data.records import Trajectory, Turn
from agentrl_jax.keys import Section, key
from agentrl_jax.model import sharding
from agentrl_jax.train.advantages import Rated, pad_rows
from agentrl_jax.train.config.loss import LossConfig

Array = jax.Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
  """A packed batch with the advantages of its tokens.

  Arrays are float32 [..., B, T]; fields that the config does not use are None.
  """

  batch: Batch
  advantage: Array  # 0 off the mask
  reference_logprob: Array | None = None
  reference_hidden: Array | None = None  # its hidden states, [..., B, T, E]
  reference_output: Array | None = None  # its output matrix, [E, V]
  proximal_logprob: Array | None = None
  weight: Array | None = None  # of the token in the loss
  token_weight: Array | None = None  # its surrogate is multiplied by it
  old_value: Array | None = None  # the critic's, before the update
  value_target: Array | None = None
  value_mask: Array | None = None  # bool, tokens that the critic is fitted to
  task: Array | None = None  # int32, the number of the token's task
  version: Array | None = None  # int32, from `answer_versions`
  # [], this micro-batch's share of the weight of sequences that count in the
  # mean and are not packed, since they add 0 to its total.
  left_out: Array | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchConfig(Section, section="train"):
  """Shapes of a batch, from the `train` section of the config."""

  row_length: int = key(8192, "tokens of a packed row", at_least=1)
  micro_batch: int = key(2, "rows per forward pass", at_least=1)
  sharing: int = key(
    8,
    "largest number of its tokens that a row stands for, as a multiple of its "
    "length: tokens that trajectories share are computed once. 1 computes "
    "each trajectory by itself",
    at_least=1,
  )
  roles: tuple[str, ...] = key(
    (),
    "roles of the agents of an episode whose answers are trained on, () for "
    "all. The others answer with the same policy",
  )


@dataclasses.dataclass(frozen=True)
class Packed:
  """All rows of a batch on the host, and the weights of what is left out."""

  rows: Rows
  whole: TrainBatch
  left_out_P: list[float] | None
  metrics: dict[str, float]


def pack_rated(
  rated: Rated,
  loss: LossConfig,
  pack_batch: Callable[[Sequence[Trajectory]], tuple[Rows, TrainBatch]],
  *,
  num_tasks: int,
  micro_batch: int,
) -> Packed:
  """Packs trajectories with their advantages, tasks, versions and weights."""
  rows, whole = pack_batch(rated.trajectories)
  value_RT = rated.value_NU[rows.trajectory, rows.turn]
  weight_RT, left_out_P = token_shares(
    rows, rated, loss, num_tasks=num_tasks, micro_batch=micro_batch
  )
  version_NU = answer_versions(rated.trajectories)
  whole = dataclasses.replace(
    whole,
    advantage=np.where(rows.mask, value_RT, 0).astype(np.float32),
    task=rated.task_N[rows.trajectory].astype(np.int32),
    version=version_NU[rows.trajectory, rows.turn],
    weight=weight_RT,
  )
  return Packed(rows, whole, left_out_P, rows.metrics())


def pack_batch(
  trajectories: Sequence[Trajectory],
  shape: BatchConfig,
  *,
  experts: ExpertsKind | None,
  make_grammars: Callable[[], Grammars] | None,
  mesh: Mesh | None,
) -> tuple[Rows, TrainBatch]:
  """Packs trajectories, with what their grammars allowed; no advantages."""
  rows = pack(
    trajectories,
    row_length=shape.row_length,
    rows_multiple=shape.micro_batch,
    sharing=shape.sharing,
    experts=experts,
  )
  masks = grammar_masks(rows, trajectories, make_grammars, mesh)
  return rows, whole_batch(rows, np.zeros(rows.mask.shape, np.float32), masks)


def whole_batch(
  rows: Rows, advantage_RT: np.ndarray, masks: AnswerMasks | None = None
) -> TrainBatch:
  """Returns all rows as one batch on the host."""
  fields, mask_MX = {k: x for k, x in vars(rows).items() if x is not None}, None
  if masks is not None:
    fields["allowed"], mask_MX = masks.allowed_RT, masks.mask_MX
  if masks is not None and rows.tree is not None:
    allowed_RT = allowed_nodes(rows.tree, rows.mask, masks.allowed_RT)
    fields["tree"] = dataclasses.replace(rows.tree, allowed=allowed_RT)
  if rows.tree is not None and rows.experts is not None:
    experts = expert_nodes(rows.tree, fields.pop("experts"))
    fields["tree"] = dataclasses.replace(fields["tree"], experts=experts)
  return TrainBatch(Batch(**fields, mask_MX=mask_MX), advantage_RT)


def cut(
  whole: TrainBatch, size: int, left_out: Sequence[float] | None = None
) -> list[TrainBatch]:
  """Cuts rows, a multiple of `size`, into micro-batches of so many.

  Each holds the whole table of masks, so that all have equal shapes, and one of
  the weights `left_out`.
  """
  mask_MX = whole.batch.mask_MX
  batch = dataclasses.replace(whole.batch, mask_MX=None)
  apart = dataclasses.replace(whole, batch=batch)

  def micro_batch(number: int) -> TrainBatch:
    rows = slice(number * size, (number + 1) * size)
    part: TrainBatch = jax.tree.map(lambda x: x[rows], apart)
    batch = dataclasses.replace(part.batch, mask_MX=mask_MX)
    share = (
      None if left_out is None else np.asarray(left_out[number], np.float32)
    )
    return dataclasses.replace(part, batch=batch, left_out=share)

  return [micro_batch(number) for number in range(len(batch.token) // size)]


def token_shares(
  rows: Rows,
  rated: Rated,
  loss: LossConfig,
  *,
  num_tasks: int,
  micro_batch: int,
) -> tuple[np.ndarray | None, list[float] | None]:
  """Returns the weight of each token, and `left_out` of each micro-batch.

  Weights [R, T] are None where the reduction needs none.
  """
  weight_RT = None
  # A trajectory's lines may be in several rows.
  in_lines = any(len(t.lines) > 1 for t in rated.trajectories)
  if loss.task_share != "tokens":
    weight_RT, left_out = _task_weights(rows, rated, num_tasks=num_tasks)
  elif loss.reduction == "token_mean":
    left_out = float(rated.left_tokens_K.sum())
  else:  # a mean over trajectories
    left_out = float(len(rated.left_tokens_K))
    if loss.reduction == "sequence_mean" and in_lines:
      weight_RT = one_for_each(rows)
  corrects = loss.sums_sequences and in_lines
  if not loss.needs_advantage and not corrects:
    return weight_RT, None
  starts = range(0, len(rows.token), micro_batch)
  # Equal shares, so that each of several updates of a batch has its own.
  shares_P = [left_out / len(starts)] * len(starts)
  if corrects:
    further_P = (
      further_lines(rows, slice(start, start + micro_batch), rated)
      for start in starts
    )
    shares_P = [a - b for a, b in zip(shares_P, further_P, strict=True)]
  return weight_RT, shares_P


def one_for_each(rows: Rows) -> np.ndarray:
  """Returns weights [R, T] that add up to 1 over each trajectory's tokens."""
  num_tokens_N = np.bincount(
    rows.trajectory[rows.mask], minlength=rows.trajectory.max() + 1
  )
  weight_RT = 1 / np.maximum(num_tokens_N, 1)[rows.trajectory]
  return np.where(rows.mask, weight_RT, 0).astype(np.float32)


def further_lines(rows: Rows, part: slice, rated: Rated) -> float:
  """Returns by how much lines of these rows exceed their trajectories.

  Sums over sequences count each line as one; here a trajectory is to count as
  one, in equal parts at its lines.
  """
  num_lines_N = np.array([len(t.lines) for t in rated.trajectories])
  begins_BT = (rows.position[part] == 0) & (rows.segment[part] > 0)
  lines_X = num_lines_N[rows.trajectory[part][begins_BT]]
  return float(np.sum(1 - 1 / lines_X))


def _task_weights(
  rows: Rows, rated: Rated, *, num_tasks: int
) -> tuple[np.ndarray, float]:
  """Weights of the packed tokens, and the sum of those left out."""
  num_rows, row_length = rows.mask.shape
  # The tokens that are left out, in rows of their own.
  task_X = np.repeat(rated.left_task_K, rated.left_tokens_K)
  missing = -len(task_X) % row_length
  mask_X = np.pad(np.ones(len(task_X), bool), (0, missing))
  task_X = np.pad(task_X, (0, missing))

  def joined(x_RT: np.ndarray, other_X: np.ndarray) -> np.ndarray:
    other_RT = other_X.reshape(-1, row_length)
    return pad_rows(np.concatenate([x_RT, other_RT]))

  weight_RT = np.asarray(
    losses.task_weights(
      joined(rated.task_N[rows.trajectory], task_X),
      joined(rows.mask, mask_X),
      num_tasks=num_tasks,
    )
  )
  return weight_RT[:num_rows], float(weight_RT[num_rows:].sum())


def answer_versions(trajectories: Sequence[Trajectory]) -> np.ndarray:
  """Returns the version that sampled each answer, int32 [N, U]; -1 if several.

  If weights are replaced while an answer is sampled, it goes on with the keys
  and values that older weights computed. The learner has no such policy, so
  the answer cannot be compared.
  """
  num_turns = max((len(t.turns) for t in trajectories), default=0)
  version_NU = np.full((len(trajectories), num_turns), -1, np.int32)
  for n, trajectory in enumerate(trajectories):
    for u, turn in enumerate(trajectory.turns):
      version_NU[n, u] = _version(turn)
  return version_NU


def _version(turn: Turn) -> int:
  versions = set(turn.version.tolist())
  return versions.pop() if len(versions) == 1 else -1


def self_routed(micro_batch: TrainBatch) -> TrainBatch:
  """Leaves out experts: they are of the policy, and no other model's."""
  batch = dataclasses.replace(micro_batch.batch, experts=None)
  if batch.tree is not None:
    tree = dataclasses.replace(batch.tree, experts=None)
    batch = dataclasses.replace(batch, tree=tree)
  return dataclasses.replace(micro_batch, batch=batch)


@functools.cache
def batch_shardings(mesh: Mesh) -> TrainBatch:
  """Shardings of each field: rows split by `sharding.BATCH_SPEC`.

  The mask table and the weight of what is left out are replicated. The result
  is a prefix of the tree of a `TrainBatch`, whichever fields are None.
  """
  rows = sharding.batch_sharding(mesh)
  replicated = sharding.replicated(mesh)
  batch_fields = {field.name: rows for field in dataclasses.fields(Batch)}
  batch_fields["mask_MX"] = replicated
  fields = {field.name: rows for field in dataclasses.fields(TrainBatch)}
  fields |= {"batch": Batch(**batch_fields), "left_out": replicated}
  fields["reference_output"] = NamedSharding(
    mesh, sharding.spec("width", "vocab")
  )
  return TrainBatch(**fields)


def on_mesh(micro_batch: TrainBatch, mesh: Mesh | None) -> TrainBatch:
  """Copies host arrays to the devices, as `batch_shardings` says.

  Arrays that are on devices already stay there; without a mesh all stay.
  """
  if mesh is None:
    return micro_batch
  shardings = jax.tree.broadcast(batch_shardings(mesh), micro_batch)
  return jax.tree.map(_place, micro_batch, shardings)


def grammar_masks(
  rows: Rows,
  trajectories: Sequence[Trajectory],
  make_grammars: Callable[[], Grammars] | None,
  mesh: Mesh | None,
) -> AnswerMasks | None:
  """Returns the masks of the trajectories' grammars; None without a grammar.

  The table, which all micro-batches share, is copied to every device once.
  """
  if not any(turn.grammar for t in trajectories for turn in t.turns):
    return None
  masks = answer_masks(rows, trajectories, make_grammars)
  if mesh is None:
    return masks
  table = _place(masks.mask_MX, sharding.replicated(mesh))
  return dataclasses.replace(masks, mask_MX=table)


def _place(x: Array, where: NamedSharding) -> jax.Array:
  if isinstance(x, jax.Array):
    return x
  return jax.make_array_from_callback(x.shape, where, lambda part: x[part])
