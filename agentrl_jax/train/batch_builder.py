"""Builds micro-batches from groups: advantages, packing, log-probabilities.

Advantages are computed over the whole batch, from the other trajectories of
the group or from a critic, and normalised by task. Packing and cutting come
afterwards, so the cut changes nothing. Log-probabilities of other policies
than the trained one are computed with the params before the update.

Axes: N trajectories, U turns, R rows of the whole batch, B rows of a
micro-batch, T tokens, K trajectories that are left out of the computation.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.compared import (
  Compared,
  compared_parts,
  require_roles,
)
from agentrl_jax.data.grammar.answer_masks import AnswerMasks, answer_masks
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.packing import Rows, pack
from agentrl_jax.data.records import Group, Trajectory
from agentrl_jax.errors import NotFinite
from agentrl_jax.losses import TaskMoments
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.advantages import (
  TrajectoryArrays,
  advantages,
  counted_trajectories,
  critic_advantages,
  make_arrays,
  pad_rows,
  place_rewards,
  require_finite,
)
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.config.layout import Layout
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.critic.informed import (
  Encode,
  carried_over,
  for_critic,
  informed,
)
from agentrl_jax.train.custom_trial import try_advantage
from agentrl_jax.train.learned_turns import LearnedTurns
from agentrl_jax.train.metrics import answer_versions
from agentrl_jax.train.objective import (
  reward_kl_estimator,
  sequences_of,
  token_inputs,
)
from agentrl_jax.train.token_logprobs import (
  hidden_states,
  token_logprobs,
  token_values,
)
from agentrl_jax.train.train_batch import (
  BatchConfig,
  TrainBatch,
  add_fields,
  cut,
  on_mesh,
  replicate_on_mesh,
)
from agentrl_jax.train.weights.reference import Reference

Report = dict[str, float]
_POLICY_INPUTS = {"policy_logprob_BT", "entropy_BT"}


@dataclasses.dataclass(frozen=True)
class _LeftOut:
  """Trajectories that count in the mean and are not computed."""

  task_K: np.ndarray  # int
  num_tokens_K: np.ndarray  # int, trained on

  def rows(self, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Lays out the tokens in rows; returns their tasks and a mask."""
    task_X = np.repeat(self.task_K, self.num_tokens_K)
    num_rows = -(-len(task_X) // row_length)
    missing = num_rows * row_length - len(task_X)
    shape = (num_rows, row_length)
    mask_X = np.ones(len(task_X), bool)
    return (
      np.pad(task_X, (0, missing)).reshape(shape),
      np.pad(mask_X, (0, missing)).reshape(shape),
    )


_NONE_LEFT_OUT = _LeftOut(np.array([], int), np.array([], int))


class BatchBuilder:
  """Makes micro-batches of groups; keeps the running statistics of tasks."""

  def __init__(
    self,
    policy: Policy,
    *,
    loss: LossConfig,
    advantage: AdvantageConfig,
    batch: BatchConfig,
    task_ids: Mapping[str, int],
    temperature: float,
    reference: Reference | None = None,
    make_grammars: Callable[[], Grammars] | None = None,
    encode: Encode | None = None,
  ):
    """The KL term pulls towards `reference`.

    `make_grammars` is called once, for the first answers that had to follow a
    grammar. `encode` makes tokens of what an informed critic reads.
    """
    if loss.kl_coefficient and reference is None:
      raise ValueError(
        f"loss.kl_coefficient={loss.kl_coefficient} pulls towards a reference, "
        "and none was given: pass one, or set the coefficient to 0"
      )
    try_advantage(advantage)
    self._loss, self._advantage, self._batch = loss, advantage, batch
    self._present = batch  # with the layout of the batch that is being built
    self._task_ids, self._reference = task_ids, reference
    self._make_grammars = make_grammars
    self._encode = encode
    self._token_weights = _TokenWeights(policy, loss, temperature=temperature)
    self.learned_turns = LearnedTurns()  # of the batch that was built last
    self._has_seen_roles = False
    self._running = (
      losses.unseen_tasks(len(task_ids)) if advantage.task_decay else None
    )

    def logprobs(params: Params, micro_batch: TrainBatch) -> jax.Array:
      return token_logprobs(
        policy,
        params,
        micro_batch.batch,
        temperature=temperature,
        **loss.tiles,
      )[0]

    def costs(params: Params, micro_batch: TrainBatch) -> jax.Array:
      batch = micro_batch.batch
      log_ratio_BT = losses.log_ratio(
        batch.behavior_logprob, logprobs(params, micro_batch), batch.mask
      )
      return -losses.kl_penalised_reward(
        jnp.zeros(batch.mask.shape),
        log_ratio_BT,
        batch.mask,
        coefficient=loss.kl_coefficient,
        estimator=reward_kl_estimator(loss, batch.mask),
      )

    def values(params: Params, micro_batch: TrainBatch) -> jax.Array:
      hidden_BTD = hidden_states(policy, params, micro_batch.batch)
      return token_values(policy, params, micro_batch.batch, hidden_BTD)

    self._mesh = policy.mesh
    # Arrays that the host reads are replicated, so every process has them all.
    replicated = self._mesh and sharding.replicated(self._mesh)
    options = policy.compiler_options
    self._logprobs = jax.jit(logprobs, compiler_options=options)
    self._costs = jax.jit(
      costs, out_shardings=replicated, compiler_options=options
    )
    self._values = jax.jit(
      values, out_shardings=replicated, compiler_options=options
    )

  def longest_line(self, groups: Sequence[Group]) -> int:
    """Returns the tokens of the longest line that is trained on."""
    parts = _parts_of(self._compare(groups))
    return max(
      (line.num_tokens for t in self._informed(parts) for line in t.lines),
      default=0,
    )

  def build(
    self, groups: Sequence[Group], params: Params, layout: Layout | None = None
  ) -> tuple[list[TrainBatch], Report]:
    """Returns the micro-batches of one update and statistics of the packing.

    Their shape is that of `layout`, by default that of the config; the mesh is
    the policy's.

    The loss is a mean over the trajectories that `advantage.keep` keeps, and
    over no others. Of these, trajectories of advantage 0 are not computed where
    the advantage alone would give them a gradient: their weight stays in the
    denominator, so loss and gradient are the same as if they were computed.
    The list is empty if no trajectory is kept: then no update is made.
    """
    self._present = self._batch
    if layout is not None:
      self._present = dataclasses.replace(
        self._batch,
        row_length=layout.row_length,
        micro_batch=layout.micro_batch,
      )
    compared = self._compare(groups)
    parts, of_critic = _parts_of(compared), []
    arrays = make_arrays(
      compared.groups,
      self._task_ids,
      self._advantage,
      self._penalties(parts),
    )
    self.learned_turns = LearnedTurns()
    if self._advantage.uses_critic:
      micro_batches, of_critic, report = self._with_critic(
        compared, parts, arrays, params
      )
    else:
      micro_batches, report = self._without_critic(compared, parts, arrays)
    played = [t for group in groups for t in group.trajectories]
    report["batch/trajectories"] = float(len(played))
    report["batch/turns"] = float(sum(len(t.turns) for t in played))
    report["batch/lines"] = float(sum(len(t.lines) for t in played))
    report["batch/row_length"] = float(self._present.row_length)
    micro_batches = self._add_logprobs(micro_batches, params)
    return [*micro_batches, *of_critic], report

  def snapshot(self) -> dict[str, Any]:
    """Returns the state that a resumed run needs, as JSON values."""
    if self._running is None:
      return {}
    return {
      name: np.asarray(x).tolist()
      for name, x in dataclasses.asdict(self._running).items()
    }

  def restore(self, snapshot: Mapping[str, Any]) -> None:
    """Continues from a `snapshot`; an empty one starts afresh."""
    if self._running is not None and snapshot:
      self._running = TaskMoments(
        **{name: np.asarray(x) for name, x in snapshot.items()}
      )

  def _compare(self, groups: Sequence[Group]) -> Compared:
    """Returns the parts that are trained on.

    A critic compares nothing, and each line is a sequence of its own, that ends
    with the episode's reward.
    """
    roles, advantage = self._batch.roles, self._advantage
    compare = "lines" if advantage.uses_critic else advantage.compare
    if roles and not self._has_seen_roles:
      require_roles(roles, groups)
      self._has_seen_roles = True
    return compared_parts(groups, compare=compare, roles=roles)

  def _without_critic(
    self,
    compared: Compared,
    trajectories: Sequence[Trajectory],
    arrays: TrajectoryArrays,
  ) -> tuple[list[TrainBatch], Report]:
    value_NU, self._running = advantages(
      arrays,
      num_tasks=len(self._task_ids),
      config=self._advantage,
      running=self._running,
    )
    require_finite(value_NU, self._advantage)
    has_signal_N = value_NU.any(axis=1)
    counted_N = counted_trajectories(arrays, config=self._advantage)
    report = {
      "batch/trajectories_with_signal": float(has_signal_N.sum()),
      "batch/trained_tokens": 0.0,
      "batch/left_out_tokens": 0.0,
    }
    if not counted_N.any():
      return [], report
    chosen, rest = self._choose(arrays, counted_N, has_signal_N)
    packed = [trajectories[n] for n in chosen]
    rows = self._pack(packed, report)
    value_RT = value_NU[chosen][rows.trajectory, rows.turn]
    task_RT = arrays.task_N[chosen][rows.trajectory]
    num_tokens_N = arrays.num_tokens_NU.sum(axis=1)
    left_out = _LeftOut(arrays.task_N[rest], num_tokens_N[rest])
    report["batch/left_out_tokens"] = float(left_out.num_tokens_K.sum())
    report["batch/trained_tokens"] += report["batch/left_out_tokens"]
    micro_batches = self._cut(rows, value_RT, task_RT, packed, left_out)
    self.learned_turns = LearnedTurns(compared, packed, micro_batches)
    return micro_batches, report

  def _choose(
    self,
    arrays: TrajectoryArrays,
    counted_N: np.ndarray,
    has_signal_N: np.ndarray,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Selects the trajectories to compute, and those that only weigh.

    At least one is computed, so that every batch that counts makes an update:
    the optimizer's momentum moves the params also where the gradient is 0.
    """
    if not self._loss.needs_advantage:
      return np.flatnonzero(counted_N), np.array([], int)
    computed_N = counted_N & has_signal_N
    if not computed_N.any():
      num_tokens_N = arrays.num_tokens_NU.sum(axis=1)
      shortest = np.where(counted_N, num_tokens_N, np.inf).argmin()
      computed_N[shortest] = True
    return np.flatnonzero(computed_N), np.flatnonzero(counted_N & ~computed_N)

  def _with_critic(
    self,
    compared: Compared,
    trajectories: Sequence[Trajectory],
    arrays: TrajectoryArrays,
    params: Params,
  ) -> tuple[list[TrainBatch], list[TrainBatch], Report]:
    """Returns micro-batches, those of an informed critic alone, and report."""
    report: Report = {"batch/left_out_tokens": 0.0}
    read = self._informed(trajectories)
    rows = self._pack(read, report)
    task_RT = arrays.task_N[rows.trajectory]
    micro_batches = self._cut(rows, np.zeros(rows.mask.shape), task_RT, read)
    value_RT = np.concatenate(
      [self._values(params, on_mesh(x, self._mesh)) for x in micro_batches]
    )
    fields, self._running = critic_advantages(
      rows,
      place_rewards(rows, arrays.turn_reward_NU),
      value_RT,
      task_RT,
      num_tasks=len(self._task_ids),
      config=self._advantage,
      running=self._running,
    )
    of_critic: list[TrainBatch] = []
    if self._advantage.informs_critic:
      of_critic = for_critic(micro_batches, fields)
      seen = self._pack(trajectories, report)
      micro_batches = self._cut(
        seen,
        carried_over(fields["advantage"], rows, seen),
        arrays.task_N[seen.trajectory],
        trajectories,
      )
    else:
      micro_batches = add_fields(micro_batches, fields)
    self.learned_turns = LearnedTurns(compared, trajectories, micro_batches)
    return micro_batches, of_critic, report

  def _informed(
    self, trajectories: Sequence[Trajectory]
  ) -> Sequence[Trajectory]:
    """Returns the trajectories as the critic, if there is one, reads them."""
    if not self._advantage.informs_critic:
      return trajectories
    assert self._encode is not None
    return informed(trajectories, self._encode)

  def _pack(self, trajectories: Sequence[Trajectory], report: Report) -> Rows:
    rows = pack(
      trajectories,
      row_length=self._present.row_length,
      rows_multiple=self._present.micro_batch,
      sharing=self._present.sharing,
    )
    report["batch/fill"] = rows.fill
    report["batch/shared"] = 1 - rows.num_computed / max(rows.num_tokens, 1)
    report["batch/trained_tokens"] = float(rows.mask.sum())
    return rows

  def _cut(
    self,
    rows: Rows,
    value_RT: np.ndarray,
    task_RT: np.ndarray,
    packed: Sequence[Trajectory],
    left_out: _LeftOut = _NONE_LEFT_OUT,
  ) -> list[TrainBatch]:
    advantage_RT = np.where(rows.mask, value_RT, 0).astype(np.float32)
    micro_batches = cut(
      rows, advantage_RT, self._present.micro_batch, self._masks(rows, packed)
    )
    version_NU = answer_versions(packed)
    fields = {
      "task": task_RT.astype(np.int32),
      "version": version_NU[rows.trajectory, rows.turn],
    }
    if self._loss.task_share != "tokens":
      fields["weight"], weight = self._weights(task_RT, rows.mask, left_out)
    elif self._loss.reduction == "token_mean":
      weight = float(left_out.num_tokens_K.sum())
    else:  # a mean over trajectories
      weight = float(len(left_out.num_tokens_K))
      if self._loss.reduction == "sequence_mean" and _have_lines(packed):
        fields["weight"] = _one_for_each(rows)
    micro_batches = add_fields(micro_batches, fields)
    # Equal shares, so that each of several updates of a batch has its own.
    shares = [weight / len(micro_batches)] * len(micro_batches)
    corrects = self._loss.sums_sequences and _have_lines(packed)
    if corrects:
      further = [_further_lines(x, packed) for x in micro_batches]
      shares = [a - b for a, b in zip(shares, further, strict=True)]
    if not self._loss.needs_advantage and not corrects:
      return micro_batches
    return [
      dataclasses.replace(x, left_out=np.asarray(share, np.float32))
      for x, share in zip(micro_batches, shares, strict=True)
    ]

  def _masks(
    self, rows: Rows, packed: Sequence[Trajectory]
  ) -> AnswerMasks | None:
    """Collects the grammars' masks; the table is copied to devices once."""
    masks = answer_masks(rows, packed, self._make_grammars)
    return masks and dataclasses.replace(
      masks, mask_MX=replicate_on_mesh(masks.mask_MX, self._mesh)
    )

  def _weights(
    self, task_RT: np.ndarray, mask_RT: np.ndarray, left_out: _LeftOut
  ) -> tuple[np.ndarray, float]:
    """Weights of the packed tokens, and the sum of those left out."""
    other_task_XT, other_mask_XT = left_out.rows(mask_RT.shape[1])
    weight_RT = np.asarray(
      losses.task_weights(
        pad_rows(np.concatenate([task_RT, other_task_XT])),
        pad_rows(np.concatenate([mask_RT, other_mask_XT])),
        num_tasks=len(self._task_ids),
      )
    )
    num_rows = len(mask_RT)
    return weight_RT[:num_rows], float(weight_RT[num_rows:].sum())

  def _penalties(self, trajectories: Sequence[Trajectory]) -> np.ndarray | None:
    """Computes the KL penalty of each turn, if rewards include it."""
    if self._loss.kl_place != "reward":
      return None
    rows = self._pack(trajectories, {})
    micro_batches = cut(
      rows,
      np.zeros(rows.mask.shape),
      self._present.micro_batch,
      self._masks(rows, trajectories),
    )
    assert self._reference is not None  # loss.kl_coefficient needs one
    params = self._reference.fetch()
    cost_RT = np.concatenate(
      [self._costs(params, on_mesh(x, self._mesh)) for x in micro_batches]
    )
    num_turns = max(len(t.turns) for t in trajectories)
    cost_NU = np.zeros((len(trajectories), num_turns))
    index = (rows.trajectory[rows.mask], rows.turn[rows.mask])
    np.add.at(cost_NU, index, cost_RT[rows.mask])
    return cost_NU

  def _add_logprobs(
    self, micro_batches: Sequence[TrainBatch], params: Params
  ) -> list[TrainBatch]:
    """Adds token weights and the log-probabilities that the loss reads."""
    micro_batches = self._token_weights.add(micro_batches, params)
    policies = {}
    if self._reference is not None and self._loss.kl_place == "loss":
      policies["reference_logprob"] = self._reference.fetch()
    if self._loss.proximal == "recomputed":
      policies["proximal_logprob"] = params

    def complete(micro_batch: TrainBatch) -> TrainBatch:
      micro_batch = on_mesh(micro_batch, self._mesh)
      fields = {
        name: self._logprobs(policy_params, micro_batch)
        for name, policy_params in policies.items()
      }
      return dataclasses.replace(micro_batch, **fields)

    return [complete(micro_batch) for micro_batch in micro_batches]


def _parts_of(compared: Compared) -> list[Trajectory]:
  return [t for group in compared.groups for t in group.trajectories]


def _have_lines(packed: Sequence[Trajectory]) -> bool:
  """Returns true if a trajectory has several lines of tokens."""
  return any(len(t.lines) > 1 for t in packed)


def _one_for_each(rows: Rows) -> np.ndarray:
  """Returns weights [R, T] that add up to 1 over each trajectory's tokens."""
  num_tokens_N = np.bincount(
    rows.trajectory[rows.mask], minlength=rows.trajectory.max() + 1
  )
  weight_RT = 1 / np.maximum(num_tokens_N, 1)[rows.trajectory]
  return np.where(rows.mask, weight_RT, 0).astype(np.float32)


def _further_lines(
  micro_batch: TrainBatch, packed: Sequence[Trajectory]
) -> float:
  """Returns by how much the lines count more than their trajectories.

  Sums over sequences count each line as one; here a trajectory is to count as
  one, in equal parts at its lines.
  """
  batch = micro_batch.batch
  num_lines_N = np.array([len(t.lines) for t in packed])
  begins_BT = (np.asarray(batch.position) == 0) & (
    np.asarray(batch.segment) > 0
  )
  lines_X = num_lines_N[np.asarray(batch.trajectory)[begins_BT]]
  return float(np.sum(1 - 1 / lines_X))


class _TokenWeights:
  """Adds `loss.token_weight` to the micro-batches of a batch, if it is set.

  A quantile, a rank or a mean over tokens must not depend on the cut of the
  batch into micro-batches. So the weights are computed once per batch over all
  its rows, with the params before the update. arXiv:2506.01939 for example
  trains on the fifth of the batch's tokens that have the highest entropy.
  """

  def __init__(self, policy: Policy, loss: LossConfig, *, temperature: float):
    self._function = function = loss.custom_function("token_weight")
    self._mesh = policy.mesh
    if function is None:
      return

    def measure(
      params: Params, micro_batch: TrainBatch
    ) -> tuple[jax.Array, jax.Array]:
      return token_logprobs(
        policy, params, micro_batch.batch, temperature=temperature, **loss.tiles
      )

    def weigh(inputs: dict[str, jax.Array], num_segments: int) -> jax.Array:
      weight_RT = function(inputs | {"num_segments": num_segments})
      input_RT = next(iter(inputs.values()))
      return function.require_shape(weight_RT, input_RT.shape)

    # Arrays that the host reads are replicated, so every process has them all.
    replicated = self._mesh and sharding.replicated(self._mesh)
    self._measure = jax.jit(measure, out_shardings=replicated)
    self._weigh = jax.jit(weigh, static_argnames="num_segments")

  def add(
    self, micro_batches: Sequence[TrainBatch], params: Params
  ) -> Sequence[TrainBatch]:
    """Sets `token_weight` of the micro-batches, which are on the host.

    Raises `NotFinite` if the weight of a trained token is NaN or infinite.
    """
    function = self._function
    if function is None or not micro_batches:
      return micro_batches
    parts = [self._inputs(x, params) for x in micro_batches]
    inputs = {
      name: np.concatenate([part[name] for part in parts])
      for name in sorted(function.reads - {"num_segments"})
    }
    mask_RT = np.concatenate([x.batch.mask for x in micro_batches])
    weight_RT = self._weigh(
      {name: pad_rows(x) for name, x in inputs.items()},
      num_segments=sequences_of(micro_batches[0].batch)["num_segments"],
    )
    weight_RT = np.asarray(weight_RT, np.float32)[: len(mask_RT)]
    weight_RT = np.where(mask_RT, weight_RT, 0)
    if not np.isfinite(weight_RT).all():
      raise NotFinite(
        f"{function.key}={function.target!r} gave "
        f"{np.sum(~np.isfinite(weight_RT))} of {mask_RT.sum()} tokens a weight "
        "that is NaN or infinite; no update was made of this batch"
      )
    return add_fields(micro_batches, {"token_weight": weight_RT})

  def _inputs(self, micro_batch: TrainBatch, params: Params) -> dict[str, Any]:
    assert self._function is not None
    inputs = {"advantage_BT": micro_batch.advantage}
    inputs |= token_inputs(
      micro_batch.batch, micro_batch.task, micro_batch.version
    )
    if self._function.reads & _POLICY_INPUTS:
      measured = self._measure(params, on_mesh(micro_batch, self._mesh))
      inputs["policy_logprob_BT"], inputs["entropy_BT"] = measured
    return inputs
