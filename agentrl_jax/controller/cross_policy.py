"""Cross-policy sampling: draws the policy slots that answer, and adapts draws.

AgentRL (arXiv:2510.04206, section 3.1). `policy_slot_weights` has the formula
of adaptive weights.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.controller.policy_slot_weights import (
  EpisodeSums,
  Estimates,
  PolicySlotWeightsConfig,
  add_batch,
  count_episodes,
  estimate,
  evidence_from_json,
  measure_drift,
  no_evidence,
  sample_size,
  versions_of,
  weigh,
)
from agentrl_jax.data.records import Group, Task, uniform_of
from agentrl_jax.errors import ConfigError

DRAWS = ("turn", "trajectory", "never")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossPolicy:
  """Draws the policy slot that answers a turn.

  `draw_per` is the unit of a draw: every turn, or a whole trajectory, or never,
  which is policy slot 0 throughout. `weights` has one entry per policy slot and
  need not sum to 1. The draw is a function of (seed, turn), so a retry repeats
  it.
  """

  draw_per: str
  weights: tuple[float, ...]

  def __post_init__(self) -> None:
    if self.draw_per not in DRAWS:
      raise ConfigError(
        f"cross_policy.draw_per is {self.draw_per!r}; choose one of"
        f" {', '.join(DRAWS)}"
      )
    usable = all(math.isfinite(w) and w >= 0 for w in self.weights)
    if not usable or not sum(self.weights) > 0:
      raise ConfigError(
        f"cross_policy.weights is {self.weights}; give one finite weight >= 0"
        " per policy slot, at least one of them above 0"
      )

  @property
  def is_drawn(self) -> bool:
    """True if policy slots are drawn at random."""
    return self.draw_per != "never"

  @property
  def shares(self) -> tuple[float, ...]:
    """The weights as probabilities, which sum to 1."""
    if not self.is_drawn:
      return (1.0, *[0.0] * (len(self.weights) - 1))
    total = sum(self.weights)
    return tuple(weight / total for weight in self.weights)

  def __call__(self, seed: int, turn: int) -> int:
    """Returns the policy slot that answers a turn of the episode."""
    if self.draw_per == "never":
      return 0
    drawn_turn = turn if self.draw_per == "turn" else 0
    point = uniform_of(seed, "slot", drawn_turn) * sum(self.weights)
    for policy_slot, end in enumerate(itertools.accumulate(self.weights)):
      if point < end:
        return policy_slot
    # Rounding may put the point at the end of the last interval.
    return max(z for z, weight in enumerate(self.weights) if weight > 0)


NEVER = CrossPolicy(draw_per="never", weights=(1.0,))  # policy slot 0, always


class PolicySlotChooser:
  """Cross-policy sampling of one run, with fixed weights or adaptive ones.

  Belongs to the process that plays. The controller's loop calls `draw_for`
  while the learner's thread calls `learn`: the draws are one object, which is
  replaced and never changed. Equal batches in equal order give equal draws.
  """

  def __init__(
    self,
    cross_policy: CrossPolicy,
    config: PolicySlotWeightsConfig,
    tasks: Mapping[str, int],
  ):
    """`tasks` numbers the names of tasks, from 0."""
    self._initial, self._config, self._tasks = cross_policy, config, tasks
    self._num_policy_slots = len(cross_policy.weights)
    self._evidence = no_evidence(len(tasks), self._num_policy_slots)
    self._draws = self._decide()

  def draw_for(self, task: Task) -> CrossPolicy:
    """Returns the draw for an episode of the task that starts now."""
    return self._draws[task.name]

  def learn(
    self, groups: Sequence[Group], metrics: Mapping[str, float]
  ) -> dict[str, float]:
    """Adds a batch and the learner's metrics of it; returns its own metrics."""
    batch = count_episodes(
      groups,
      self._tasks,
      self._num_policy_slots,
      per_turn=self._initial.draw_per == "turn",
      exploration=self._config.exploration,
    )
    self._evidence = add_batch(
      self._evidence,
      batch,
      measure_drift(metrics, self._tasks, batch.draws),
      versions_of(groups, self._num_policy_slots),
      memory=self._config.memory,
    )
    self._draws = self._decide()
    return self._report(batch)

  def snapshot(self) -> dict[str, Any]:
    """Returns the state for `restore`, as JSON values."""
    return self._evidence.to_json()

  def restore(self, snapshot: Mapping[str, Any]) -> None:
    """Continues from a snapshot.

    Raises `CheckpointError` for one of other tasks or policy slots.
    """
    self._evidence = evidence_from_json(snapshot, self._evidence)
    self._draws = self._decide()

  def _decide(self) -> dict[str, CrossPolicy]:
    if self._config.rule == "fixed":
      return dict.fromkeys(self._tasks, self._initial)
    weight_NZ = weigh(
      self._estimates(), np.array(self._initial.weights), self._config
    )
    return {
      name: CrossPolicy(
        draw_per=self._initial.draw_per, weights=tuple(weight_NZ[n].tolist())
      )
      for name, n in self._tasks.items()
    }

  def _estimates(self) -> Estimates:
    return estimate(self._evidence, prior_draws=self._config.prior_draws)

  def _report(self, batch: EpisodeSums) -> dict[str, float]:
    """Returns share, success and weight by policy slot and task."""
    estimates = self._estimates()
    report: dict[str, float] = {}
    weight_NZ = np.array([self._draws[name].shares for name in self._tasks])
    useful_N = sample_size(weight_NZ, estimates)
    for name, n in self._tasks.items():
      report[f"policy_slots/predicted_sample_size/{name}"] = float(useful_N[n])
      draws = batch.draws[n].sum()
      for z in range(self._num_policy_slots):
        key = f"policy_slot{z}/{name}"
        report[f"policy_slots/weight/{key}"] = float(weight_NZ[n, z])
        report[f"policy_slots/contribution/{key}"] = float(
          estimates.contribution[n, z]
        )
        if draws:
          report[f"policy_slots/share/{key}"] = float(batch.draws[n, z] / draws)
        if batch.draws[n, z]:
          report[f"policy_slots/success/{key}"] = float(
            batch.successes[n, z] / batch.draws[n, z]
          )
    return report
