"""Learning curves of the tabular policy under each estimator.

An update plays the same number of episodes in every arm: a group of attempts
for every secret. Adam divides by the gradient's size, so that estimators of any
scale take steps alike, and all arms have one learning rate.
"""

from collections.abc import Sequence

import jax
import numpy as np
import optax

from studies.credit.estimators import REFERENCES, Batch, estimate
from studies.credit.exact import TablePolicy, play

GRADIENT = "exact gradient"  # by enumeration: without a sample
ARMS = (
  GRADIENT,
  *REFERENCES,
  "returns",
  "grpo",
  "grpo_by_task",
  "rloo",
  "reinforce_plus_plus",
  "best_of_group",
  "max_at_4",
  "pass_at_4",
  "turn_return",
  "gigpo",
  "gigpo_by_set",
  "gae exact",
  "turn_gae exact",
  "turn_gae exact, lambda 0",
  "turn_gae secret, lambda 0",
  "turn_gae noisy",
  "turn_gae constant",
)


def learn(
  start: TablePolicy,
  arm: str,
  *,
  seed: int,
  updates: Sequence[int],
  attempts: int,
  learning_rate: float,
) -> list[float]:
  """Trains a copy of a policy; returns J after the updates that are named.

  Arms of one seed draw from one sequence of random numbers.
  """
  rng = np.random.default_rng(seed)
  optimizer = optax.adam(learning_rate)

  @jax.jit
  def step(gradient_UXA, state, logit_UXA):
    change_UXA, state = optimizer.update(-gradient_UXA, state)
    return optax.apply_updates(logit_UXA, change_UXA), state

  rules, logit_UXA = start.rules, start.logit_UXA.astype(np.float32)
  state = optimizer.init(logit_UXA)
  found = []
  for number in range(1, max(updates) + 1):
    policy = TablePolicy(rules, np.asarray(logit_UXA))
    if arm == GRADIENT:
      gradient_UXA = policy.exact.gradient_UXA
    else:
      batch = Batch(policy, play(policy, attempts=attempts, rng=rng), seed)
      num_turns = batch.episodes.played_NU.sum()
      gradient_UXA = batch.gradient(estimate(arm, batch)) / num_turns
    logit_UXA, state = step(gradient_UXA, state, logit_UXA)
    if number in updates:
      policy = TablePolicy(rules, np.asarray(logit_UXA))
      found.append(policy.exact.expected_return)
  return found


def learn_all(
  start: TablePolicy,
  arm: str,
  *,
  seeds: int,
  updates: Sequence[int],
  **settings,
) -> list[list[float]]:
  """Trains an arm with seeds 0, 1, ...; returns J by seed and update."""
  return [
    learn(start, arm, seed=seed, updates=updates, **settings)
    for seed in range(seeds)
  ]
