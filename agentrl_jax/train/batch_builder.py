"""Builds micro-batches from groups: advantages, packing, log-probabilities.

Each step takes what the former returned: groups, the parts that are compared,
their advantages, rows, and micro-batches with the weights of their tokens.

Advantages are computed over the whole batch, from the other trajectories of the
group or from a critic, and normalised by task. Packing and cutting come
afterwards, so the cut changes nothing.

Axes: N trajectories, U turns, R rows of the whole batch, T tokens.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.packing import Rows, pack
from agentrl_jax.data.records import Group, Trajectory
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.advantages import Rated, RunningMoments, rate
from agentrl_jax.train.batch_programs import BatchPrograms
from agentrl_jax.train.compared import (
  LearnedTurns,
  compared_parts,
  require_roles,
)
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.critic import critic_advantages, place_rewards
from agentrl_jax.train.custom_trial import try_advantage
from agentrl_jax.train.metrics import answer_versions
from agentrl_jax.train.train_batch import (
  BatchConfig,
  TrainBatch,
  cut,
  grammar_masks,
  token_shares,
  whole_batch,
)
from agentrl_jax.train.weights.reference import Reference

Report = dict[str, float]


class BatchBuilder:
  """Makes micro-batches of groups; `moments` go on from batch to batch."""

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
  ):
    """The KL term pulls towards `reference`.

    `make_grammars` is called once, for the first answers that had to follow a
    grammar.
    """
    if loss.kl_coefficient and reference is None:
      raise ValueError(
        f"loss.kl_coefficient={loss.kl_coefficient} pulls towards a reference, "
        "and none was given: pass one, or set the coefficient to 0"
      )
    try_advantage(advantage)
    self._policy, self._task_ids = policy, task_ids
    self._loss, self._advantage, self._shape = loss, advantage, batch
    self._make_grammars = make_grammars
    self._programs = BatchPrograms(
      policy,
      loss,
      temperature=temperature,
      micro_batch=batch.micro_batch,
      reference=reference,
    )
    self.moments = RunningMoments(advantage, num_tasks=len(task_ids))
    self.learned_turns = LearnedTurns()  # of the batch that was built last
    self._has_seen_roles = not batch.roles

  def build(
    self, groups: Sequence[Group], params: Params
  ) -> tuple[list[TrainBatch], Report]:
    """Returns the micro-batches of one update and statistics of the packing.

    The loss is a mean over the trajectories that `advantage.keep` keeps, and
    over no others. Of these, trajectories of advantage 0 are not computed where
    the advantage alone would give them a gradient: their weight stays in the
    denominator, so loss and gradient are the same as if they were computed.
    The list is empty if no trajectory is kept: then no update is made.
    """
    if not self._has_seen_roles:
      require_roles(self._shape.roles, groups)
      self._has_seen_roles = True
    compared = compared_parts(
      groups,
      # A critic compares nothing, and each line is a sequence of its own, that
      # ends with the episode's reward.
      compare="lines"
      if self._advantage.uses_critic
      else self._advantage.compare,
      roles=self._shape.roles,
    )
    rated, report = rate(
      compared.groups,
      self._task_ids,
      self._advantage,
      self.moments,
      leaves_out=self._loss.needs_advantage,
      penalty_NU=self._penalties(compared.trajectories),
    )
    played = [t for group in groups for t in group.trajectories]
    report["batch/trajectories"] = float(len(played))
    report["batch/turns"] = float(sum(len(t.turns) for t in played))
    report["batch/lines"] = float(sum(len(t.lines) for t in played))
    if not rated.trajectories:
      self.learned_turns = LearnedTurns(compared)
      return [], report
    rows, whole = self._packed(rated.trajectories)
    report["batch/fill"] = rows.fill
    report["batch/shared"] = 1 - rows.num_computed / max(rows.num_tokens, 1)
    report["batch/trained_tokens"] += float(rows.mask.sum())
    whole = self._with_advantages(whole, rows, rated, params, report)
    weight_RT, left_out_P = token_shares(
      rows,
      rated,
      self._loss,
      num_tasks=len(self._task_ids),
      micro_batch=self._shape.micro_batch,
    )
    whole = dataclasses.replace(
      whole,
      weight=weight_RT,
      token_weight=self._programs.token_weights(whole, params),
    )
    micro_batches = cut(whole, self._shape.micro_batch, left_out_P)
    self.learned_turns = LearnedTurns(
      compared, rated.trajectories, micro_batches
    )
    return self._programs.complete(micro_batches, params), report

  def _packed(
    self, trajectories: Sequence[Trajectory]
  ) -> tuple[Rows, TrainBatch]:
    """Packs trajectories, with what their grammars allowed; no advantages."""
    rows = pack(
      trajectories,
      row_length=self._shape.row_length,
      rows_multiple=self._shape.micro_batch,
      sharing=self._shape.sharing,
      experts=self._policy.config.experts_kind,
    )
    masks = grammar_masks(
      rows, trajectories, self._make_grammars, self._policy.mesh
    )
    return rows, whole_batch(rows, np.zeros(rows.mask.shape, np.float32), masks)

  def _penalties(self, trajectories: Sequence[Trajectory]) -> np.ndarray | None:
    """Computes the KL penalty of each turn, if rewards include it."""
    if self._loss.kl_place != "reward":
      return None
    rows, whole = self._packed(trajectories)
    cost_RT = self._programs.costs(whole)
    num_turns = max(len(t.turns) for t in trajectories)
    cost_NU = np.zeros((len(trajectories), num_turns))
    index = (rows.trajectory[rows.mask], rows.turn[rows.mask])
    np.add.at(cost_NU, index, cost_RT[rows.mask])
    return cost_NU

  def _with_advantages(
    self,
    whole: TrainBatch,
    rows: Rows,
    rated: Rated,
    params: Params,
    report: Report,
  ) -> TrainBatch:
    """Sets each token's advantage, task and version, and what a critic learns.

    Each token's KL is subtracted from its own advantage, if it is charged
    there: so the loss is that of on-policy distillation from the reference,
    where advantages of rewards have weight 0.
    """
    task_RT = rated.task_N[rows.trajectory].astype(np.int32)
    version_NU = answer_versions(rated.trajectories)
    if self._advantage.uses_critic:
      fields = critic_advantages(
        rows,
        place_rewards(rows, rated.value_NU),
        self._programs.values(whole, params),
        task_RT,
        self._advantage,
        self.moments,
      )
    else:
      value_RT = rated.value_NU[rows.trajectory, rows.turn]
      value_RT = np.where(rows.mask, value_RT, 0).astype(np.float32)
      fields = {"advantage": value_RT}
    if self._advantage.weight != 1:
      fields["advantage"] = self._advantage.weight * fields["advantage"]
    if self._loss.kl_place == "advantage":
      cost_RT = self._programs.costs(whole)
      fields["advantage"] = fields["advantage"] - cost_RT
      nats = cost_RT[rows.mask].mean() / self._loss.kl_coefficient
      report["policy/reverse_kl"] = float(nats)
    return dataclasses.replace(
      whole,
      task=task_RT,
      version=version_NU[rows.trajectory, rows.turn],
      **fields,
    )
