"""Predicts the whole run: who waits for whom, staleness, speed and price.

A step is what the learner makes of one batch, and takes at least the longest
of three times. With T seconds of the learner, N groups of G attempts, C groups
in flight at most, S = max_staleness // versions_per_step, and X(E) episodes per
second with E in flight:

  learner    T
  rollouts   N G / X(C G)
  staleness  (T + L) / (S + 1), with L = N G / X(min(N, C) G)

The last holds since a batch may start S steps before it is taken, and not
earlier: with S = 0 nothing overlaps and a step is T + L. What varies makes a
step longer than all three; `pipeline.replay` finds by how much.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from launch.config.settings import Settings
from launch.planning.chips import Slice
from launch.planning.system.pipeline import Pace, replay
from launch.planning.system.prices import Prices
from launch.planning.system.rates import LearnerRate, RolloutRate
from launch.planning.system.workload import Workload

HOUR_S = 3600.0
# Of one core for a turn, where servers and environments are elsewhere; measured
# in bench/README.md, on a slow processor.
PLAYING_S = 1.4e-3
_MUCH = 0.5  # of a core


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
  """A run on its slices, as predicted; all shares are from 0 to 1."""

  # Seconds of a step of the learner that never waits, by part.
  learner_parts_s: Mapping[str, float]
  # The three times that a step takes at least.
  learner_s: float
  rollouts_s: float
  staleness_s: float
  step_s: float  # predicted, waiting included
  learner_waits: float  # share of time in which the learner waits for groups
  rollouts_idle: float  # share of the servers' answers per second not asked for
  staleness_mean: float  # versions from the sampling of a group to its use
  staleness_max: int
  episodes_in_flight: float  # mean
  busy_slots: float  # mean, of all servers
  usable_slots: float  # of all servers
  steps_per_hour: float
  updates_per_hour: float
  # Tokens of trajectories per second: if the learner never waited, and so.
  learner_tokens_per_s: float
  trained_tokens_per_s: float
  # Sampled tokens per second: with every slot busy, and so.
  rollout_tokens_per_s: float
  sampled_tokens_per_s: float
  dollars_per_hour: float  # of all chips; 0 if no slices are given
  dollars_per_step: float

  @property
  def limit(self) -> str:
    """The time that is longest: learner, rollouts or staleness."""
    times = {
      "learner": self.learner_s,
      "rollouts": self.rollouts_s,
      "staleness": self.staleness_s,
    }
    return max(times, key=lambda name: times[name])


def predict(
  settings: Settings,
  workload: Workload,
  learner: LearnerRate,
  rollouts: RolloutRate,
  *,
  slices: Sequence[Slice] = (),
  prices: Prices | None = None,
  seed: int = 0,
) -> System:
  """Predicts a run of `settings` at the rates of both sides.

  `slices` are all that are paid for, the learner's and each server's; without
  `prices` they cost nothing.
  """
  admission, queue = settings.admission, settings.queue
  flow = replay(
    admission,
    queue,
    Pace(
      learner_s=learner.step_s,
      lag_s=learner.lag_s,
      episodes_per_s=rollouts.episodes_per_s,
      busy_slots=rollouts.busy_slots,
      group_size=workload.group_size,
      spread=workload.spread,
    ),
    seed=seed,
  )
  num_episodes = admission.groups_per_step * workload.group_size
  answers_per_s = num_episodes * workload.num_answers / flow.step_s
  most_per_s = rollouts.answers_per_s(
    admission.max_concurrent_groups * workload.group_size
  )
  dollars = prices.per_hour(slices) if prices else 0.0
  return System(
    learner_parts_s=dict(learner.parts_s),
    learner_s=learner.step_s,
    rollouts_s=_rollouts_s(settings, workload, rollouts),
    staleness_s=_staleness_s(settings, workload, learner, rollouts),
    step_s=flow.step_s,
    learner_waits=flow.wait_share,
    rollouts_idle=max(0.0, 1 - answers_per_s / most_per_s),
    staleness_mean=flow.staleness_mean,
    staleness_max=flow.staleness_max,
    episodes_in_flight=flow.episodes_in_flight,
    busy_slots=flow.busy_slots,
    usable_slots=rollouts.slots * rollouts.num_servers,
    steps_per_hour=HOUR_S / flow.step_s,
    updates_per_hour=admission.versions_per_step * HOUR_S / flow.step_s,
    learner_tokens_per_s=learner.tokens / learner.step_s,
    trained_tokens_per_s=learner.tokens / flow.step_s,
    rollout_tokens_per_s=(rollouts.most_answers_per_s * workload.answer_tokens),
    sampled_tokens_per_s=answers_per_s * workload.answer_tokens,
    dollars_per_hour=dollars,
    dollars_per_step=dollars * flow.step_s / HOUR_S,
  )


def _rollouts_s(
  settings: Settings, workload: Workload, rollouts: RolloutRate
) -> float:
  """Seconds in which the rollouts make a batch, if nothing holds them back."""
  return _batch_s(
    settings, workload, rollouts, settings.admission.max_concurrent_groups
  )


def _staleness_s(
  settings: Settings,
  workload: Workload,
  learner: LearnerRate,
  rollouts: RolloutRate,
) -> float:
  """Seconds of a step by the bound on staleness."""
  limits = settings.admission
  together = min(limits.groups_per_step, limits.max_concurrent_groups)
  batch_s = _batch_s(settings, workload, rollouts, together)
  ahead = limits.max_staleness // limits.versions_per_step
  return (learner.step_s + batch_s) / (ahead + 1)


def _batch_s(
  settings: Settings, workload: Workload, rollouts: RolloutRate, num_groups: int
) -> float:
  size = workload.group_size
  episodes = settings.admission.groups_per_step * size
  return episodes / rollouts.episodes_per_s(num_groups * size)


def explain(system: System, settings: Settings, rollouts: RolloutRate) -> str:
  """Says in a few sentences who waits for whom, and what would help."""
  limits = settings.admission
  shares = (
    f"the learner waits {system.learner_waits:.0%} of the time, and "
    f"{system.rollouts_idle:.0%} of the rollouts' rate is not used"
  )
  in_flight = limits.max_concurrent_groups * settings.group.size
  busy = rollouts.busy_slots(in_flight)
  if system.limit == "learner":
    limit = "The learner"
    remedy = "A larger slice of the learner would help; or fewer servers do."
  elif system.limit == "staleness":
    limit = f"admission.max_staleness={limits.max_staleness}"
    remedy = "A higher max_staleness would help, or more servers."
  elif busy < 0.99 * system.usable_slots:
    limit = f"admission.max_concurrent_groups={limits.max_concurrent_groups}"
    remedy = (
      f"More groups in flight would help: {in_flight} episodes keep {busy:.0f} "
      f"of {system.usable_slots:.0f} slots busy."
    )
  else:
    limit, remedy = "The rate of the servers", "More servers would help."
  told = f"{limit} limits: {shares}. {remedy}"
  longest_s = max(system.learner_s, system.rollouts_s, system.staleness_s)
  if (lost := 1 - longest_s / system.step_s) >= 0.1:
    told += (
      f" {lost:.0%} of a step is due to variation: batches wait for their last "
      "groups. A higher max_staleness and more groups in flight hide it."
    )
  episodes_per_s = limits.groups_per_step * settings.group.size / system.step_s
  turns_per_s = episodes_per_s * rollouts.num_answers
  if (core := turns_per_s * PLAYING_S) > _MUCH:
    told += (
      f" One process plays all episodes: {turns_per_s:,.0f} turns a second "
      f"need up to {core:.0%} of its only core, for which no time is counted "
      "here (bench/README.md)."
    )
  return told
