"""Players of the groups of a run: its own policy player, or agents."""

import contextlib
import dataclasses
from collections.abc import Mapping

from agentrl_jax.controller.groups.admission import Admission
from agentrl_jax.controller.groups.breaker import Breakers
from agentrl_jax.controller.groups.collector import Collector, CollectorState
from agentrl_jax.controller.groups.group import run_group
from agentrl_jax.controller.groups.group_queue import GroupQueue
from agentrl_jax.controller.groups.overdue import OverdueGroups
from agentrl_jax.controller.groups.timers import GroupTimers
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import Player, PolicyPlayer
from agentrl_jax.controller.waiting import LearnerWatch
from agentrl_jax.data.records import (
  EpisodeSpec,
  Group,
  Task,
  Trajectory,
  seed_of,
)
from agentrl_jax.env.interface import Environment
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.drivers.lockstep import LockstepGenerator
from agentrl_jax.train.advantages import shaped_reward
from launch.run.context import RunContext
from launch.run.environments import training_stream
from launch.serving.agents import AgentServer
from launch.serving.service import Service


class Players:
  """Plays groups of the tasks that reinforcement learning draws.

  In a run that must repeat bit for bit, episodes advance in lockstep with the
  engine, which `forget` brings back to the state of a start.
  """

  def __init__(
    self,
    context: RunContext,
    environments: Mapping[str, Environment],
    service: Service,
    *,
    stage: str,
  ) -> None:
    self._settings, self._service = context.settings, service
    self._environments, self._stage = environments, stage
    self._step_timeout_s = context.config.train.step_timeout_s
    self._stream = training_stream(
      context.settings, environments, purpose=stage
    )
    self.monitor = Monitor()
    self.agents: AgentServer | None = None
    self.lockstep: LockstepGenerator | None = None
    s = context.settings
    if s.agents.play:  # in place of our own player; they come when they come
      self.agents = AgentServer(
        s, service, context.config.name, context.folder.root, s.cross_policy
      )
    elif (
      not s.admission.max_staleness
      and s.queue.order == "started"
      and isinstance(service.driver, LocalDriver)
    ):
      self.lockstep = LockstepGenerator(
        service.driver, deadline_s=s.waits.answer_timeout_s
      )

  def serving(self) -> contextlib.AbstractAsyncContextManager[None]:
    """Lets agents in, if they play, within the context."""
    if self.agents is None:
      return contextlib.nullcontext()
    return self.agents.serving()

  def adapt(self, player: Player) -> Player:
    """Returns a player in lockstep, where the run is."""
    if self.lockstep is None:
      return player
    return _LockstepPlayer(player, self.lockstep)

  def forget(self) -> None:
    """Clears the engine's caches, which a later start would not have."""
    if self.lockstep is not None:
      assert self._service.driver is not None
      self._service.driver.engine.reset()

  def settle(self) -> None:
    """Waits until the engine is idle, and brings it back to a start."""
    assert self._service.driver is not None
    self._service.driver.wait_until_idle(self._settings.waits.answer_timeout_s)
    self.forget()

  def metrics(self) -> dict[str, float]:
    """Returns what the loop that plays counts; called in it."""
    of_agents = self.agents.report() if self.agents else {}
    return self.monitor.snapshot() | of_agents

  def collector(
    self, version: int, position: CollectorState | None
  ) -> Collector:
    """Makes the collector of groups, new or as it was at a position."""
    s = self._settings
    timers = GroupTimers()

    async def play(task: Task, group_id: str, seed: int) -> Group | None:
      return await run_group(
        task,
        self._player(),
        s.group,
        s.retry,
        self.monitor,
        group_id=group_id,
        seed=seed,
        timers=timers,
      )

    num_pending = len(position.queued) if position else 0
    watch = LearnerWatch(self._step_timeout_s)
    queue = GroupQueue(
      s.queue,
      self.monitor,
      versions_per_step=s.admission.versions_per_step,
      watch=watch,
    )
    admission = Admission(s.admission, version=version, num_pending=num_pending)
    # In the order of starting, batches do not depend on timing: no task's first
    # groups are dropped.
    is_timed = s.queue.order == "finished"
    breakers = Breakers(
      self._stream.shares,
      timers,
      self.monitor,
      num_places=admission.num_places if is_timed else None,
    )
    collector = Collector(
      self._stream,
      play,
      queue,
      admission,
      breakers,
      seed=seed_of(s.seed, self._stage),
      has_signal=self._has_signal,
      watch=watch,
      overdue=OverdueGroups(queue, timers, patience=s.queue.patience),
    )
    if position is not None:
      collector.restore(position)
    return collector

  def _player(self) -> Player:
    if self.agents is not None:
      return self.agents.episodes
    s = self._settings
    player = PolicyPlayer(
      environments=self._environments,
      generator=self.lockstep or self._service.generator,
      codec=self._service.codec,
      limits=s.episode,
      sampling=s.sampling,
      draw=s.cross_policy,
      waits=s.waits,
      subagent=s.subagent,
    )
    return self.adapt(player)

  def _has_signal(self, group: Group) -> bool:
    """Compares the rewards as they are trained on."""
    incomplete = self._settings.advantage.incomplete_reward
    rewards = {shaped_reward(t, incomplete) for t in group.trajectories}
    return len(rewards) > 1


@dataclasses.dataclass(frozen=True)
class _LockstepPlayer:
  """Plays episodes in lockstep with the engine's steps."""

  player: Player
  lockstep: LockstepGenerator

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """See `Player.play`."""
    with self.lockstep.playing():
      return await self.player.play(spec)
