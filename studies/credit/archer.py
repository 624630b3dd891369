"""Learning curves of critics that are learned on the way: ArCHer and turn PPO.

An update plays a group of attempts for every secret, and then:

- grpo, and exact advantages: a step of the policy;
- turn PPO: a step with `turn_gae` of a learned V, then steps of V on the
  returns of these attempts; V(h, c) if it sees the secret;
- ArCHer (arXiv:2402.19446): steps of twin Q and V on turns of a replay, then
  steps of the policy by REINFORCE on answers that it gives at replayed states,
  with min Q - min V. The first updates train the critic alone.

The critic's steps are as many in all arms. Answers are counted where they are
generated: in attempts, for the target of V, and for the policy's step. A curve
can be read at equal attempts and at equal answers; the two are not alike.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import optax

from studies.credit import learned as credit_learned
from studies.credit.estimators import Batch, estimate
from studies.credit.exact import Episodes, TablePolicy, draw_calls, play
from studies.credit.network import fit, new_network, new_state
from studies.credit.replay import Replay, recorded_turns

TURNS = 128  # in a step of a critic
CRITIC_STEPS = 20  # of an update
ACTOR_TURNS = 256  # states of a replay that the policy answers for its step
WARM_UP = 5  # updates of ArCHer that train the critic alone
CAPACITY = 20_000  # of the replay, in turns: about 40 updates
RATES = (0.1, 0.3, 1.0)  # of the policy
TUNING_SEEDS = (100, 101)


@dataclasses.dataclass(frozen=True)
class ArcherSettings:
  """Variants of ArCHer."""

  replay: bool = True
  actor_steps: int = 3


ARCHER: Mapping[str, ArcherSettings] = {
  "ArCHer": ArcherSettings(),
  "ArCHer without replay": ArcherSettings(replay=False),
  "ArCHer, one actor step": ArcherSettings(actor_steps=1),
}
# What V sees.
TURN_PPO: Mapping[str, str] = {
  "turn PPO": "nothing",
  "turn PPO with secret": "secret",
}
ESTIMATED = ("exact", "grpo")
ARMS = (*ESTIMATED, *TURN_PPO, *ARCHER)


@dataclasses.dataclass(frozen=True)
class Point:
  """A point of a learning curve."""

  attempts: int
  answers: int  # generated until here
  expected_return: float  # exact
  age: float  # mean age of the critic's turns, in updates


class _Policy:
  """The table and its optimizer."""

  def __init__(self, start: TablePolicy, learning_rate: float):
    self._optimizer = optax.adam(learning_rate)
    self.table = TablePolicy(start.rules, start.logit_UXA.astype(np.float32))
    self._state = self._optimizer.init(self.table.logit_UXA)
    self._update = jax.jit(self._optimizer.update)

  def ascend(self, gradient_UXA: np.ndarray) -> None:
    """Takes a step along the gradient of the return."""
    change_UXA, self._state = self._update(-gradient_UXA, self._state)
    logit_UXA = self.table.logit_UXA + np.asarray(change_UXA)
    self.table = TablePolicy(self.table.rules, logit_UXA)


class _Estimated:
  """Updates by an estimator of `estimators`."""

  def __init__(self, arm: str, seed: int):
    self._arm, self._seed = arm, seed

  def update(self, policy: _Policy, episodes: Episodes) -> tuple[int, float]:
    """Takes a step; returns the answers generated for it, and their age."""
    batch = Batch(policy.table, episodes, self._seed)
    gradient_UXA = batch.gradient(estimate(self._arm, batch))
    policy.ascend(gradient_UXA / episodes.played_NU.sum())
    return 0, 0.0


class _TurnPPO:
  """Updates by `turn_gae` of a V that is fitted to each update's returns."""

  def __init__(self, start: TablePolicy, sees: str, seed: int):
    self._params = new_network(start.rules, seed=seed)
    self._state = new_state(self._params)
    self._sees, self._rng = sees, np.random.default_rng((seed, 1))

  def update(self, policy: _Policy, episodes: Episodes) -> tuple[int, float]:
    """Takes a step with V as it is, then fits V."""
    batch = Batch(policy.table, episodes, seed=0)
    advantages = credit_learned.gae_of(
      self._params, self._sees, 0.95, self._rng
    )
    gradient_UXA = batch.gradient(advantages(batch))
    policy.ascend(gradient_UXA / episodes.played_NU.sum())
    batches = credit_learned.value_batches(
      policy.table.rules,
      episodes,
      credit_learned.seen_secret(episodes, self._sees, self._rng),
      steps=CRITIC_STEPS,
      turns=TURNS,
      rng=self._rng,
    )
    self._params, self._state = fit(
      credit_learned.value_loss, self._params, self._state, batches
    )
    return 0, 0.0


class Archer:
  """Updates by ArCHer.

  Args:
    start: the policy at the start.
    settings: the variant.
    seed: of the networks and of all draws.
  """

  def __init__(self, start: TablePolicy, settings: ArcherSettings, seed: int):
    self.critic = credit_learned.new_twins(start.rules, seed=seed)
    self._replay = Replay(CAPACITY)
    self._settings, self._version = settings, 0
    self._rng = np.random.default_rng((seed, 1))

  def update(self, policy: _Policy, episodes: Episodes) -> tuple[int, float]:
    """Adds the attempts, fits the critic, and takes the policy's steps.

    The critic's answers are those of the policy which played the attempts. The
    policy's are drawn anew for each of its steps, by what it is then.
    """
    if not self._settings.replay:
      self._replay.clear()
    rules = policy.table.rules
    self._replay.add(recorded_turns(rules, episodes, version=self._version))
    turns, age = self._replay.sample(
      self._rng, CRITIC_STEPS * TURNS, version=self._version
    )
    batches = credit_learned.twin_batches(
      policy.table, turns, steps=CRITIC_STEPS, rng=self._rng
    )
    self.critic = credit_learned.fit_twins(self.critic, batches)
    answers = len(turns)
    if self._version >= WARM_UP:
      for _ in range(self._settings.actor_steps):
        policy.ascend(self.gradient(policy.table))
        answers += ACTOR_TURNS
    self._version += 1
    return answers, age

  def gradient(self, policy: TablePolicy) -> np.ndarray:
    """Returns REINFORCE's gradient on fresh answers at replayed states."""
    turns, _ = self._replay.sample(
      self._rng, ACTOR_TURNS, version=self._version
    )
    state = (turns.turn_N, turns.set_N)
    policy_NA = policy.probability_UXA[state]
    call_N = draw_calls(policy_NA, self._rng)
    advantage_N = credit_learned.twin_advantages(
      self.critic[0], policy.rules, *state, call_N
    )
    score_NA = np.eye(policy_NA.shape[1])[call_N] - policy_NA
    gradient_UXA = np.zeros(policy.rules.shape)
    np.add.at(gradient_UXA, state, advantage_N[:, None] * score_NA)
    return gradient_UXA / len(call_N)


def learn(
  start: TablePolicy,
  arm: str,
  *,
  seed: int,
  attempts: int,
  learning_rate: float,
  updates: int,
  answers: int = 0,
) -> list[Point]:
  """Trains a copy of a policy.

  Args:
    start: the policy at the start.
    arm: one of `ARMS`.
    seed: arms of one seed draw attempts from one sequence of random numbers.
    attempts: of each group.
    learning_rate: of the policy.
    updates: the least number.
    answers: it goes on until so many are generated.

  Returns:
    Points at every tenth more answers, at `updates`, and at the end.
  """
  rng = np.random.default_rng(seed)
  policy, learner = _Policy(start, learning_rate), _learner(start, arm, seed)
  points, number, generated = [], 0, 0
  while number < updates or generated < answers:
    episodes = play(policy.table, attempts=attempts, rng=rng)
    fresh, age = learner.update(policy, episodes)
    number += 1
    generated += int(episodes.played_NU.sum()) + fresh
    due = not points or generated >= 1.1 * points[-1].answers
    if due or number == updates or generated >= answers:
      points.append(
        Point(
          number * len(episodes.secret_N),
          generated,
          policy.table.exact.expected_return,
          age,
        )
      )
  return points


def _learner(start: TablePolicy, arm: str, seed: int):
  if arm in ARCHER:
    return Archer(start, ARCHER[arm], seed)
  if arm in TURN_PPO:
    return _TurnPPO(start, TURN_PPO[arm], seed)
  return _Estimated(arm, seed)


def at_attempts(points: Sequence[Point], attempts: int) -> float:
  """Returns the last return that was reached with so many attempts."""
  return [p for p in points if p.attempts <= attempts][-1].expected_return


def at_answers(points: Sequence[Point], answers: int, start: float) -> float:
  """Returns the last return that was reached with so many answers.

  `start` is the return before any; NaN if the curve ended long before.
  """
  if points[-1].answers < 0.97 * answers:
    return math.nan
  reached = [p.expected_return for p in points if p.answers <= answers]
  return reached[-1] if reached else start


def choose_rate(
  start: TablePolicy,
  arm: str,
  *,
  attempts: int,
  updates: int,
  rates: Sequence[float] = RATES,
) -> float:
  """Returns the learning rate with the highest return at the last update.

  On seeds of its own, the same for all arms. Of one rate it is that one.
  """
  if len(rates) == 1:
    return rates[0]

  def last_return(seed: int, rate: float) -> float:
    points = learn(
      start,
      arm,
      seed=seed,
      attempts=attempts,
      learning_rate=rate,
      updates=updates,
    )
    return points[-1].expected_return

  means = [
    np.mean([last_return(seed, rate) for seed in TUNING_SEEDS])
    for rate in rates
  ]
  return rates[int(np.argmax(means))]
