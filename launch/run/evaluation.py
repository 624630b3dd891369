"""Evaluates a policy on held-out tasks and writes its scores."""

import collections
import dataclasses
import functools
import json
import logging
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.controller.episode import Sampling
from agentrl_jax.controller.evaluation import (
  Progress,
  TaskScore,
  draw_tasks,
  evaluate,
  metrics_of,
)
from agentrl_jax.controller.player import (
  BaselinePlayer,
  ExpertTextPlayer,
  Player,
  PolicyPlayer,
  without_expert,
)
from agentrl_jax.controller.thread import ControllerThread
from agentrl_jax.data.record_file import read_groups, write_groups
from agentrl_jax.data.records import Group, Task, Trajectory
from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.files import write_whole
from agentrl_jax.metrics import MetricsWriter
from launch.config.settings import Settings
from launch.reports import numbers
from launch.reports.progress import StageProgress
from launch.reports.summary import Evaluation, read_evaluation
from launch.run.context import RunContext
from launch.serving.service import Service
from launch.storage.run_directory import RunDirectory

_log = logging.getLogger(__name__)

SPLIT = "test"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
  """The `evaluation` section of the config."""

  num_tasks: int  # per environment
  num_sampled: int  # likewise, where answers are sampled
  num_untrained: int  # tasks for the policy that has learned nothing
  scripted: bool  # whether to score the environments' scripted baselines
  concurrency: int
  temperature: float
  timeout_s: float  # without the end of an episode

  def tasks_of(
    self, stage: str, mode: str, tasks: Sequence[Task]
  ) -> list[Task]:
    """Returns the first tasks of each environment, as many as the plan says."""
    number = self.num_sampled if mode == "sampled" else self.num_tasks
    if stage == "untrained":
      number = self.num_untrained
    seen: collections.Counter[str] = collections.Counter()
    chosen = []
    for task in tasks:
      if seen[task.name] < number:
        chosen.append(task)
      seen[task.name] += 1
    return chosen


class Evaluator:
  """Scores policies on the same set of held-out tasks."""

  def __init__(
    self,
    context: RunContext,
    plan: EvaluationPlan,
    environments: Mapping[str, Environment],
    metrics: MetricsWriter,
  ):
    self._settings, self._plan = context.settings, plan
    self._environments, self._run = environments, context.folder
    self._metrics = metrics

  def policy(self, stage: str, mode: str, service: Service) -> Evaluation:
    """Scores the weights of policy slot 0, greedy or sampled."""
    sampling = Sampling(
      temperature=0.0 if mode == "greedy" else self._plan.temperature,
      top_k=0,
      top_p=1.0,
      calls=self._settings.sampling.calls,
    )
    player = PolicyPlayer(
      environments=self._environments,
      generator=service.generator,
      codec=service.codec,
      limits=self._settings.episode,
      sampling=sampling,
      waits=self._settings.waits,
      subagent=self._settings.subagent,
    )
    if not self._run.evaluation(stage, mode).exists():
      service.settle()
    return self._filed(stage, mode, player, service.require_engine)

  def expert(self) -> Evaluation | None:
    """Scores the error-free expert of each environment that has one."""
    missing = without_expert(self._environments, SPLIT)
    if missing:
      _log.warning("no expert to compare with in %s", ", ".join(missing))
    environments = {
      name: environment
      for name, environment in self._environments.items()
      if name not in missing
    }
    if not environments:
      return None
    player = ExpertTextPlayer(
      environments=environments,
      max_turns=self._settings.episode.max_turns,
      mistakes={},
      waits=self._settings.waits,
    )
    return self._filed("expert", "greedy", player)

  def scripted(self) -> Evaluation | None:
    """Scores the scripted baselines; None without one, or if not wanted."""
    environments = {
      name: environment
      for name, environment in self._environments.items()
      if environment.baseline
    }
    if not environments or not self._plan.scripted:
      return None
    player = BaselinePlayer(
      environments=environments,
      max_turns=self._settings.episode.max_turns,
      policy=None,
      waits=self._settings.waits,
    )
    return self._filed("scripted", "greedy", player)

  def _filed(
    self,
    stage: str,
    mode: str,
    player: PolicyPlayer | ExpertTextPlayer | BaselinePlayer,
    require_answers: Callable[[], None] = lambda: None,
  ) -> Evaluation:
    """Returns the evaluation of an earlier start, else a new one.

    `require_answers` raises if the player's engine has stopped: a score over
    the tasks that were played before is not filed.
    """
    path = self._run.evaluation(stage, mode)
    if not path.exists():
      with self._run.stage(f"evaluate_{stage}_{mode}"):
        self._play(stage, mode, player, player.environments, require_answers)
    return read_evaluation(path)

  def _play(
    self,
    stage: str,
    mode: str,
    player: Player,
    environments: Mapping[str, Environment],
    require_answers: Callable[[], None],
  ) -> None:
    drawn = draw_tasks(
      environments,
      split=SPLIT,
      num_tasks=self._plan.num_tasks,
      seed=self._settings.seed,
    )
    tasks = self._plan.tasks_of(stage, mode, drawn)
    played: list[Trajectory] = []
    has_warm_start = self._settings.warm_start_epochs > 0
    title = numbers.stage_name(stage, has_warm_start=has_warm_start)
    name = f"evaluation of {title}, {mode}"
    with StageProgress(name, len(tasks)) as show:
      scores = play_once(
        player,
        tasks,
        self._settings,
        self._plan,
        name=name,
        progress=functools.partial(_show, show, played),
      )
    require_answers()
    unscored = [name for name, s in scores.items() if not s.num_tasks]
    if unscored:
      raise EnvironmentFault(
        f"{name}: no task of {', '.join(unscored)} could be scored; its faults "
        f"were {[dict(scores[n].faults) for n in unscored]}, the latest: "
        f"{'; '.join(scores[n].latest_fault for n in unscored)}. Mend what "
        "broke and start the run again: it goes on from here"
      )
    write_groups(
      self._run.trajectories_of(stage, mode), _as_groups(tasks, played)
    )
    self._metrics.write(0, metrics_of(scores), f"evaluation_{stage}_{mode}")
    _file(self._run.evaluation(stage, mode), stage, mode, scores)


def play_once(
  player: Player,
  tasks: Sequence[Task],
  settings: Settings,
  plan: EvaluationPlan,
  *,
  name: str,
  progress: Progress,
) -> dict[str, TaskScore]:
  """Plays each task once, with a run's seeds and limits; scores by task name.

  `name` is the evaluation's, for messages about a wait.
  """
  with ControllerThread() as loop:
    return loop.run(
      evaluate(
        player,
        tasks,
        concurrency=plan.concurrency,
        seed=settings.seed,
        retries=settings.retry,
        timeout_s=plan.timeout_s,
        progress=progress,
      ),
      math.inf,
      holder=f"the {name}",
    )


def read_episodes(
  run: RunDirectory, stage: str, mode: str
) -> dict[Task, Trajectory]:
  """Reads the episodes of an evaluation, by task."""
  groups = read_groups(run.trajectories_of(stage, mode))
  return {group.task: group.trajectories[0] for group in groups}


def _show(
  show: StageProgress,
  played: list[Trajectory],
  num_done: int,
  num_tasks: int,
  trajectory: Trajectory | None,
) -> None:
  del num_tasks
  if trajectory is not None:
    played.append(trajectory)
  show.update(num_done, success_by_task(played))


def success_by_task(played: Sequence[Trajectory]) -> dict[str, float]:
  """Returns the share of successes as `success/<task>`."""
  by_task: dict[str, list[bool]] = {}
  for trajectory in played:
    by_task.setdefault(trajectory.task.name, []).append(trajectory.is_success)
  return {
    f"success/{name}": sum(wins) / len(wins) for name, wins in by_task.items()
  }


def _as_groups(
  tasks: Sequence[Task], played: Sequence[Trajectory]
) -> list[Group]:
  """Returns groups of one trajectory, in the order of the tasks."""
  order = {task: n for n, task in enumerate(tasks)}
  return [
    Group(t.group_id, t.task, (t,))
    for t in sorted(played, key=lambda t: order[t.task])
  ]


def scores_to_json(scores: Mapping[str, TaskScore]) -> dict[str, object]:
  """Returns the scores by task, as `launch.reports.summary` reads them."""
  return {
    name: {
      "n": score.num_tasks,
      "success": score.success_rate,
      "low": score.interval[0],
      "high": score.interval[1],
      "reward": score.mean_reward,
      "lost": score.num_lost,
      "statuses": dict(score.statuses),
      "faults": dict(score.faults),
    }
    for name, score in scores.items()
  }


def _file(
  path: pathlib.Path, stage: str, mode: str, scores: Mapping[str, TaskScore]
) -> None:
  body = {"stage": stage, "mode": mode, "tasks": scores_to_json(scores)}
  write_whole(path, json.dumps(body, indent=2))
