"""Who plays: the policy, an expert whose answers become tokens, or a script.

A player knows everything about playing but the task. Groups, evaluation and
demonstrations are given one and do not ask which.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from agentrl_jax.controller.episode import (
  EpisodeLimits,
  EpisodeWaits,
  Sampling,
  open_session,
  play_expert,
  reply,
  run_episode,
)
from agentrl_jax.controller.policies import NEVER, CrossPolicy
from agentrl_jax.controller.recorder import Attempt, Codec
from agentrl_jax.data.messages import Message, Tool, message_to_json
from agentrl_jax.data.trajectory import Status, Task, Trajectory, Turn
from agentrl_jax.env.interface import Environment, Expert, Step
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import Generator


class Player(Protocol):
  """Makes one attempt at any task of the environments that it knows."""

  async def play(self, attempt: Attempt) -> Trajectory:
    """Waits for the end of the attempt. Cancelling leaves the session."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyPlayer:
  """The policy plays, by way of the rollout engine."""

  environments: Mapping[str, Environment]
  generator: Generator
  codec: Codec
  limits: EpisodeLimits
  sampling: Sampling = Sampling()
  # How an attempt at the task that begins now draws its policy slots.
  draw_for: Callable[[Task], CrossPolicy] = lambda task: NEVER
  waits: EpisodeWaits = EpisodeWaits()

  async def play(self, attempt: Attempt) -> Trajectory:
    """See `episode.run_episode`. One attempt's draws have the same weights."""
    draw = self.draw_for(attempt.task)
    trajectory = await run_episode(
      attempt.task,
      environment_of(attempt.task, self.environments),
      self.generator,
      self.codec,
      limits=self.limits,
      sampling=self.sampling,
      choose_policy_slot=draw,
      seed=attempt.seed,
      group_id=attempt.group_id,
      attempt=attempt.number,
      waits=self.waits,
    )
    if not draw.is_drawn:
      return trajectory
    return dataclasses.replace(trajectory, policy_slot_weights=draw.weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertPlayer:
  """Each environment's own expert plays, and is recorded as tokens.

  `mistakes` maps an environment's name to the flaws of its expert. The name is
  the one that it has in `environments`, as tasks do.
  """

  environments: Mapping[str, Environment]
  codec: Codec
  limits: EpisodeLimits
  mistakes: Mapping[str, Mapping[str, float]]
  waits: EpisodeWaits = EpisodeWaits()

  def __post_init__(self) -> None:
    _require_named(self.mistakes, self.environments)

  async def play(self, attempt: Attempt) -> Trajectory:
    """See `episode.play_expert`."""
    environment = environment_of(attempt.task, self.environments)
    return await play_expert(
      attempt.task,
      environment,
      expert_of(environment, attempt, self.mistakes),
      self.codec,
      limits=self.limits,
      seed=attempt.seed,
      group_id=attempt.group_id,
      attempt=attempt.number,
      waits=self.waits,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptPlayer:
  """Experts play without tokens: for their scores, and for texts.

  The turns hold the environment's pay and no tokens.
  """

  environments: Mapping[str, Environment]
  max_turns: int
  mistakes: Mapping[str, Mapping[str, float]]
  waits: EpisodeWaits = EpisodeWaits()

  def __post_init__(self) -> None:
    _require_named(self.mistakes, self.environments)

  async def play(self, attempt: Attempt) -> Trajectory:
    """Plays until the environment or `max_turns` says stop."""
    environment = environment_of(attempt.task, self.environments)
    expert = expert_of(environment, attempt, self.mistakes)
    return await _play_script(
      environment,
      attempt,
      lambda said, step, tools: expert.answer(step.messages),
      max_turns=self.max_turns,
      waits=self.waits,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptedPlayer:
  """A scripted policy plays: it sees messages and tools, and no solution.

  `policy` is one of each environment's `scripted_policies`.
  """

  environments: Mapping[str, Environment]
  max_turns: int
  policy: str
  waits: EpisodeWaits = EpisodeWaits()

  async def play(self, attempt: Attempt) -> Trajectory:
    """Plays until the environment or `max_turns` says stop."""
    environment = environment_of(attempt.task, self.environments)
    policies = environment.scripted_policies()
    if self.policy not in policies:
      raise ConfigError(
        f"{environment.name} has no scripted policy {self.policy!r}; it has "
        f"{', '.join(policies)}"
      )
    policy = policies[self.policy](seed=attempt.seed)
    return await _play_script(
      environment,
      attempt,
      lambda said, step, tools: policy.answer(said, tools),
      max_turns=self.max_turns,
      waits=self.waits,
    )


# The next answer, from all messages so far, the environment's last reply, and
# the tools there are now.
Script = Callable[[Sequence[Message], Step, Sequence[Tool]], Message]


async def _play_script(
  environment: Environment,
  attempt: Attempt,
  script: Script,
  *,
  max_turns: int,
  waits: EpisodeWaits,
) -> Trajectory:
  said: list[Message] = []
  turns: list[Turn] = []
  async with open_session(environment, attempt, waits) as session:
    step = await reply(session.reset(), attempt, waits)
    said += step.messages
    while step.status is Status.RUNNING and len(turns) < max_turns:
      before = step.reward
      said.append(script(tuple(said), step, session.tools))
      step = await reply(session.step(said[-1]), attempt, waits)
      turns.append(_pay(step.reward - before))
      said += step.messages
  running = step.status is Status.RUNNING
  return Trajectory(
    task=attempt.task,
    group_id=attempt.group_id,
    attempt=attempt.number,
    seed=attempt.seed,
    turns=tuple(turns),
    status=Status.TASK_LIMIT_REACHED if running else step.status,
    reward=step.reward,
    metrics=dict(step.metrics),
    transcript=tuple(map(message_to_json, said)),
  )


def environment_of(
  task: Task, environments: Mapping[str, Environment]
) -> Environment:
  """The environment that owns the task."""
  if task.name not in environments:
    raise ConfigError(
      f"no environment is called {task.name!r}; there are"
      f" {', '.join(sorted(environments)) or 'none'}. Add it under `tasks`"
    )
  return environments[task.name]


def expert_of(
  environment: Environment,
  attempt: Attempt,
  mistakes: Mapping[str, Mapping[str, float]],
) -> Expert:
  """The expert for this attempt; an environment not named makes no mistake.

  Environments are named as in the config, `attempt.task.name`: two of them may
  be variants of one class, whose own name is the same.
  """
  flaws = mistakes.get(attempt.task.name, {})
  return environment.expert(attempt.task, seed=attempt.seed, mistakes=flaws)


def _require_named(
  mistakes: Mapping[str, object], environments: Mapping[str, Environment]
) -> None:
  """Mistakes under a name that no environment has would never be made."""
  if unknown := sorted(mistakes.keys() - environments.keys()):
    raise ConfigError(
      f"mistakes are given for {', '.join(unknown)}, and the environments are "
      f"{', '.join(sorted(environments)) or 'none'}; name each as there"
    )


def _pay(reward: float) -> Turn:
  ids, logprobs = np.empty(0, np.int32), np.empty(0, np.float32)
  return Turn(ids, ids, logprobs, logprobs, ids, reward=reward)


def attempts_of(
  task: Task, *, group_id: str, seeds: Sequence[int]
) -> list[Attempt]:
  """One attempt per seed, numbered from 0."""
  return [
    Attempt(task=task, group_id=group_id, number=n, seed=seed)
    for n, seed in enumerate(seeds)
  ]
