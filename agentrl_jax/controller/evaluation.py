"""Evaluates a player on held-out tasks.

Every task is played once; the score is a success rate with an interval.
Episodes that a fault broke are counted apart and never scored. Evaluation knows
nothing of groups, queue or admission: it measures the player, not the pipeline.
"""

import collections
import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Container, Mapping, Sequence

from agentrl_jax.controller.groups.group import RetryLimits, play_all
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import Player
from agentrl_jax.controller.waiting import deadline
from agentrl_jax.data.records import EpisodeSpec, Task, Trajectory, seed_of
from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import Section, key, seconds

CONFIDENCE_Z = 1.959963984540054  # of a two-sided 95 % interval

# Called after every task: tasks done, tasks in all, and the trajectory.
Progress = Callable[[int, int, Trajectory | None], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationPlan(Section, section="evaluation"):
  """The `evaluation` section of the config."""

  num_tasks: int = key(256, "held-out tasks per environment", at_least=1)
  num_sampled: int = key(256, "tasks of num_tasks that are also sampled")
  num_untrained: int = key(64, "tasks of num_tasks for the untrained policy")
  scripted: bool = key(
    True, "score the environments' scripted baselines beside it"
  )
  concurrency: int = key(
    256, "episodes at once; likewise of the warm start's experts", at_least=1
  )
  temperature: float = key(1.0, "of answers in the sampled evaluation")
  timeout_s: float = seconds(
    3600.0, "longest wait for the end of another episode"
  )
  agents: bool = key(
    False,
    "let the agents of agents.port play the policy's evaluations at the ends "
    "of stages, as they play those during RL. False: the environments do",
  )
  every: int = key(
    0,
    "updates of RL between evaluations of its newest version on tasks that "
    "are not trained on; 0: none. See docs/reading_a_run.md",
  )
  split: str = key(
    "train",
    "of the tasks of evaluations during RL; train holds them out of the warm "
    "start and of RL",
  )
  num_tasks_during: int = key(
    64, "tasks per environment during RL, played greedily", at_least=1
  )
  num_sampled_during: int = key(64, "tasks of these that are also sampled")
  concurrency_during: int = key(
    32, "episodes at once, beside those of training", at_least=1
  )

  def tasks_of(
    self, stage: str, mode: str, tasks: Sequence[Task]
  ) -> list[Task]:
    """Returns the first tasks of each environment, as many as the plan says."""
    return first_tasks(tasks, self.number_of(stage, mode))

  def number_of(self, stage: str, mode: str) -> int:
    """Returns the number of tasks of each environment; 0: it is left out."""
    if stage == "untrained":
      return self.num_untrained
    return self.num_sampled if mode == "sampled" else self.num_tasks


def first_tasks(tasks: Sequence[Task], number: int) -> list[Task]:
  """Returns the first `number` tasks of each environment, in their order."""
  seen: collections.Counter[str] = collections.Counter()
  chosen = []
  for task in tasks:
    if seen[task.name] < number:
      chosen.append(task)
    seen[task.name] += 1
  return chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskScore:
  """Results of the tasks of one environment."""

  num_tasks: int  # played and scored
  num_lost: int  # not scored: every try was broken by a fault
  num_successes: int
  mean_reward: float  # the environment's verdict; NaN if nothing was scored
  statuses: Mapping[str, int]
  faults: Mapping[str, int]  # by kind, retries counted each
  latest_fault: str = ""

  @property
  def success_rate(self) -> float:
    """Share of scored tasks that succeeded; NaN without a scored task."""
    return self.num_successes / self.num_tasks if self.num_tasks else math.nan

  @property
  def interval(self) -> tuple[float, float]:
    """The 95 % confidence interval of the success rate."""
    return wilson_interval(self.num_successes, self.num_tasks)


def draw_tasks(
  environments: Mapping[str, Environment],
  *,
  split: str,
  num_tasks: int,
  seed: int,
) -> list[Task]:
  """Draws `num_tasks` per environment, or all; equal for equal seeds.

  Environments alternate in the list, so that none is left for the end.
  """
  drawn = []
  for name, environment in sorted(environments.items()):
    indices = environment.indices(split)
    chosen = random.Random(seed_of(seed, name, split)).sample(
      range(len(indices)), min(num_tasks, len(indices))
    )
    # In the order of the draw: the first of them are a sample of all, too.
    drawn.append([Task(name, split, indices[i]) for i in chosen])
  rounds = itertools.chain.from_iterable(itertools.zip_longest(*drawn))
  return [task for task in rounds if task is not None]


def draw_tasks_during(
  environments: Mapping[str, Environment], plan: EvaluationPlan, *, seed: int
) -> list[Task]:
  """Draws the tasks that are played during RL, none if nothing is.

  Whoever draws tasks to train on leaves these out. Raises `ConfigError` if more
  than half of what could be trained on would be held out.
  """
  if not plan.every:
    return []
  number, split = plan.num_tasks_during, plan.split
  sizes = {name: len(e.indices(split)) for name, e in environments.items()}
  least = 2 * number if split == "train" else 1
  if small := {name: size for name, size in sizes.items() if size < least}:
    raise ConfigError(
      f"evaluation.num_tasks_during={number} tasks of evaluation.split="
      f"{split!r} are to be played during RL, and it has {small}; of 'train' "
      "at most half is held out of training. Lower the number, name another "
      "split of these environments, or set evaluation.every=0"
    )
  return draw_tasks(environments, split=split, num_tasks=number, seed=seed)


async def evaluate(
  player: Player,
  tasks: Sequence[Task],
  *,
  concurrency: int,
  seed: int,
  retries: RetryLimits,
  timeout_s: float,
  attempts: int = 1,
  skip: Container[tuple[Task, int]] = (),
  progress: Progress = lambda num_done, num_tasks, trajectory: None,
) -> dict[str, TaskScore]:
  """Plays each task, `concurrency` at a time; scores by environment.

  Every task is played once before any is played again, up to `attempts` times;
  `skip` has tasks and attempts (from 0) that are left out. Waits for all of
  them, and raises `DeadlineExceeded` if none ends for `timeout_s`. Cancelling
  leaves no session open; a bug cancels the other tasks and is raised.
  """
  monitor = Monitor()
  num_ended = 0
  specs = [
    _spec(task, attempt, seed)
    for attempt in range(attempts)
    for task in tasks
    if (task, attempt) not in skip
  ]

  async with deadline(
    timeout_s,
    waiter="the evaluation",
    holder="any of its episodes to end",
    look_at=lambda: (
      f"{getattr(player, 'look_at', 'the engine and the environments')}; "
      f"{num_ended} of "
      f"{len(specs)} episodes have ended; if one takes longer, set a longer "
      "--config.evaluation.timeout_s"
    ),
  ) as restart:

    def on_end(trajectory: Trajectory | None) -> None:
      nonlocal num_ended
      num_ended += 1
      progress(num_ended, len(specs), trajectory)
      restart()

    trajectories = await play_all(
      specs, player, retries, monitor, concurrency=concurrency, on_end=on_end
    )
  played = [(s.task, t) for s, t in zip(specs, trajectories, strict=True)]
  names = sorted({task.name for task in tasks})
  return {name: _score(name, played, monitor) for name in names}


def _spec(task: Task, attempt: int, seed: int) -> EpisodeSpec:
  words = (task.name, task.split, task.index)
  return EpisodeSpec(
    task=task,
    group_id=f"{task.name}-{task.split}-{task.index}",
    attempt=attempt,
    seed=seed_of(seed, *words, *([attempt] if attempt else [])),
  )


def wilson_interval(num_successes: int, num_tasks: int) -> tuple[float, float]:
  """Returns Wilson's 95 % score interval of a share.

  It is valid at 0, at 1 and for few tasks: E. B. Wilson, JASA 22 (1927),
  209-212. Without a task it is (0, 1).
  """
  if num_tasks == 0:
    return 0.0, 1.0
  share, z = num_successes / num_tasks, CONFIDENCE_Z
  shrink = 1 + z**2 / num_tasks
  center = (share + z**2 / (2 * num_tasks)) / shrink
  spread = share * (1 - share) / num_tasks + z**2 / (4 * num_tasks**2)
  reach = z * math.sqrt(spread) / shrink
  # At the ends the bound is exact, and rounding would miss it.
  low = center - reach if num_successes else 0.0
  high = center + reach if num_successes < num_tasks else 1.0
  return low, high


def metrics_of(scores: Mapping[str, TaskScore]) -> dict[str, float]:
  """Returns metrics `eval/*/TASK`; `eval/success` is the mean over tasks."""
  metrics: dict[str, float] = {}
  for name, score in scores.items():
    low, high = score.interval
    metrics |= {
      f"eval/success/{name}": score.success_rate,
      f"eval/success_low/{name}": low,
      f"eval/success_high/{name}": high,
      f"eval/reward/{name}": score.mean_reward,
      f"eval/tasks/{name}": float(score.num_tasks),
      f"eval/lost/{name}": float(score.num_lost),
    }
    for status, count in score.statuses.items():
      metrics[f"eval/status/{status}/{name}"] = float(count)
  rates = [score.success_rate for score in scores.values()]
  metrics["eval/success"] = sum(rates) / len(rates) if rates else math.nan
  return metrics


def _score(
  name: str, played: Sequence[tuple[Task, Trajectory | None]], monitor: Monitor
) -> TaskScore:
  results = [trajectory for task, trajectory in played if task.name == name]
  scored = [trajectory for trajectory in results if trajectory is not None]
  counts = monitor.tasks[name]
  total = sum(trajectory.reward for trajectory in scored)
  return TaskScore(
    num_tasks=len(scored),
    num_lost=len(results) - len(scored),
    num_successes=sum(trajectory.is_success for trajectory in scored),
    mean_reward=total / len(scored) if scored else math.nan,
    statuses={
      status.value.replace(" ", "_"): count
      for status, count in counts.statuses.items()
    },
    faults=dict(counts.faults),
    latest_fault=counts.latest_fault,
  )
