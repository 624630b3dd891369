"""What finished attempts and the learner tell about the policy slots.

Sums over attempts by task and policy slot, in which older batches count less.
Nothing here decides: `policy_slot_weights` makes weights of it.

Axes: N tasks, Z policy slots, G attempts of a group.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.controller.policies import succeeded
from agentrl_jax.data.trajectory import Group, Trajectory
from agentrl_jax.errors import CheckpointError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempts:
  """Sums over attempts, float64 [N, Z]; they add up and fade.

  A draw is what cross-policy sampling decides by chance at once: a turn, or a
  whole attempt. An attempt counts once for every draw that fell on the policy
  slot.
  """

  draws: np.ndarray
  credit: np.ndarray  # of `credit_G`
  successes: np.ndarray
  tokens: np.ndarray  # sampled


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
  """Sums of what the learner measured, weighted by draws, float64 [N, Z]."""

  draws: np.ndarray
  kl: np.ndarray  # nats per token, from the policy slot to the policy
  inverse: np.ndarray  # 1 over the effective share of the policy slot's tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
  """All that weights are made of, and all that a checkpoint keeps."""

  attempts: Attempts
  drift: Drift
  version: np.ndarray  # int64 [Z], that drift was measured of; -1: none yet

  def to_json(self) -> dict[str, Any]:
    """For `evidence_from_json`; floats come back to the bit."""
    found: dict[str, Any] = _map(self, lambda x: x.tolist())
    return found


def no_evidence(num_tasks: int, num_policy_slots: int) -> Evidence:
  """What a run begins with."""
  zero = np.zeros((num_tasks, num_policy_slots))
  return Evidence(
    attempts=Attempts(draws=zero, credit=zero, successes=zero, tokens=zero),
    drift=Drift(draws=zero, kl=zero, inverse=zero),
    version=np.full(num_policy_slots, -1),
  )


def evidence_from_json(body: Mapping[str, Any], like: Evidence) -> Evidence:
  """Raises `CheckpointError` if it is of other tasks or policy slots than
  `like`.
  """
  try:
    found = Evidence(
      attempts=Attempts(**_arrays(body["attempts"])),
      drift=Drift(**_arrays(body["drift"])),
      version=np.asarray(body["version"], np.int64),
    )
  except (KeyError, TypeError, ValueError) as error:
    raise CheckpointError(
      f"the checkpoint's account of policy slots cannot be read: {error!r}"
    ) from error
  shapes = [_map(x, lambda y: np.shape(y)) for x in (found, like)]
  if shapes[0] != shapes[1]:
    raise CheckpointError(
      f"the checkpoint's account of policy slots is of shape "
      f"{found.attempts.draws.shape}, tasks by policy slots, and this run has "
      f"{like.attempts.draws.shape}"
    )
  return found


def credit_of(success_G: np.ndarray, exploration: float) -> np.ndarray:
  """What each attempt brought, of what its group achieved: credit_G.

    u_n = (1 - x) (y_n - mean of its siblings' y)
          + x (max y - max of its siblings' y)

  with y the success (0 or 1) and x the exploration. The first part is the
  leave-one-out advantage (arXiv:2402.14740), the second is 1 for the only
  attempt that succeeded and else 0. What is subtracted does not depend on
  attempt n, so that u_n times the score of its draws, as a mean over the
  attempts, is an unbiased estimate of the gradient of

    (1 - x) E[success] + x E[the group's best success] / G

  An attempt without siblings has u = y.
  """
  y_G = np.asarray(success_G, np.float64)
  others = len(y_G) - 1
  if others < 1:
    return y_G
  total = y_G.sum()
  mean_G = (total - y_G) / others
  best_G = np.where(total - y_G > 0, 1.0, 0.0)
  credit_G: np.ndarray = (1 - exploration) * (y_G - mean_G) + exploration * (
    float(total > 0) - best_G
  )
  return credit_G


def count_attempts(
  groups: Sequence[Group],
  tasks: Mapping[str, int],
  num_policy_slots: int,
  *,
  per_turn: bool,
  exploration: float,
) -> Attempts:
  """What a batch of groups tells; `tasks` numbers the tasks' names."""
  sums = {
    field.name: np.zeros((len(tasks), num_policy_slots))
    for field in dataclasses.fields(Attempts)
  }
  for group in groups:
    n = tasks[group.task.name]
    wins_G = np.array([succeeded(t) for t in group.trajectories])
    credits_G = credit_of(wins_G, exploration)
    for attempt, win, credit in zip(
      group.trajectories, wins_G, credits_G, strict=True
    ):
      for policy_slot, tokens in _draws(attempt, per_turn):
        sums["draws"][n, policy_slot] += 1
        sums["credit"][n, policy_slot] += credit
        sums["successes"][n, policy_slot] += win
        sums["tokens"][n, policy_slot] += tokens
  return Attempts(**sums)


def versions_of(groups: Sequence[Group], num_policy_slots: int) -> np.ndarray:
  """The version that most of a policy slot's tokens are about: int64 [Z],
  -1: none.
  """
  turns = [turn for g in groups for t in g.trajectories for turn in t.turns]
  found = np.full(num_policy_slots, -1)
  for policy_slot in range(num_policy_slots):
    of_policy_slot = [
      turn.version for turn in turns if turn.policy_slot == policy_slot
    ]
    version_A = np.sort(
      np.concatenate([np.empty(0, np.int32), *of_policy_slot])
    )
    if len(version_A):
      found[policy_slot] = version_A[len(version_A) // 2]
  return found


def measure_drift(
  metrics: Mapping[str, float], tasks: Mapping[str, int], draws_NZ: np.ndarray
) -> Drift:
  """What the learner's metrics of a batch tell, by the batch's draws.

  Nothing is told of a policy slot that no trained token of the task came from.
  """
  kl_NZ, inverse_NZ = np.zeros_like(draws_NZ), np.zeros_like(draws_NZ)
  seen_NZ = np.zeros_like(draws_NZ)
  for name, n in tasks.items():
    for z in range(draws_NZ.shape[1]):
      where = f"policy_slot{z}/{name}"
      name_of_size = f"policy/effective_sample_size/{where}"
      if name_of_size not in metrics or not metrics[name_of_size] > 0:
        continue
      sample_size = metrics[name_of_size]
      seen_NZ[n, z] = draws_NZ[n, z]
      kl_NZ[n, z] = draws_NZ[n, z] * metrics[f"policy/kl_to_behavior/{where}"]
      inverse_NZ[n, z] = draws_NZ[n, z] / sample_size
  return Drift(draws=seen_NZ, kl=kl_NZ, inverse=inverse_NZ)


def add_batch(
  old: Evidence,
  attempts: Attempts,
  drift: Drift,
  version: np.ndarray,
  *,
  memory: float,
) -> Evidence:
  """The evidence after a batch: what was before counts `memory` times.

  A policy slot that serves another version than before has drifted from anew:
  what was measured of the old one is dropped. What it brings to success is
  kept.
  """
  changed = (version >= 0) & (version != old.version)
  return Evidence(
    attempts=_faded(old.attempts, attempts, memory),
    drift=_faded(old.drift, drift, np.where(changed, 0.0, memory)),
    version=np.where(version >= 0, version, old.version),
  )


def _faded(old: Any, new: Any, memory: float | np.ndarray) -> Any:
  return type(old)(
    **{
      field.name: memory * getattr(old, field.name) + getattr(new, field.name)
      for field in dataclasses.fields(old)
    }
  )


def _draws(attempt: Trajectory, per_turn: bool) -> Iterator[tuple[int, int]]:
  """Policy slot and sampled tokens of each draw."""
  if per_turn:
    for turn in attempt.turns:
      yield turn.policy_slot, len(turn.sampled)
  elif attempt.turns:
    yield attempt.turns[0].policy_slot, attempt.num_sampled


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
