"""Builds micro-batches from groups: advantages, packing, log-probabilities.

Each step hands the batch on: groups, the trajectories that are compared, their
advantages, rows, and micro-batches with the weights of their tokens.

Advantages are computed over the whole batch, from the other trajectories of the
group or from a critic, and normalised by task. Packing and cutting come
afterwards, so the cut changes nothing. Log-probabilities of other policies than
the trained one are computed with the params before the update.

Axes: N trajectories, U turns, R rows of the whole batch, B rows of a
micro-batch, T tokens, K trajectories that are left out of the computation.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.packing import ExpertsKind, Rows, pack
from agentrl_jax.data.records import Group, Trajectory
from agentrl_jax.errors import NotFinite
from agentrl_jax.losses import TaskMoments
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.advantages import (
  TrajectoryArrays,
  advantages_and_moments,
  counted_trajectories,
  make_arrays,
  moment_numbers,
  pad_rows,
  require_finite,
)
from agentrl_jax.train.compared import (
  Compared,
  LearnedTurns,
  compared_parts,
  require_roles,
)
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.config.layout import Layout
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.critic import (
  Encode,
  carried_over,
  critic_advantages,
  for_critic,
  informed,
  place_rewards,
)
from agentrl_jax.train.custom_trial import try_advantage
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
  further_lines,
  grammar_masks,
  on_mesh,
  one_for_each,
  self_routed,
)
from agentrl_jax.train.weights.reference import Reference

Report = dict[str, float]
_POLICY_INPUTS = {"policy_logprob_BT", "entropy_BT"}


@dataclasses.dataclass(frozen=True)
class _Rated:
  """Trajectories to compute, with advantages, and those that only weigh."""

  trajectories: Sequence[Trajectory]
  value_NU: np.ndarray  # advantages
  task_N: np.ndarray
  left_task_K: np.ndarray  # int
  left_tokens_K: np.ndarray  # int, trained on


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
    self._task_ids, self._reference = task_ids, reference
    self._encode = encode
    self._grammar_masks = partial(
      grammar_masks, make_grammars=make_grammars, mesh=policy.mesh
    )
    self._token_weights = _TokenWeights(policy, loss, temperature=temperature)
    self.learned_turns = LearnedTurns()  # of the batch that was built last
    self._has_seen_roles = False
    self._running = (
      losses.unseen_tasks(len(task_ids)) if advantage.task_decay else None
    )

    def logprobs(
      params: Params, micro_batch: TrainBatch, of: Policy = policy
    ) -> jax.Array:
      return token_logprobs(
        of, params, micro_batch.batch, temperature=temperature, **loss.tiles
      )[0]

    def reference_logprobs(
      params: Params, micro_batch: TrainBatch
    ) -> jax.Array:
      assert reference is not None
      return logprobs(params, self_routed(micro_batch), reference.policy)

    def costs(params: Params, micro_batch: TrainBatch) -> jax.Array:
      batch = micro_batch.batch
      log_ratio_BT = losses.log_ratio(
        batch.behavior_logprob,
        reference_logprobs(params, micro_batch),
        batch.mask,
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
    self._pack = partial(_pack, experts=policy.config.experts_kind)
    options = policy.compiler_options
    # Arrays that the host reads are replicated, so every process has them all.
    read = {
      "out_shardings": self._mesh and sharding.replicated(self._mesh),
      "compiler_options": options,
    }
    self._logprobs = jax.jit(logprobs, compiler_options=options)
    self._reference_logprobs = lambda params, x: self._logprobs(
      params, self_routed(x)
    )
    if reference is not None and reference.policy.config != policy.config:
      self._reference_logprobs = jax.jit(
        reference_logprobs, compiler_options=options
      )
    self._costs = jax.jit(costs, **read)
    self._values = jax.jit(values, **read)

  def longest_line(self, groups: Sequence[Group]) -> int:
    """Returns the tokens of the longest line that is trained on."""
    trajectories = self._compare(groups).trajectories
    return max(
      (line.num_tokens for t in self._read(trajectories) for line in t.lines),
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
    shape = self._batch
    if layout is not None:
      shape = dataclasses.replace(
        shape, row_length=layout.row_length, micro_batch=layout.micro_batch
      )
    compared = self._compare(groups)
    trajectories = compared.trajectories
    arrays = make_arrays(
      compared.groups,
      self._task_ids,
      self._advantage,
      self._penalties(trajectories, shape),
    )
    if self._advantage.uses_critic:
      micro_batches, of_critic, report = self._criticised(
        trajectories, arrays, params, shape
      )
    else:
      rated, report = self._rate(trajectories, arrays)
      trajectories, of_critic = rated.trajectories, []
      micro_batches = []
      if trajectories:
        rows = self._pack(trajectories, shape, report)
        report["batch/trained_tokens"] += report["batch/left_out_tokens"]
        micro_batches = self._cut(rated, rows, shape)
    micro_batches = [*self._mixed(micro_batches, report)]
    self.learned_turns = LearnedTurns(compared, trajectories, micro_batches)
    played = [t for group in groups for t in group.trajectories]
    report["batch/trajectories"] = float(len(played))
    report["batch/turns"] = float(sum(len(t.turns) for t in played))
    report["batch/lines"] = float(sum(len(t.lines) for t in played))
    report["batch/row_length"] = float(shape.row_length)
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

  def _rate(
    self, trajectories: Sequence[Trajectory], arrays: TrajectoryArrays
  ) -> tuple[_Rated, Report]:
    """Computes advantages, and selects the trajectories to compute.

    At least one is computed, so that every batch that counts has the policy's
    metrics, its entropy for example, also where the update is skipped.
    """
    value_NU, self._running, moments = advantages_and_moments(
      arrays,
      num_tasks=len(self._task_ids),
      config=self._advantage,
      running=self._running,
    )
    require_finite(value_NU, self._advantage)
    has_signal_N = value_NU.any(axis=1)
    num_tokens_N = arrays.num_tokens_NU.sum(axis=1)
    computed_N = counted_N = counted_trajectories(
      arrays, config=self._advantage
    )
    if self._loss.needs_advantage and counted_N.any():
      computed_N = counted_N & has_signal_N
      if not computed_N.any():
        shortest = np.where(counted_N, num_tokens_N, np.inf).argmin()
        computed_N[shortest] = True
    left_N = counted_N & ~computed_N
    rated = _Rated(
      [trajectories[n] for n in np.flatnonzero(computed_N)],
      value_NU[computed_N],
      arrays.task_N[computed_N],
      arrays.task_N[left_N],
      num_tokens_N[left_N],
    )
    return rated, moment_numbers(moments, self._task_ids) | {
      "batch/trajectories_with_signal": float(has_signal_N.sum()),
      "batch/trained_tokens": 0.0,
      "batch/left_out_tokens": float(rated.left_tokens_K.sum()),
    }

  def _criticised(
    self,
    trajectories: Sequence[Trajectory],
    arrays: TrajectoryArrays,
    params: Params,
    shape: BatchConfig,
  ) -> tuple[list[TrainBatch], list[TrainBatch], Report]:
    """Returns micro-batches, those of an informed critic alone, and report."""
    num_trajectories = len(trajectories)
    none_K = np.array([], int)
    rated = _Rated(
      self._read(trajectories),
      np.zeros_like(arrays.turn_reward_NU)[:num_trajectories],
      arrays.task_N[:num_trajectories],
      none_K,
      none_K,
    )
    report: Report = {"batch/left_out_tokens": 0.0}
    rows = self._pack(rated.trajectories, shape, report)
    micro_batches = self._cut(rated, rows, shape)
    fields, self._running = critic_advantages(
      rows,
      place_rewards(rows, arrays.turn_reward_NU),
      self._computed(self._values, params, micro_batches),
      rated.task_N[rows.trajectory],
      num_tasks=len(self._task_ids),
      config=self._advantage,
      running=self._running,
    )
    if not self._advantage.informs_critic:
      return add_fields(micro_batches, fields), [], report
    of_critic = for_critic(micro_batches, fields)
    rated = dataclasses.replace(rated, trajectories=trajectories)
    seen = self._pack(trajectories, shape, report)
    advantage_RT = carried_over(fields["advantage"], rows, seen)
    micro_batches = add_fields(
      self._cut(rated, seen, shape), {"advantage": advantage_RT}
    )
    return micro_batches, of_critic, report

  def _read(self, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """Returns the trajectories as the critic, if there is one, reads them."""
    if not self._advantage.informs_critic:
      return trajectories
    assert self._encode is not None
    return informed(trajectories, self._encode)

  def _cut(
    self, rated: _Rated, rows: Rows, shape: BatchConfig
  ) -> list[TrainBatch]:
    """Cuts the rows, and gives their tokens advantages and weights."""
    task_RT = rated.task_N[rows.trajectory]
    value_RT = rated.value_NU[rows.trajectory, rows.turn]
    micro_batches = cut(
      rows,
      np.where(rows.mask, value_RT, 0).astype(np.float32),
      shape.micro_batch,
      self._grammar_masks(rows, rated.trajectories),
    )
    version_NU = answer_versions(rated.trajectories)
    fields = {
      "task": task_RT.astype(np.int32),
      "version": version_NU[rows.trajectory, rows.turn],
    }
    # A trajectory's lines may be in several rows.
    in_lines = any(len(t.lines) > 1 for t in rated.trajectories)
    if self._loss.task_share != "tokens":
      fields["weight"], weight = _task_weights(
        task_RT, rows.mask, rated, num_tasks=len(self._task_ids)
      )
    elif self._loss.reduction == "token_mean":
      weight = float(rated.left_tokens_K.sum())
    else:  # a mean over trajectories
      weight = float(len(rated.left_tokens_K))
      if self._loss.reduction == "sequence_mean" and in_lines:
        fields["weight"] = one_for_each(rows)
    micro_batches = add_fields(micro_batches, fields)
    # Equal shares, so that each of several updates of a batch has its own.
    shares = [weight / len(micro_batches)] * len(micro_batches)
    corrects = self._loss.sums_sequences and in_lines
    if corrects:
      further = [further_lines(x, rated.trajectories) for x in micro_batches]
      shares = [a - b for a, b in zip(shares, further, strict=True)]
    if not self._loss.needs_advantage and not corrects:
      return micro_batches
    return [
      dataclasses.replace(x, left_out=np.asarray(share, np.float32))
      for x, share in zip(micro_batches, shares, strict=True)
    ]

  def _computed(
    self,
    program: Callable[[Params, TrainBatch], jax.Array],
    params: Params,
    micro_batches: Sequence[TrainBatch],
  ) -> np.ndarray:
    """Returns the numbers [R, T] that a program computes of the whole batch."""
    return np.concatenate(
      [program(params, on_mesh(x, self._mesh)) for x in micro_batches]
    )

  def _penalties(
    self, trajectories: Sequence[Trajectory], shape: BatchConfig
  ) -> np.ndarray | None:
    """Computes the KL penalty of each turn, if rewards include it."""
    if self._loss.kl_place != "reward":
      return None
    rows = _pack(trajectories, shape, {})
    micro_batches = cut(
      rows,
      np.zeros(rows.mask.shape),
      shape.micro_batch,
      self._grammar_masks(rows, trajectories),
    )
    assert self._reference is not None  # loss.kl_coefficient needs one
    params = self._reference.fetch()
    cost_RT = self._computed(self._costs, params, micro_batches)
    num_turns = max(len(t.turns) for t in trajectories)
    cost_NU = np.zeros((len(trajectories), num_turns))
    index = (rows.trajectory[rows.mask], rows.turn[rows.mask])
    np.add.at(cost_NU, index, cost_RT[rows.mask])
    return cost_NU

  def _mixed(
    self, micro_batches: Sequence[TrainBatch], report: Report
  ) -> Sequence[TrainBatch]:
    """Weighs the advantages, and subtracts each token's KL from its own.

    So the loss is that of on-policy distillation from the reference, where
    advantages of rewards have weight 0.
    """
    is_charged = self._loss.kl_place == "advantage"
    if not micro_batches or (self._advantage.weight == 1 and not is_charged):
      return micro_batches
    advantage_RT = np.concatenate([x.advantage for x in micro_batches])
    advantage_RT = self._advantage.weight * advantage_RT
    if is_charged:
      assert self._reference is not None  # loss.kl_coefficient needs one
      params = self._reference.fetch()
      cost_RT = self._computed(self._costs, params, micro_batches)
      advantage_RT -= cost_RT
      mask_RT = np.concatenate([x.batch.mask for x in micro_batches])
      nats = cost_RT[mask_RT].mean() / self._loss.kl_coefficient
      report["policy/reverse_kl"] = float(nats)
    return add_fields(micro_batches, {"advantage": advantage_RT})

  def _add_logprobs(
    self, micro_batches: Sequence[TrainBatch], params: Params
  ) -> list[TrainBatch]:
    """Adds token weights and the log-probabilities that the loss reads."""
    micro_batches = self._token_weights.add(micro_batches, params)
    policies, common = {}, {}
    if self._reference is not None and self._loss.kl_place == "loss":
      params_of_it = self._reference.fetch()
      policies["reference_logprob"] = (self._reference_logprobs, params_of_it)
      if self._loss.kl_estimator == "full":
        policies["reference_hidden"] = (self._reference.hidden, params_of_it)
        common["reference_output"] = self._reference.output(params_of_it)
    if self._loss.proximal == "recomputed":
      policies["proximal_logprob"] = (self._logprobs, params)

    def complete(micro_batch: TrainBatch) -> TrainBatch:
      micro_batch = on_mesh(micro_batch, self._mesh)
      fields = {
        name: program(policy_params, micro_batch)
        for name, (program, policy_params) in policies.items()
      }
      return dataclasses.replace(micro_batch, **fields, **common)

    return [complete(micro_batch) for micro_batch in micro_batches]


def _pack(
  trajectories: Sequence[Trajectory],
  shape: BatchConfig,
  report: Report,
  experts: ExpertsKind | None = None,
) -> Rows:
  """Packs trajectories into rows; reports how full they are."""
  rows = pack(
    trajectories,
    row_length=shape.row_length,
    rows_multiple=shape.micro_batch,
    sharing=shape.sharing,
    experts=experts,
  )
  report["batch/fill"] = rows.fill
  report["batch/shared"] = 1 - rows.num_computed / max(rows.num_tokens, 1)
  report["batch/trained_tokens"] = float(rows.mask.sum())
  return rows


def _task_weights(
  task_RT: np.ndarray, mask_RT: np.ndarray, rated: _Rated, *, num_tasks: int
) -> tuple[np.ndarray, float]:
  """Weights of the packed tokens, and the sum of those left out."""
  num_rows, row_length = mask_RT.shape
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
      joined(task_RT, task_X), joined(mask_RT, mask_X), num_tasks=num_tasks
    )
  )
  return weight_RT[:num_rows], float(weight_RT[num_rows:].sum())


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
