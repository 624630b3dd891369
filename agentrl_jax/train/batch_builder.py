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
from functools import partial

import numpy as np

from agentrl_jax.data.grammar.grammars import Grammars
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
from agentrl_jax.train.train_batch import (
  BatchConfig,
  Packed,
  TrainBatch,
  pack_batch,
  pack_rated,
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
    self._loss, self._advantage = loss, advantage
    self._uses_critic, self._roles = advantage.uses_critic, batch.roles
    self._pack = partial(
      pack_batch,
      shape=batch,
      experts=policy.config.experts_kind,
      make_grammars=make_grammars,
      mesh=policy.mesh,
    )
    self._rate = partial(
      rate,
      task_ids=task_ids,
      config=advantage,
      uses_critic=advantage.uses_critic,
      leaves_out=loss.needs_advantage,
    )
    self._pack_rated = partial(
      pack_rated,
      loss=loss,
      pack_batch=self._pack,
      num_tasks=len(task_ids),
      micro_batch=batch.micro_batch,
    )
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
      require_roles(self._roles, groups)
      self._has_seen_roles = True
    compared = compared_parts(
      groups,
      # A critic compares nothing, and each line is a sequence of its own, that
      # ends with the episode's reward.
      compare="lines" if self._uses_critic else self._advantage.compare,
      roles=self._roles,
    )
    penalty_NU = None
    if self._loss.kl_place == "reward":
      penalty_NU = self._penalties(compared.trajectories)
    rated, report = self._rate(
      compared.groups, moments=self.moments, penalty_NU=penalty_NU
    )
    played = [t for group in groups for t in group.trajectories]
    report["batch/trajectories"] = float(len(played))
    report["batch/turns"] = float(sum(len(t.turns) for t in played))
    report["batch/lines"] = float(sum(len(t.lines) for t in played))
    if not rated.trajectories:
      self.learned_turns = LearnedTurns(compared)
      return [], report
    packed = self._pack_rated(rated)
    report |= packed.metrics
    report["batch/trained_tokens"] += float(packed.rows.mask.sum())
    whole = self._charged(packed, rated, params, report)
    self.learned_turns = LearnedTurns(compared, rated.trajectories, whole)
    return (
      self._programs.micro_batches(whole, params, packed.left_out_P),
      report,
    )

  def _penalties(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Computes the KL penalty of each turn."""
    rows, whole = self._pack(trajectories)
    cost_RT = self._programs.costs(whole)
    num_turns = max(len(t.turns) for t in trajectories)
    cost_NU = np.zeros((len(trajectories), num_turns))
    index = (rows.trajectory[rows.mask], rows.turn[rows.mask])
    np.add.at(cost_NU, index, cost_RT[rows.mask])
    return cost_NU

  def _charged(
    self, packed: Packed, rated: Rated, params: Params, report: Report
  ) -> TrainBatch:
    """Sets what a critic says, and charges each token its KL.

    With weight 0 of the advantages of rewards, the loss is that of on-policy
    distillation from the reference.
    """
    rows, whole = packed.rows, packed.whole
    if self._uses_critic:
      of_critic = critic_advantages(
        rows,
        place_rewards(rows, rated.value_NU),
        self._programs.values(whole, params),
        whole.task,
        self._advantage,
        self.moments,
      )
      whole = dataclasses.replace(whole, **of_critic)
    advantage_RT = whole.advantage
    if self._advantage.weight != 1:
      advantage_RT = self._advantage.weight * advantage_RT
    if self._loss.kl_place == "advantage":
      cost_RT = self._programs.costs(whole)
      advantage_RT = advantage_RT - cost_RT
      nats = cost_RT[rows.mask].mean() / self._loss.kl_coefficient
      report["policy/reverse_kl"] = float(nats)
    return dataclasses.replace(whole, advantage=advantage_RT)
