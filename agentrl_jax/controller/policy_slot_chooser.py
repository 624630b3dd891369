"""Chooses the policy slots of a run's attempts, and learns from what came.

Belongs to the process that plays. The controller's loop asks how to draw while
the learner's thread hands in what it found: what is asked for is one object
that is replaced, never changed. Equal batches in equal order, equal draws.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.controller.policies import CrossPolicy
from agentrl_jax.controller.policy_slot_evidence import (
  Attempts,
  add_batch,
  count_attempts,
  evidence_from_json,
  measure_drift,
  no_evidence,
  versions_of,
)
from agentrl_jax.controller.policy_slot_weights import (
  Estimates,
  PolicySlotWeightsConfig,
  estimate,
  sample_size,
  weigh,
)
from agentrl_jax.data.trajectory import Group, Task


class PolicySlotChooser:
  """Cross-policy sampling of one run: fixed weights, or adaptive ones."""

  def __init__(
    self,
    cross_policy: CrossPolicy,
    config: PolicySlotWeightsConfig,
    tasks: Mapping[str, int],
  ):
    """`tasks` numbers the names of tasks, from 0."""
    self._first, self._config, self._tasks = cross_policy, config, tasks
    self._num_policy_slots = len(cross_policy.weights)
    self._evidence = no_evidence(len(tasks), self._num_policy_slots)
    self._draws = self._decide()

  def draw_for(self, task: Task) -> CrossPolicy:
    """How an attempt at the task draws its policy slots if it begins now."""
    return self._draws[task.name]

  def learn(
    self, groups: Sequence[Group], metrics: Mapping[str, float]
  ) -> dict[str, float]:
    """Takes in a batch and the learner's metrics of it; numbers to report."""
    per_turn = self._first.draw_per == "turn"
    found = count_attempts(
      groups,
      self._tasks,
      self._num_policy_slots,
      per_turn=per_turn,
      exploration=self._config.exploration,
    )
    self._evidence = add_batch(
      self._evidence,
      found,
      measure_drift(metrics, self._tasks, found.draws),
      versions_of(groups, self._num_policy_slots),
      memory=self._config.memory,
    )
    self._draws = self._decide()
    return self._report(found)

  def snapshot(self) -> dict[str, Any]:
    """What `restore` goes on from, as JSON values."""
    return self._evidence.to_json()

  def restore(self, snapshot: Mapping[str, Any]) -> None:
    """Draws as it did when the snapshot was taken.

    Raises `CheckpointError` for one of other tasks or policy slots.
    """
    self._evidence = evidence_from_json(snapshot, self._evidence)
    self._draws = self._decide()

  def _decide(self) -> dict[str, CrossPolicy]:
    if self._config.rule == "fixed":
      return dict.fromkeys(self._tasks, self._first)
    weight_NZ = weigh(
      self._believed(), np.array(self._first.weights), self._config
    )
    return {
      name: CrossPolicy(
        draw_per=self._first.draw_per, weights=tuple(weight_NZ[n].tolist())
      )
      for name, n in self._tasks.items()
    }

  def _believed(self) -> Estimates:
    return estimate(self._evidence, prior_draws=self._config.prior_draws)

  def _report(self, found: Attempts) -> dict[str, float]:
    """By policy slot and task, of the batch: share, success, and what
    follows.
    """
    believed = self._believed()
    report: dict[str, float] = {}
    weight_NZ = np.array([self._draws[name].shares for name in self._tasks])
    useful_N = sample_size(weight_NZ, believed)
    for name, n in self._tasks.items():
      report[f"policy_slots/predicted_sample_size/{name}"] = float(useful_N[n])
      draws = found.draws[n].sum()
      for z in range(self._num_policy_slots):
        where = f"policy_slot{z}/{name}"
        report[f"policy_slots/weight/{where}"] = float(weight_NZ[n, z])
        report[f"policy_slots/contribution/{where}"] = float(
          believed.contribution[n, z]
        )
        if draws:
          report[f"policy_slots/share/{where}"] = float(
            found.draws[n, z] / draws
          )
        if found.draws[n, z]:
          report[f"policy_slots/success/{where}"] = float(
            found.successes[n, z] / found.draws[n, z]
          )
    return report
