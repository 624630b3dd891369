"""Reads the rates of both sides from the metrics of a run.

For a run whose engine is in its own process: servers elsewhere keep their
metrics to themselves. Rates are those of busy time, so waiting is not among
them and can be predicted:

- learner: seconds from one step's metrics to the next, less `seconds/wait`;
- engine: seconds of its steps, times the slots that were busy in them, over the
  answers; an idle engine makes no steps;
- environment: the remainder of an episode's seconds, the controller's included;
- spread: that of log-normal times whose slowest of a group takes as much longer
  than the mean as the run's groups take longer than its episodes.

An answer keeps its seconds at any load, so that predictions at loads above the
run's are too high where a step takes longer the more slots are busy.
"""

import dataclasses
import itertools
import math
import pathlib
import statistics
from collections.abc import Sequence

from agentrl_jax.controller.metrics import WINDOW
from agentrl_jax.errors import ConfigError
from agentrl_jax.metrics import FILE, Row, read_metrics
from launch.config.settings import Settings
from launch.planning.roofline import Attempts
from launch.planning.system.rates import LearnerRate, RolloutRate, usable_slots
from launch.planning.system.workload import Workload
from launch.run.group_source import STAGE

LEAST_STEPS = 5  # that are measured
_WARM_UP = 0.2  # of the steps, in which programs are compiled
_QUANTILES = 1000
_MOST_SPREAD = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
  """Rates of a run, and what came of them."""

  workload: Workload
  learner: LearnerRate
  rollouts: RolloutRate
  num_steps: int
  step_s: float
  learner_waits: float  # share of time in which the learner waited
  staleness_mean: float  # versions, since the start of the run


def read_measured(
  run: pathlib.Path, settings: Settings, *, num_servers: int = 1
) -> Measured:
  """Reads the rates of the run in a folder.

  `num_servers` engines like the run's are assumed. Raises `ConfigError` if the
  run has too few steps, or an engine elsewhere.
  """
  if not (run / FILE).exists():
    raise ConfigError(
      f"--measured={run} has no {FILE}: name the folder of a run, such as "
      "runs/quickstart"
    )
  rows = [row for row in read_metrics(run / FILE) if row.stage == STAGE]
  skipped = max(1, math.ceil(_WARM_UP * len(rows)))
  if len(rows) - skipped < LEAST_STEPS:
    raise ConfigError(
      f"--measured={run} has metrics of {len(rows)} steps of {STAGE}; rates "
      f"need {LEAST_STEPS + 2} or more: let it train further"
    )
  if "engine/steps" not in rows[-1].values:
    raise ConfigError(
      f"--measured={run} has no metrics of an engine, which a run has if its "
      "engine is in its own process (rollouts.servers='')"
    )
  if not any(name.startswith("rollout/group_s/") for name in rows[-1].values):
    raise ConfigError(
      f"--measured={run} has no rollout/group_s, the seconds of its groups, "
      "which older code did not write: train it further, or another run"
    )
  window = _Window(rows[skipped - 1 :], settings)
  return Measured(
    workload=window.workload(),
    learner=window.learner(),
    rollouts=window.rollouts(num_servers),
    num_steps=window.num_steps,
    step_s=window.elapsed_s / window.num_steps,
    learner_waits=window.wait_s / window.elapsed_s,
    staleness_mean=rows[-1].values["staleness/mean"],
  )


def require_same_work(settings: Settings, of_run: Settings) -> None:
  """Raises `ConfigError` if rates depend on settings that are not the run's.

  Waiting alone may be asked about: staleness, groups in flight, the queue.
  """

  def work(s: Settings) -> dict[str, object]:
    return {
      "tasks.names": tuple(s.environments),
      "group.size": s.group.size,
      "admission.groups_per_step": s.admission.groups_per_step,
      "admission.versions_per_step": s.admission.versions_per_step,
      "engine": s.engine,
      "cross_policy": s.cross_policy,
      "episode": s.episode,
      "model": s.model,
      "train": s.batch,
    }

  now, then = work(settings), work(of_run)
  if changed := [key for key, value in now.items() if value != then[key]]:
    raise ConfigError(
      f"--measured: {', '.join(changed)} of --config differ from the run's, "
      "and its rates depend on them: give the run's config, with changes of "
      "admission.max_staleness, admission.max_concurrent_groups and queue "
      "alone"
    )


class _Window:
  """Consecutive rows of a run; the first one is where counting starts."""

  def __init__(self, rows: Sequence[Row], settings: Settings):
    self._rows, self._settings = rows, settings
    self._first, self._last = rows[0].values, rows[-1].values
    self.num_steps = len(rows) - 1
    self.elapsed_s = rows[-1].time_s - rows[0].time_s
    self.wait_s = math.fsum(row.values["seconds/wait"] for row in rows[1:])
    self._finished = {
      task: self._increase(f"rollout/finished/{task}")
      for task in settings.task_ids
    }
    self._num_episodes = math.fsum(self._finished.values())
    groups = (f"groups/finished/{task}" for task in settings.task_ids)
    if not self._num_episodes or not math.fsum(map(self._increase, groups)):
      raise ConfigError(
        "--measured: the run finished no group in the steps that are "
        "measured: let it train further"
      )
    self.num_answers = self._mean("rollout/turns")
    self.sampled_tokens = (
      math.fsum(
        self._increase(f"rollout/sampled_tokens/{task}")
        for task in settings.task_ids
      )
      / self._num_episodes
    )

  def learner(self) -> LearnerRate:
    """Returns seconds of a step that do not wait."""
    limits = self._settings.admission
    episodes = limits.groups_per_step * self._settings.group.size
    return LearnerRate(
      parts_s={
        "all, measured": (self.elapsed_s - self.wait_s) / self.num_steps
      },
      tokens=episodes * self._mean("rollout/tokens"),
    )

  def rollouts(self, num_servers: int) -> RolloutRate:
    """Returns seconds of an answer in its slot, and of the environment."""
    busy_s = self._increase("engine/prefill_s")
    busy_s += self._increase("engine/decode_s")
    step_s = busy_s / self._increase("engine/steps")
    slot_steps = math.fsum(
      _slot_steps(before, after, self._settings.engine.slots)
      for before, after in itertools.pairwise(self._rows)
    )
    answers = self._num_episodes * self.num_answers
    answer_s = slot_steps * step_s / answers
    episode_s = self._mean("rollout/episode_s")
    environment_s = episode_s / self.num_answers - answer_s - self._queue_s()
    return RolloutRate(
      num_servers=num_servers,
      slots=usable_slots(self._settings),
      answer_s=answer_s,
      prefill_s=0.0,
      environment_s=max(0.0, environment_s),
      num_answers=self.num_answers,
    )

  def workload(self) -> Workload:
    """Returns the means of the run's episodes, and their spread."""
    size = self._settings.group.size
    group_s = self._mean("rollout/group_s", "groups/finished")
    slowest = group_s / self._mean("rollout/episode_s")
    return Workload(
      attempts=Attempts(
        prompt=0, turns=max(1, round(self._mean("rollout/tokens"))), num=size
      ),
      num_answers=self.num_answers,
      answer_tokens=self.sampled_tokens / self.num_answers,
      environment_s=self.rollouts(1).environment_s,
      spread=spread_of(slowest, size),
      group_size=size,
    )

  def _increase(self, name: str) -> float:
    return self._last.get(name, 0.0) - self._first.get(name, 0.0)

  def _mean(self, name: str, counter: str = "rollout/finished") -> float:
    """Mean of a metric over what `counter` counted in these rows, of all tasks.

    The metric itself is a mean over the latest `WINDOW`. Until so many have
    finished, it is one over all since the start of the run, from which those
    before these rows are taken out. Later, the rows are averaged.
    """
    total = weight = 0.0
    for task in self._finished:
      key, count = f"{name}/{task}", f"{counter}/{task}"
      if key not in self._last:
        continue  # nothing of this task has finished
      number = self._increase(count)
      weight += number
      if self._last[count] <= WINDOW:
        before = self._first.get(count, 0.0)
        total += self._last[count] * self._last[key]
        total -= before and before * self._first[key]
      elif number:
        total += number * statistics.fmean(
          row.values[key] for row in self._rows[1:] if key in row.values
        )
    return total / weight

  def _queue_s(self) -> float:
    """Mean seconds of a request before it has a slot."""
    waits, weights = [], []
    for row in self._rows[1:]:
      for k in range(len(self._settings.engine.slots)):
        if f"engine/wait_s/policy_slot{k}" in row.values:
          waits.append(row.values[f"engine/wait_s/policy_slot{k}"])
          weights.append(self._settings.engine.slots[k])
    return statistics.fmean(waits, weights) if waits else 0.0


def _slot_steps(before: Row, after: Row, slots: Sequence[int]) -> float:
  """Busy slots, summed over the engine's steps between two rows."""
  steps = after.values["engine/steps"] - before.values["engine/steps"]
  occupied = math.fsum(
    number * after.values.get(f"engine/slot_occupancy/policy_slot{k}", 0.0)
    for k, number in enumerate(slots)
  )
  return steps * occupied


def slowest_of(spread: float, number: int) -> float:
  """Returns the mean of the largest of `number` log-normal times of mean 1.

  `spread` is their standard deviation. With F their distribution, the largest
  is the quantile F^-1(u^(1 / number)) of a uniform u.
  """
  variance = math.log1p(spread**2)
  if not variance:
    return 1.0
  logs = statistics.NormalDist(-variance / 2, math.sqrt(variance))
  return statistics.fmean(
    math.exp(logs.inv_cdf(((n + 0.5) / _QUANTILES) ** (1 / number)))
    for n in range(_QUANTILES)
  )


def spread_of(slowest: float, number: int) -> float:
  """Inverts `slowest_of`: 0 if nothing varies, at most `_MOST_SPREAD`."""
  low, high = 0.0, _MOST_SPREAD
  if number == 1 or slowest <= 1:
    return 0.0
  while high - low > 1e-4:
    middle = (low + high) / 2
    if slowest_of(middle, number) < slowest:
      low = middle
    else:
      high = middle
  return low
