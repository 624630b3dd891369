"""Sources of the learner's groups.

Process 0 plays the groups; the other learner processes receive the groups of
every batch, so that all of them compute the same update.
"""

import abc
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.controller.cross_policy import slot_successes
from agentrl_jax.controller.groups.group_bytes import (
  decode_groups,
  encode_groups,
)
from agentrl_jax.controller.thread import CALL_S, ControllerThread
from agentrl_jax.data.records import Group
from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import DeadlineExceeded
from agentrl_jax.garbage import spared_collections
from agentrl_jax.train.collapse.answers import (
  answer_metrics,
  count_answers,
  episode_metrics,
)
from agentrl_jax.train.compared import LearnedTurns
from launch.processes.group import Processes
from launch.processes.stacks import FILE as STACKS
from launch.processes.stacks import write_stacks
from launch.reports.metrics_file import MetricsWriter
from launch.reports.progress import StageProgress
from launch.run.context import RunContext
from launch.run.environments import tasks_during
from launch.run.evaluation import POLL_S, Validation, success_by_task
from launch.run.groups.players import Players
from launch.run.groups.run_record import (
  STAGE,
  RunRecord,
  position_from_json,
  position_to_json,
)
from launch.serving.service import Service

_log = logging.getLogger(__name__)


class GroupSource(abc.ABC):
  """Supplies groups to the learner, the same in any process.

  By default nothing is started, kept or recorded: process 0 alone does that.
  """

  @contextlib.contextmanager
  def running(
    self, version: int, position: Mapping[str, Any]
  ) -> Iterator[None]:
    """Resumes from a position; whatever happens within, it ends."""
    del version, position
    yield

  @abc.abstractmethod
  def take(self, version: int) -> list[Group] | None:
    """Waits for the groups of a batch; None if the run was asked to stop."""

  def position(self) -> dict[str, Any]:
    """Returns the state that `running` resumes from, as JSON values."""
    return {}

  def account(  # noqa: B027
    self,
    version: int,
    after: int,
    report: Mapping[str, float],
    learned: LearnedTurns,
  ) -> None:
    """Records that the groups taken for `version` made version `after`.

    `learned` is what the learner computed of them, to be kept beside them.
    """

  def alarm(  # noqa: B027
    self, version: int, sentence: str, *, is_note: bool
  ) -> None:
    """Tells and records an alarm that begins at `version`, or a note."""

  def advance(self, version: int) -> None:  # noqa: B027
    """Lets newer groups start, since the policy is published."""

  def finish(self) -> None:  # noqa: B027
    """Ends what belongs to the training, after `running` was left."""

  def needed_versions(self) -> list[int]:
    """Returns versions of which one may be the best, where they are known."""
    return []

  def best_version(self) -> int | None:
    """Files and returns the version to end with; None: the last."""
    return None


class FollowerGroupSource(GroupSource):
  """Receives the groups that process 0 plays, in any other process."""

  def __init__(self, processes: Processes) -> None:
    self._processes = processes

  def take(self, version: int) -> list[Group] | None:
    """Waits until process 0 has a batch or was asked to stop."""
    batch = self._processes.broadcast(what=wait_name(version))
    return decode_groups(batch) if batch else None


def wait_name(version: int) -> str:
  """Returns what the other processes wait for, for messages."""
  return f"the groups to train version {version} on"


class LeaderGroupSource(GroupSource):
  """Has groups played in process 0, and shares them with the others."""

  def __init__(
    self,
    context: RunContext,
    environments: Mapping[str, Environment],
    service: Service,
    metrics: MetricsWriter,
  ) -> None:
    self._context, self._service = context, service
    self._players = Players(context, environments, service, stage=STAGE)
    self._record = RunRecord(context, metrics)
    self._validation: Validation | None = None
    if context.settings.evaluation.every:
      self._validation = Validation(
        context,
        environments,
        service,
        metrics,
        tasks_during(context.settings, environments),
        generator=self._players.lockstep,
        adapt=self._players.adapt,
        agents=self._players.agents,
      )
    self._thread: ControllerThread | None = None  # within `running`
    # In lockstep: the position between two updates, when nothing is in flight.
    self._between: dict[str, Any] = {}
    self._taken: list[Group] = []
    self._begun_at = self._taken_at = 0.0

  @contextlib.contextmanager
  def running(
    self, version: int, position: Mapping[str, Any]
  ) -> Iterator[None]:
    """Plays until the end of the context.

    Records in the run's files of versions from `version` on are removed: they
    are not in the policy.
    """
    self._record.begin(version)
    collector = self._players.collector(
      version, position_from_json(position) if position else None
    )
    self._between = position_to_json(collector.snapshot())
    self._players.forget()
    self._service.report()  # the first step's means leave out what was before
    if self._validation is not None:
      self._validation.resume()
    steps = self._context.config.train.steps
    collector.pause()  # until agents are served, and an evaluation has begun
    with (
      spared_collections(),
      ControllerThread(collector) as thread,
      thread.entered(self._players.serving(), CALL_S),
      StageProgress(STAGE, steps, initial_step=version) as self._show,
    ):
      self._thread = thread
      self._evaluate(version)
      thread.resume()
      yield
      if self._validation is not None:
        thread.pause()
        self._validation.wait(thread)

  def take(self, version: int) -> list[Group] | None:
    """Waits for the groups of a batch, at most `train.batch_timeout_s`."""
    self._begun_at = time.monotonic()
    groups, processes = self._wait(version), self._context.processes
    if processes.count > 1:
      batch = encode_groups(groups) if groups else b""
      processes.broadcast(batch, what=wait_name(version))
    self._taken, self._taken_at = groups or [], time.monotonic()
    return groups

  def position(self) -> dict[str, Any]:
    """Returns the controller's state at one instant."""
    if self._players.lockstep is not None:
      return self._between
    return position_to_json(self._running.snapshot())

  def account(
    self,
    version: int,
    after: int,
    report: Mapping[str, float],
    learned: LearnedTurns,
  ) -> None:
    """Writes metrics and groups, before a checkpoint can hold them."""
    self._record.add_groups(version, self._taken, learned.of)
    metrics = {
      **report,
      "seconds/wait": self._taken_at - self._begun_at,
      "seconds/train": time.monotonic() - self._taken_at,
      **self._running.call(self._players.metrics),
      **self._service.report(),
      **_batch_metrics(self._taken),
    }
    self._record.add_metrics(after, metrics)
    if self._validation is not None:
      self._validation.collect()
      metrics |= self._validation.newest
    self._show.update(after, metrics)
    self._between = position_to_json(self._running.snapshot())

  def alarm(self, version: int, sentence: str, *, is_note: bool) -> None:
    """Writes the sentence to the log and to `faults.jsonl`."""
    _log.warning("update %d: %s", version, sentence)
    self._record.faults.alarm(version, sentence, is_note=is_note)

  def advance(self, version: int) -> None:
    """Lets newer groups start, and an evaluation if one is due."""
    self._players.forget()
    self._evaluate(version)
    self._running.set_version(version)

  def finish(self) -> None:
    """Evaluates the last version, if versions were evaluated during RL."""
    if self._validation is None:
      return
    with self._context.interrupts.at_once():
      if self._players.lockstep is not None:
        self._players.settle()
      self._validation.finish()

  def needed_versions(self) -> list[int]:
    """Returns the best so far, and what is being evaluated."""
    return self._validation.needed if self._validation else []

  def best_version(self) -> int | None:
    """Files the best version."""
    return self._validation.keep_best() if self._validation else None

  @property
  def _running(self) -> ControllerThread:
    if self._thread is None:
      raise RuntimeError("groups are played within `running` only")
    return self._thread

  def _evaluate(self, version: int) -> None:
    """Starts an evaluation if one is due; in lockstep, also waits for it."""
    if self._validation is None:
      return
    self._validation.begin(self._running, version)
    if self._players.lockstep is not None:
      self._validation.wait(self._running)
      self._players.forget()

  def _wait(self, version: int) -> list[Group] | None:
    timeout_s = self._context.config.train.batch_timeout_s
    deadline = time.monotonic() + timeout_s
    number = self._context.settings.admission.groups_per_step
    while self._context.interrupts.received is None:
      self._service.require_engine()
      groups = self._running.take_within(number, version, POLL_S)
      if groups is not None:
        return groups
      if time.monotonic() > deadline:
        path = self._context.folder.root / STACKS
        stacks = write_stacks(path, self._running.loop)
        faults = self._running.call(self._players.monitor.latest_faults)
        raise DeadlineExceeded(
          f"the learner waited train.batch_timeout_s={timeout_s:g} s "
          f"for {number} groups to train version {version} on; look at: "
          "rollout/finished and rollout/faults of each task, and the rollout "
          "engine; an episode may be longer than this wait. Faults so far: "
          f"{faults or 'none'}. Where every thread and episode waited is in "
          f"{stacks}"
        )
    return None


def _batch_metrics(groups: Sequence[Group]) -> dict[str, float]:
  played = [t for group in groups for t in group.trajectories]
  policy_slots = [turn.policy_slot for t in played for turn in t.turns]
  report = success_by_task(played) | answer_metrics(count_answers(played))
  report |= episode_metrics(played) | slot_successes(groups)
  report["reward/mean"] = sum(t.reward for t in played) / max(len(played), 1)
  num_stale = sum(s > 0 for s in policy_slots)
  report["rollout/stale_turns"] = num_stale / max(len(policy_slots), 1)
  return report
