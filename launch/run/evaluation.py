"""Evaluates a policy on held-out tasks and writes its scores."""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import json
import logging
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.controller.episode import Sampling
from agentrl_jax.controller.evaluation import (
  EvaluationPlan,
  Progress,
  TaskScore,
  draw_tasks,
  evaluate,
  first_tasks,
  metrics_of,
)
from agentrl_jax.controller.groups.group import FAULTS
from agentrl_jax.controller.player import (
  BaselinePlayer,
  ExpertTextPlayer,
  Player,
  PolicyPlayer,
  without_expert,
)
from agentrl_jax.controller.thread import CALL_S, ControllerThread
from agentrl_jax.data.record_file import read_groups, write_groups
from agentrl_jax.data.records import Group, Task, Trajectory
from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.files import write_whole
from agentrl_jax.rollout.api import Generator
from agentrl_jax.train.collapse.answers import episode_metrics
from launch.config.settings import Settings
from launch.reports import curves, numbers
from launch.reports.metrics_file import MetricsWriter, read_metrics
from launch.reports.progress import StageProgress
from launch.reports.summary import Evaluation, read_evaluation
from launch.run.context import RunContext
from launch.serving.agents import AgentServer, require_agents
from launch.serving.service import Service
from launch.storage.run_directory import RunDirectory

_log = logging.getLogger(__name__)

SPLIT = "test"
_MOST_LOST = 0.1  # share of an evaluation's tasks, if it is to be compared
POLL_S = 1.0  # between polls for a signal to stop
# Makes what an evaluation needs in its event loop, such as a server.
Serving = Callable[[], contextlib.AbstractAsyncContextManager[None]]


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
    """Scores the weights of policy slot 0, greedy or sampled.

    Agents play if the config says so, or an environment is theirs alone.
    """
    temperature = _temperature(self._settings, mode)
    player: Player = policy_player(
      self._settings, self._environments, service, temperature
    )
    serving: Serving = contextlib.nullcontext
    environments = self._environments.values()
    if self._plan.agents or any(e.is_of_agents for e in environments):
      require_agents(self._settings)
      root = self._run.root
      server = AgentServer(self._settings, service, root.name, root)
      player = server.evaluated(temperature)
      serving = server.serving
    if not self._run.evaluation(stage, mode).exists():
      service.settle()
    return self._filed(stage, mode, player, service.require_engine, serving)

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
    player: Player,
    require_answers: Callable[[], None] = lambda: None,
    serving: Serving = contextlib.nullcontext,
  ) -> Evaluation:
    """Returns the evaluation of an earlier start, else a new one.

    `require_answers` raises if the player's engine has stopped: a score over
    the tasks that were played before is not filed.
    """
    path = self._run.evaluation(stage, mode)
    if not path.exists():
      with self._run.stage(f"evaluate_{stage}_{mode}"):
        self._play(stage, mode, player, require_answers, serving)
    return read_evaluation(path)

  def _play(
    self,
    stage: str,
    mode: str,
    player: Player,
    require_answers: Callable[[], None],
    serving: Serving,
  ) -> None:
    drawn = draw_tasks(
      getattr(player, "environments", self._environments),
      split=SPLIT,
      num_tasks=self._plan.num_tasks,
      seed=self._settings.seed,
    )
    tasks = self._plan.tasks_of(stage, mode, drawn)
    played: list[Trajectory] = []
    has_warm_start = self._settings.warm_start.epochs > 0
    title = numbers.stage_name(stage, has_warm_start=has_warm_start)
    name = f"evaluation of {title}, {mode}"
    with StageProgress(name, len(tasks)) as show:
      scores = play_tasks(
        player,
        tasks,
        self._settings,
        self._plan,
        name=name,
        progress=functools.partial(_show, show, played),
        serving=serving,
      )
    require_answers()
    for each, found in scores.items():
      asked = found.num_tasks + found.num_lost
      if found.num_lost > _MOST_LOST * asked:
        logging.warning(
          f"{name}: {found.num_lost} of {asked} tasks of {each} were lost to "
          f"faults {dict(found.faults)}; its score is of the others alone"
        )
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
    values = metrics_of(scores) | episode_metrics(played)
    self._metrics.write(0, values, f"evaluation_{stage}_{mode}")
    _file(self._run.evaluation(stage, mode), stage, mode, scores)


def policy_player(
  settings: Settings,
  environments: Mapping[str, Environment],
  service: Service,
  temperature: float,
  generator: Generator | None = None,
) -> PolicyPlayer:
  """Makes a player of policy slot 0; `generator` answers, if given."""
  return PolicyPlayer(
    environments=environments,
    generator=generator or service.generator,
    codec=service.codec,
    limits=settings.episode,
    sampling=Sampling(
      temperature=temperature, top_k=0, top_p=1.0, calls=settings.sampling.calls
    ),
    waits=settings.waits,
    subagent=settings.subagent,
  )


def _temperature(settings: Settings, mode: str) -> float:
  return 0.0 if mode == "greedy" else settings.evaluation.temperature


# By mode: the metrics, and episodes that are kept.
_Results = dict[str, tuple[dict[str, float], list[Trajectory]]]


class Validation:
  """Evaluates the newest version every `evaluation.every` updates of RL.

  It plays tasks that are not trained on, in the event loop that plays the
  groups, through policy slot 0:

  - there is one evaluation at a time; one that is due meanwhile is left out;
  - no episode of it is in a group, so none counts for staleness or admission;
  - the learner's thread alone writes its metrics, after those of the updates
    whose versions it had, so that a resume removes what it will play again;
  - what breaks in it costs the evaluation, and not the run.
  """

  def __init__(
    self,
    context: RunContext,
    environments: Mapping[str, Environment],
    service: Service,
    metrics: MetricsWriter,
    tasks: Sequence[Task],
    *,
    generator: Generator | None = None,
    adapt: Callable[[PolicyPlayer], Player] = lambda player: player,
    agents: AgentServer | None = None,
  ) -> None:
    """`adapt` makes a player play in lockstep, by the `generator`.

    Episodes are offered to `agents`, if there are any.
    """
    self._agents = agents
    self._settings, self._run = context.settings, context.folder
    self._interrupts = context.interrupts
    self._plan, self._metrics = context.settings.evaluation, metrics
    self._num_updates = context.config.train.steps
    self._service = service
    numbers_of_tasks = {
      "greedy": self._plan.num_tasks_during,
      "sampled": self._plan.num_sampled_during,
    }
    self._tasks = {
      mode: first_tasks(tasks, number)
      for mode, number in numbers_of_tasks.items()
      if number
    }
    self._players: dict[str, Player] = {
      mode: agents.evaluated(_temperature(context.settings, mode))
      if agents
      else adapt(
        policy_player(
          context.settings,
          environments,
          service,
          _temperature(context.settings, mode),
          generator,
        )
      )
      for mode in self._tasks
    }
    self._latest = -1  # version that the latest evaluation began with
    self._due = -1  # the latest multiple of `every` that had its turn
    self._num_kept = context.config.report.keep_groups
    self._mode = context.settings.checkpoint.keep_best
    self._scores: dict[int, float] = {}  # in that mode, by version
    self._num_left_out = 0  # since the start
    self.newest: dict[str, float] = {}  # success, for the terminal
    self._running: concurrent.futures.Future[_Results] | None = None

  def resume(self) -> None:
    """Finds out, from the metrics that are left, what was evaluated."""
    self._latest, self._scores = -1, {}
    for row in read_metrics(self._metrics.path):
      stage, _, mode = row.stage.partition("_")
      if stage == curves.VALIDATION:
        self._latest = max(self._latest, row.step)
        self._note(mode, row.step, row.values)
    self._due = self._latest

  @property
  def best(self) -> int | None:
    """The best version so far by `checkpoint.keep_best`; None if unknown.

    Of equal ones it is the newest. An evaluation that lost more than a tenth
    of its tasks is not compared: those that are left may be the easy ones.
    """
    return max(self._scores, key=lambda v: (self._scores[v], v), default=None)

  @property
  def needed(self) -> list[int]:
    """Versions of which one may be the best: their checkpoints are kept."""
    running = [] if self._running is None else [self._latest]
    return running + ([] if self.best is None else [self.best])

  def begin(self, thread: ControllerThread, version: int) -> None:
    """Starts an evaluation if one is due and none is running.

    One of the last version is left to `finish`.
    """
    due = version // self._plan.every * self._plan.every
    if self._due >= due or version >= self._num_updates:
      return
    self._due = due
    if self._running is not None:
      _log.warning(
        "update %d: the evaluation of update %d is not over, so this one is "
        "left out; play fewer tasks (evaluation.num_tasks_during, "
        "evaluation.num_sampled_during), more at once "
        "(evaluation.concurrency_during), or evaluate less often "
        "(evaluation.every)",
        version,
        self._latest,
      )
      self._num_left_out += 1
      return
    self._latest = version
    self._running = thread.submit(self._play())

  def collect(self) -> None:
    """Writes the metrics of the evaluation, if one has ended."""
    if self._running is not None and self._running.done():
      running, self._running = self._running, None
      if not running.cancelled():  # else the loop's own end is raised
        self._write(running.result())

  def wait(self, thread: ControllerThread) -> None:
    """Waits for the evaluation that is running, or for a signal to stop."""
    while self._running is not None and self._interrupts.received is None:
      self._service.require_engine()
      thread.show_life()
      concurrent.futures.wait([self._running], timeout=POLL_S)
      self.collect()
    self.cancel()

  def cancel(self) -> None:
    """Ends the evaluation that is running: a later start repeats it."""
    if self._running is not None:
      self._running.cancel()
      self._running = None
      self._latest = self._due = -1

  def finish(self) -> None:
    """Evaluates the last version, unless an earlier start has."""
    self.resume()
    if self._latest >= self._num_updates:
      return
    self._latest = self._num_updates
    self._service.settle()
    num_tasks = sum(map(len, self._tasks.values()))
    serving: Serving = contextlib.nullcontext
    if self._agents is not None:
      serving = self._agents.serving
    with (
      self._run.stage("evaluate_rl_validation"),
      ControllerThread() as thread,
      thread.entered(serving(), CALL_S),
      StageProgress("evaluation on validation tasks", num_tasks) as show,
    ):
      results = thread.run(
        self._play(lambda done: show.update(done, {})),
        math.inf,
        holder="the evaluation of the last version",
      )
    self._service.require_engine()
    self._write(results)

  def keep_best(self) -> int | None:
    """Files the best version as that of the run's end, and returns it."""
    best = self.best
    if best is None:
      _log.warning(
        "no evaluation during RL can be compared, so the run ends with its "
        "last version, in spite of checkpoint.keep_best=%s",
        self._mode,
      )
    else:
      body = {"version": best, "mode": self._mode, "success": self._scores}
      write_whole(self._run.best, json.dumps(body, indent=2))
    return best

  async def _play(
    self, on_progress: Callable[[int], None] = lambda num_done: None
  ) -> _Results:
    results: _Results = {}
    num_done = itertools.count(1)
    for mode in self._tasks:
      results[mode] = await self._play_mode(
        mode, lambda: on_progress(next(num_done))
      )
    return results

  async def _play_mode(
    self, mode: str, on_end: Callable[[], None]
  ) -> tuple[dict[str, float], list[Trajectory]]:
    """Returns the results of one mode; `on_end` is called after each task."""
    tasks = self._tasks[mode]
    played: list[Trajectory] = []
    began_at = time.monotonic()

    def note(_: int, __: int, trajectory: Trajectory | None) -> None:
      played.extend([trajectory] if trajectory else [])
      on_end()

    try:
      scores = await evaluate(
        self._players[mode],
        tasks,
        concurrency=self._plan.concurrency_during,
        seed=self._settings.seed,
        retries=self._settings.retry,
        timeout_s=self._plan.timeout_s,
        progress=note,
      )
    except FAULTS as fault:
      _log.warning("an evaluation during RL is lost: %s", fault)
      lost = collections.Counter(task.name for task in tasks)
      return {f"eval/lost/{name}": float(n) for name, n in lost.items()}, []
    versions = [v for t in played for turn in t.turns for v in turn.version]
    values = (
      metrics_of(scores)
      | episode_metrics(played)
      | {
        "eval/seconds": time.monotonic() - began_at,
        "eval/oldest_version": float(min(versions, default=math.nan)),
        "eval/newest_version": float(max(versions, default=math.nan)),
      }
    )
    for name in scores:
      lengths = [t.num_sampled for t in played if t.task.name == name]
      values[f"eval/sampled_tokens/{name}"] = sum(lengths) / max(
        len(lengths), 1
      )
    return {name: x for name, x in values.items() if math.isfinite(x)}, played

  def _write(self, results: _Results) -> None:
    """Writes metrics, and the episodes of the first tasks of all."""
    for mode, (values, played) in results.items():
      values = values | {"eval/left_out": float(self._num_left_out)}
      stage = f"{curves.VALIDATION}_{mode}"
      kept = self._tasks[mode][: self._num_kept]
      if kept:
        write_groups(
          self._run.trajectories_of(
            f"{curves.VALIDATION}_{self._latest:06d}", mode
          ),
          _as_groups(kept, [t for t in played if t.task in kept]),
        )
      self._metrics.write(self._latest, values, stage)
      if mode == "greedy" and curves.EVALUATED in values:
        self.newest = {curves.EVALUATED: values[curves.EVALUATED]}
      self._note(mode, self._latest, values)

  def _note(self, mode: str, version: int, values: Mapping[str, float]) -> None:
    """Remembers a score by which the best version is chosen."""
    if mode != self._mode or curves.EVALUATED not in values:
      return
    lost = sum(x for name, x in values.items() if name.startswith("eval/lost/"))
    if lost <= _MOST_LOST * len(self._tasks[mode]):
      self._scores[version] = values[curves.EVALUATED]


def play_tasks(
  player: Player,
  tasks: Sequence[Task],
  settings: Settings,
  plan: EvaluationPlan,
  *,
  name: str,
  progress: Progress,
  serving: Serving = contextlib.nullcontext,
  **attempts: Any,
) -> dict[str, TaskScore]:
  """Plays each task with a run's seeds and limits; scores by task name.

  `name` is the evaluation's, for messages about a wait; `serving` is entered
  in its event loop. `attempts` are as in `controller.evaluation.evaluate`.
  """
  with ControllerThread() as loop, loop.entered(serving(), CALL_S):
    return loop.run(
      evaluate(
        player,
        tasks,
        concurrency=plan.concurrency,
        seed=settings.seed,
        retries=settings.retry,
        timeout_s=plan.timeout_s,
        progress=progress,
        **attempts,
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
