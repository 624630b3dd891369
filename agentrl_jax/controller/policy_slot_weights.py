"""Adaptive weights of policy slots, from their benefit and their cost.

AgentRL (arXiv:2510.04206, section 3.1) samples from several versions with fixed
weights. Here the draw of the policy slot is a policy of its own, with one
probability per policy slot and task, and is improved like one. In what follows
z is a policy slot, n a task, w0 the configured weights, k `prior_draws`.

  benefit  c_nz = mean credit of the draws of z, less the task's mean: how much
           success rises per draw that is moved to z (`credit_of` defines the
           credit and the gradient that it estimates)
  cost     d_nz = KL(policy slot || policy), nats per token, from the learner
  waste    v_nz = 1 / effective sample size, as a share of z's tokens

Each is a mean with k draws of a prior: the mean of the other tasks, which in
turn has k draws of ignorance (c = 0, d = 0, v = 1). Then

  w_nz  ~  w0_z exp((c_nz - kl_cost d_nz) / temperature)

which maximises sum_z w_z (c_z - kl_cost d_z) - temperature KL(w || w0). Then
the weights move back towards w0, by the least step that leaves no policy slot
below `floor`. Last, they move towards policy slot 0, by the least step that
brings the share of a batch's tokens that is of use,

  ESS(w) = sum_z w_z l_z / sum_z w_z l_z v_z,    l the tokens of a draw,

to `min_sample_size`, or to the share of policy slot 0 alone if that is less.
That bound is stronger than the floor. The arithmetic is numpy's in float64:
equal evidence gives equal weights.

Axes: N tasks, Z policy slots, G episodes of a group.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.records import Group, Trajectory
from agentrl_jax.errors import CheckpointError, ConfigError

RULES = ("fixed", "adaptive")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicySlotWeightsConfig:
  """The `policy_slot_weights` section of the config."""

  rule: str
  temperature: float  # success per draw
  exploration: float  # share of success that only the group's best counts
  kl_cost: float  # success per nat per token
  floor: float  # least weight
  min_sample_size: float  # share of a batch's tokens
  memory: float  # per batch
  prior_draws: float

  def __post_init__(self) -> None:
    if self.rule not in RULES:
      raise ConfigError(
        f"policy_slot_weights.rule={self.rule!r} is not one of "
        f"{', '.join(RULES)}"
      )
    self._check_ranges()

  def _check_ranges(self) -> None:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeSums:
  """Sums over episodes, float64 [N, Z]; those of older batches are discounted.

  A draw is one random choice of a policy slot: for a turn, or for a whole
  episode. An episode counts once for every draw of the policy slot.
  """

  draws: np.ndarray
  credit: np.ndarray  # of `credit_of`
  successes: np.ndarray
  tokens: np.ndarray  # sampled


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
  """Sums of the learner's measurements, weighted by draws, float64 [N, Z]."""

  draws: np.ndarray
  kl: np.ndarray  # nats per token, from the policy slot to the policy
  inverse: np.ndarray  # 1 over the effective share of the policy slot's tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
  """All inputs of the weights, which a checkpoint keeps."""

  attempts: EpisodeSums
  drift: Drift
  version: np.ndarray  # int64 [Z], that drift was measured of; -1: none yet

  def to_json(self) -> dict[str, Any]:
    """Returns JSON for `evidence_from_json`; floats come back to the bit."""
    return _map(self, lambda x: x.tolist())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimates:
  """Estimates of each policy slot, prior included; float64 [N, Z]."""

  contribution: np.ndarray  # success per draw, against the task's mean
  kl: np.ndarray  # nats per token, policy slot to policy
  inverse: np.ndarray  # 1 over the effective share of the policy slot's tokens
  tokens: np.ndarray  # of a draw


def no_evidence(num_tasks: int, num_policy_slots: int) -> Evidence:
  """Returns the evidence at the start of a run."""
  zero = np.zeros((num_tasks, num_policy_slots))
  return Evidence(
    attempts=EpisodeSums(draws=zero, credit=zero, successes=zero, tokens=zero),
    drift=Drift(draws=zero, kl=zero, inverse=zero),
    version=np.full(num_policy_slots, -1),
  )


def evidence_from_json(body: Mapping[str, Any], like: Evidence) -> Evidence:
  """Reads `Evidence.to_json`.

  Raises `CheckpointError` if its tasks or policy slots are not those of `like`.
  """
  try:
    evidence = Evidence(
      attempts=EpisodeSums(**_arrays(body["attempts"])),
      drift=Drift(**_arrays(body["drift"])),
      version=np.asarray(body["version"], np.int64),
    )
  except (KeyError, TypeError, ValueError) as error:
    raise CheckpointError(
      f"the checkpoint's evidence on policy slots cannot be read: {error!r}"
    ) from error
  shapes = [_map(x, np.shape) for x in (evidence, like)]
  if shapes[0] != shapes[1]:
    raise CheckpointError(
      f"the checkpoint's evidence on policy slots is of shape "
      f"{evidence.attempts.draws.shape}, tasks by policy slots, and this run "
      f"has {like.attempts.draws.shape}"
    )
  return evidence


def credit_of(success_G: np.ndarray, exploration: float) -> np.ndarray:
  """Returns each episode's share in the success of its group: credit_G.

    u_n = (1 - x) (y_n - mean of its siblings' y)
          + x (max y - max of its siblings' y)

  with y the success (0 or 1) and x the exploration. The first part is the
  leave-one-out advantage (arXiv:2402.14740), the second is 1 for the only
  episode that succeeded and else 0. The subtracted term does not depend on
  episode n, so that u_n times the score of its draws, as a mean over the
  episodes, is an unbiased estimate of the gradient of

    (1 - x) E[success] + x E[the group's best success] / G

  An episode without siblings has u = y.
  """
  y_G = np.asarray(success_G, np.float64)
  num_siblings = len(y_G) - 1
  if num_siblings < 1:
    return y_G
  total = y_G.sum()
  mean_G = (total - y_G) / num_siblings
  best_G = np.where(total - y_G > 0, 1.0, 0.0)
  credit_G: np.ndarray = (1 - exploration) * (y_G - mean_G) + exploration * (
    float(total > 0) - best_G
  )
  return credit_G


def count_episodes(
  groups: Sequence[Group],
  tasks: Mapping[str, int],
  num_policy_slots: int,
  *,
  per_turn: bool,
  exploration: float,
) -> EpisodeSums:
  """Sums a batch of groups; `tasks` numbers the tasks' names."""
  sums = {
    field.name: np.zeros((len(tasks), num_policy_slots))
    for field in dataclasses.fields(EpisodeSums)
  }
  for group in groups:
    n = tasks[group.task.name]
    success_G = np.array([t.is_success for t in group.trajectories])
    credit_G = credit_of(success_G, exploration)
    for trajectory, success, credit in zip(
      group.trajectories, success_G, credit_G, strict=True
    ):
      for policy_slot, tokens in _draws(trajectory, per_turn):
        sums["draws"][n, policy_slot] += 1
        sums["credit"][n, policy_slot] += credit
        sums["successes"][n, policy_slot] += success
        sums["tokens"][n, policy_slot] += tokens
  return EpisodeSums(**sums)


def versions_of(groups: Sequence[Group], num_policy_slots: int) -> np.ndarray:
  """Returns the median version of each policy slot's tokens.

  int64 [Z]; -1 for a policy slot without tokens.
  """
  turns = [turn for g in groups for t in g.trajectories for turn in t.turns]
  version_Z = np.full(num_policy_slots, -1)
  for z in range(num_policy_slots):
    parts = [turn.version for turn in turns if turn.policy_slot == z]
    version_A = np.sort(np.concatenate([np.empty(0, np.int32), *parts]))
    if len(version_A):
      version_Z[z] = version_A[len(version_A) // 2]
  return version_Z


def measure_drift(
  metrics: Mapping[str, float], tasks: Mapping[str, int], draws_NZ: np.ndarray
) -> Drift:
  """Reads the drift from the learner's metrics of a batch.

  A policy slot without trained tokens of the task contributes nothing.
  """
  kl_NZ, inverse_NZ = np.zeros_like(draws_NZ), np.zeros_like(draws_NZ)
  seen_NZ = np.zeros_like(draws_NZ)
  for name, n in tasks.items():
    for z in range(draws_NZ.shape[1]):
      key = f"policy_slot{z}/{name}"
      sample_size = metrics.get(f"policy/effective_sample_size/{key}", 0.0)
      if not sample_size > 0:
        continue
      seen_NZ[n, z] = draws_NZ[n, z]
      kl_NZ[n, z] = draws_NZ[n, z] * metrics[f"policy/kl_to_behavior/{key}"]
      inverse_NZ[n, z] = draws_NZ[n, z] / sample_size
  return Drift(draws=seen_NZ, kl=kl_NZ, inverse=inverse_NZ)


def add_batch(
  old: Evidence,
  attempts: EpisodeSums,
  drift: Drift,
  version: np.ndarray,
  *,
  memory: float,
) -> Evidence:
  """Adds a batch to the evidence, of which the older part counts `memory`.

  Where a policy slot serves another version than before, the drift of the old
  version is dropped. Its contribution to success is kept.
  """
  changed = (version >= 0) & (version != old.version)
  return Evidence(
    attempts=_discounted_sum(old.attempts, attempts, memory),
    drift=_discounted_sum(old.drift, drift, np.where(changed, 0.0, memory)),
    version=np.where(version >= 0, version, old.version),
  )


def estimate(evidence: Evidence, *, prior_draws: float) -> Estimates:
  """Averages the evidence of each task, with the other tasks as prior."""
  attempts, drift = evidence.attempts, evidence.drift
  mean_N1 = _ratio(
    attempts.credit.sum(1, keepdims=True), attempts.draws.sum(1, keepdims=True)
  )
  excess_NZ = attempts.credit - mean_N1 * attempts.draws

  def posterior(
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
    contribution=posterior(excess_NZ, attempts.draws, 0.0),
    kl=posterior(drift.kl, drift.draws, 0.0),
    inverse=posterior(drift.inverse, drift.draws, 1.0),
    tokens=posterior(
      attempts.tokens,
      attempts.draws,
      float(_ratio(attempts.tokens.sum(), attempts.draws.sum()) or 1.0),
    ),
  )


def weigh(
  estimates: Estimates, prior_Z: np.ndarray, config: PolicySlotWeightsConfig
) -> np.ndarray:
  """Returns weight_NZ by the formula above; its rows sum to 1.

  `prior_Z` need not sum to 1; a policy slot of weight 0 in it is never drawn,
  and the others have a share of the floor at least.
  """
  prior_Z = prior_Z / prior_Z.sum()
  score_NZ = (
    estimates.contribution - config.kl_cost * estimates.kl
  ) / config.temperature
  may_Z = prior_Z > 0
  score_NZ = score_NZ - np.max(
    score_NZ, axis=1, keepdims=True, where=may_Z, initial=-np.inf
  )
  weight_NZ = prior_Z * np.exp(np.where(may_Z, score_NZ, 0))
  weight_NZ = weight_NZ / weight_NZ.sum(1, keepdims=True)
  weight_NZ = _raise_to_floor(weight_NZ, prior_Z, config.floor * may_Z)
  return towards_fresh(weight_NZ, estimates, config.min_sample_size)


def sample_size(weight_NZ: np.ndarray, estimates: Estimates) -> np.ndarray:
  """Returns ESS(w) by task: the share of a batch's tokens that is of use."""
  tokens_NZ = weight_NZ * estimates.tokens
  useful_N: np.ndarray = tokens_NZ.sum(1) / (tokens_NZ * estimates.inverse).sum(
    1
  )
  return useful_N


def towards_fresh(
  weight_NZ: np.ndarray, estimates: Estimates, min_sample_size: float
) -> np.ndarray:
  """Returns (1 - a) w + a (1, 0, 0, ...) with the least a with ESS >= m.

  m is the bound, or the ESS of policy slot 0 alone if that is less. ESS(w) >= m
  is linear in w, sum_z w_z h_z <= 0 with h_z = l_z (v_z - 1 / m), and holds for
  policy slot 0, so a = h(w) / (h(w) - h_0) where it does not hold for w.
  """
  if not min_sample_size:
    return weight_NZ
  worst_N1 = np.maximum(1 / min_sample_size, estimates.inverse[:, :1])
  excess_NZ = estimates.tokens * (estimates.inverse - worst_N1)
  mixed_N1 = (weight_NZ * excess_NZ).sum(1, keepdims=True)
  way_N1 = mixed_N1 - excess_NZ[:, :1]
  move_N1 = _ratio(np.maximum(mixed_N1, 0), np.where(mixed_N1 > 0, way_N1, 0))
  fresh_Z = np.eye(weight_NZ.shape[1])[0]
  moved: np.ndarray = (1 - move_N1) * weight_NZ + move_N1 * fresh_Z
  return moved


def _raise_to_floor(
  weight_NZ: np.ndarray, prior_Z: np.ndarray, floor_Z: np.ndarray
) -> np.ndarray:
  """Returns (1 - b) w + b w0 with the least b with no entry below its floor."""
  lacking_NZ = np.maximum(floor_Z - weight_NZ, 0)
  way_NZ = np.where(lacking_NZ > 0, prior_Z - weight_NZ, 0)
  back_N1 = np.minimum(_ratio(lacking_NZ, way_NZ).max(1, keepdims=True), 1)
  raised: np.ndarray = (1 - back_N1) * weight_NZ + back_N1 * prior_Z
  return raised


def _draws(trajectory: Trajectory, per_turn: bool) -> Iterator[tuple[int, int]]:
  """Yields the policy slot and the number of sampled tokens of each draw."""
  if per_turn:
    for turn in trajectory.turns:
      yield turn.policy_slot, len(turn.sampled)
  elif trajectory.turns:
    yield trajectory.turns[0].policy_slot, trajectory.num_sampled


def _discounted_sum(old: Any, new: Any, memory: float | np.ndarray) -> Any:
  return type(old)(
    **{
      field.name: memory * getattr(old, field.name) + getattr(new, field.name)
      for field in dataclasses.fields(old)
    }
  )


def _map(evidence: Evidence, change: Any) -> dict[str, Any]:
  parts: dict[str, Any] = {"version": change(evidence.version)}
  for name in ("attempts", "drift"):
    part = getattr(evidence, name)
    parts[name] = {
      field.name: change(getattr(part, field.name))
      for field in dataclasses.fields(part)
    }
  return parts


def _arrays(body: Mapping[str, Any]) -> dict[str, np.ndarray]:
  return {name: np.asarray(x, np.float64) for name, x in body.items()}


def _ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
  """Returns total / count, and 0 where the count is 0."""
  mean: np.ndarray = np.where(
    count > 0, total / np.where(count > 0, count, 1), 0
  )
  return mean
