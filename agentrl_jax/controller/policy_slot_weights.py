"""How often each policy slot answers: fixed, or from what it brings and costs.

Which mix of versions to sample from is left open by AgentRL (arXiv:2510.04206,
section 3.1), which fixes it. Here the draw of the policy slot is a policy of
its own, with one probability per policy slot and task, and is improved like
one. In what follows z is a policy slot, n a task, w0 the configured weights, k
`prior_draws`.

  brings  c_nz = mean credit of the draws that fell on z, less the task's mean:
          how much success rises per draw that is moved to z
          (`policy_slot_evidence.credit_of` has the credit, and whose gradient
          it is)
  costs   d_nz = KL(policy slot || policy), nats per token, as the learner
  measures it wastes  v_nz = 1 / effective sample size, as a share of the policy
  slot's tokens

Each is a mean with k draws of a prior: what the other tasks say, and that with
k draws of knowing nothing (c = 0, d = 0, v = 1). Then

  w_nz  ~  w0_z exp((c_nz - kl_cost d_nz) / temperature)

which maximises sum_z w_z (c_z - kl_cost d_z) - temperature KL(w || w0). Then
the weights go back towards w0, just so far that no policy slot is below
`floor`. Last, they go towards policy slot 0, just so far that the share of a
batch's tokens that is of use,

  ESS(w) = sum_z w_z l_z / sum_z w_z l_z v_z,    l the tokens of a draw,

is `min_sample_size`, if fresh tokens are that much; or else as much as they
are. That bound is stronger than the floor. The arithmetic is numpy's in
float64: equal evidence, equal weights.

Axes: N tasks, Z policy slots.
"""

import dataclasses

import numpy as np

from agentrl_jax.controller.policy_slot_evidence import Evidence
from agentrl_jax.errors import ConfigError

RULES = ("fixed", "adaptive")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicySlotWeightsConfig:
  """The `policy_slot_weights` section of the config."""

  rule: str = "fixed"
  temperature: float = 0.05  # success per draw
  exploration: float = 0.5  # share of success that only the group's best counts
  kl_cost: float = 1.0  # success per nat per token
  floor: float = 0.02  # least weight
  min_sample_size: float = 0.8  # share of a batch's tokens
  memory: float = 0.9  # per batch
  prior_draws: float = 100.0

  def __post_init__(self) -> None:
    if self.rule not in RULES:
      raise ConfigError(
        f"policy_slot_weights.rule={self.rule!r} is not one of "
        f"{', '.join(RULES)}"
      )
    self._refuse_numbers()
    if self.rule == "fixed":
      self._refuse_unread()

  def _refuse_numbers(self) -> None:
    for name in ("temperature", "prior_draws"):
      if not 0 < getattr(self, name) < np.inf:
        raise ConfigError(
          f"policy_slot_weights.{name}={getattr(self, name)} must be above 0"
        )
    if not 0 <= self.kl_cost < np.inf:
      raise ConfigError(
        f"policy_slot_weights.kl_cost={self.kl_cost} must be 0 (free) or more"
      )
    for name in ("exploration", "floor", "min_sample_size", "memory"):
      if not 0 <= getattr(self, name) <= 1:
        raise ConfigError(
          f"policy_slot_weights.{name}={getattr(self, name)} must be from 0 to "
          f"1"
        )

  def _refuse_unread(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value != field.default:
        raise ConfigError(
          f"policy_slot_weights.{field.name}={value} is not read with "
          f"policy_slot_weights.rule='fixed': leave it at {field.default}, or "
          f"set "
          "--config.policy_slot_weights.rule=adaptive"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimates:
  """What is believed of each policy slot, prior included; float64 [N, Z]."""

  contribution: np.ndarray  # success per draw, against the task's mean
  kl: np.ndarray  # nats per token, policy slot to policy
  inverse: np.ndarray  # 1 over the effective share of the policy slot's tokens
  tokens: np.ndarray  # of a draw


def estimate(evidence: Evidence, *, prior_draws: float) -> Estimates:
  """Means of the evidence of a task, drawn to what the other tasks say."""
  attempts, drift = evidence.attempts, evidence.drift
  mean_N1 = _ratio(
    attempts.credit.sum(1, keepdims=True), attempts.draws.sum(1, keepdims=True)
  )
  excess_NZ = attempts.credit - mean_N1 * attempts.draws

  def believed(
    total_NZ: np.ndarray, draws_NZ: np.ndarray, unknown: float
  ) -> np.ndarray:
    others_NZ = (total_NZ.sum(0) - total_NZ + prior_draws * unknown) / (
      draws_NZ.sum(0) - draws_NZ + prior_draws
    )
    mean: np.ndarray = (total_NZ + prior_draws * others_NZ) / (
      draws_NZ + prior_draws
    )
    return mean

  return Estimates(
    contribution=believed(excess_NZ, attempts.draws, 0.0),
    kl=believed(drift.kl, drift.draws, 0.0),
    inverse=believed(drift.inverse, drift.draws, 1.0),
    tokens=believed(
      attempts.tokens,
      attempts.draws,
      float(_ratio(attempts.tokens.sum(), attempts.draws.sum()) or 1.0),
    ),
  )


def weigh(
  believed: Estimates, prior_Z: np.ndarray, config: PolicySlotWeightsConfig
) -> np.ndarray:
  """weight_NZ: rows that sum to 1. See the formula above.

  `prior_Z` need not sum to 1; a policy slot of weight 0 in it is never drawn,
  and the others have a share of the floor at least.
  """
  prior_Z = prior_Z / prior_Z.sum()
  score_NZ = (
    believed.contribution - config.kl_cost * believed.kl
  ) / config.temperature
  may_Z = prior_Z > 0
  score_NZ = score_NZ - np.max(
    score_NZ, axis=1, keepdims=True, where=may_Z, initial=-np.inf
  )
  weight_NZ = prior_Z * np.exp(np.where(may_Z, score_NZ, 0))
  weight_NZ = weight_NZ / weight_NZ.sum(1, keepdims=True)
  weight_NZ = _above(weight_NZ, prior_Z, config.floor * may_Z)
  return towards_fresh(weight_NZ, believed, config.min_sample_size)


def _above(
  weight_NZ: np.ndarray, prior_Z: np.ndarray, floor_Z: np.ndarray
) -> np.ndarray:
  """(1 - b) w + b w0 with the least b that leaves no policy slot below its
  floor.
  """
  lacking_NZ = np.maximum(floor_Z - weight_NZ, 0)
  way_NZ = np.where(lacking_NZ > 0, prior_Z - weight_NZ, 0)
  back_N1 = np.minimum(_ratio(lacking_NZ, way_NZ).max(1, keepdims=True), 1)
  raised: np.ndarray = (1 - back_N1) * weight_NZ + back_N1 * prior_Z
  return raised


def sample_size(weight_NZ: np.ndarray, believed: Estimates) -> np.ndarray:
  """ESS(w) by task: the share of a batch's tokens that would be of use."""
  tokens_NZ = weight_NZ * believed.tokens
  useful_N: np.ndarray = tokens_NZ.sum(1) / (tokens_NZ * believed.inverse).sum(
    1
  )
  return useful_N


def towards_fresh(
  weight_NZ: np.ndarray, believed: Estimates, min_sample_size: float
) -> np.ndarray:
  """(1 - a) w + a (1, 0, 0, ...) with the least a that leaves ESS >= m.

  m is the bound, or what policy slot 0 alone comes to if that is less. ESS(w)
  >= m is linear in w, sum_z w_z h_z <= 0 with h_z = l_z (v_z - 1 / m), and
  holds for policy slot 0, so a = h(w) / (h(w) - h_0) where it does not hold for
  w.
  """
  if not min_sample_size:
    return weight_NZ
  worst_N1 = np.maximum(1 / min_sample_size, believed.inverse[:, :1])
  excess_NZ = believed.tokens * (believed.inverse - worst_N1)
  mixed_N1 = (weight_NZ * excess_NZ).sum(1, keepdims=True)
  way_N1 = mixed_N1 - excess_NZ[:, :1]
  move_N1 = _ratio(np.maximum(mixed_N1, 0), np.where(mixed_N1 > 0, way_N1, 0))
  fresh_Z = np.eye(weight_NZ.shape[1])[0]
  moved: np.ndarray = (1 - move_N1) * weight_NZ + move_N1 * fresh_Z
  return moved


def _ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
  """total / count, and 0 where nothing was counted."""
  mean: np.ndarray = np.where(
    count > 0, total / np.where(count > 0, count, 1), 0
  )
  return mean
