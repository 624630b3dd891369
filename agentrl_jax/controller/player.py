"""Players of episodes: the policy, an environment's expert, or a script.

A player knows everything about playing but the task. Groups, evaluation and
demonstrations work with any of them.
"""

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from agentrl_jax.controller.cross_policy import NEVER, CrossPolicy
from agentrl_jax.controller.episode import (
  EpisodeWaits,
  Sampling,
  begin,
  environments_own,
  next_step,
  open_session,
  play_expert,
  require_message,
  run_episode,
  tools_of,
)
from agentrl_jax.controller.subagent import SubagentConfig
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import (
  EpisodeLimits,
  EpisodeSpec,
  Message,
  Status,
  Task,
  Tool,
  Trajectory,
  Turn,
  message_to_json,
  status_after,
)
from agentrl_jax.env.interface import Environment, Expert, Step
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import Generator

_log = logging.getLogger(__name__)


class Player(Protocol):
  """Plays episodes of any task of the environments that it knows."""

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """Waits for the end of the episode. Cancelling closes the session."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyPlayer:
  """Plays the policy, through the rollout engine."""

  environments: Mapping[str, Environment]
  generator: Generator
  codec: ChatCodec
  limits: EpisodeLimits
  sampling: Sampling
  waits: EpisodeWaits
  draw: CrossPolicy = NEVER  # of the policy slots that answer
  subagent: SubagentConfig | None = None

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """See `episode.run_episode`."""
    environment = environment_of(spec.task, self.environments)
    trajectory = await run_episode(
      spec,
      environment,
      self.generator,
      self.codec,
      limits=self.limits,
      sampling=self.sampling,
      choose_policy_slot=self.draw,
      waits=self.waits,
      subagent=self.subagent,
    )
    return dataclasses.replace(
      trajectory,
      policy_slot_weights=self.draw.weights if self.draw.is_drawn else (),
      max_turns=self.limits.max_turns,
      max_tokens=self.limits.max_tokens,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertPlayer:
  """Plays each environment's own expert, and records it as tokens.

  `mistakes` maps an environment's name to the mistakes of its expert. The name
  is the one in `environments`, as in tasks.
  """

  environments: Mapping[str, Environment]
  codec: ChatCodec
  limits: EpisodeLimits
  mistakes: Mapping[str, Mapping[str, float]]
  waits: EpisodeWaits

  def __post_init__(self) -> None:
    _require_known(self.mistakes, self.environments)

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """See `episode.play_expert`."""
    environment = environment_of(spec.task, self.environments)
    return await play_expert(
      spec,
      environment,
      expert_of(environment, spec, self.mistakes),
      self.codec,
      limits=self.limits,
      waits=self.waits,
    )


# Maps all messages so far, the environment's last step and the present tools to
# the next answer, or to the status of an episode that ends without one.
Answerer = Callable[
  [Sequence[Message], Step, Sequence[Tool]], Awaitable[Message | Status]
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPlayer:
  """Plays without tokens: the turns hold the environment's rewards alone."""

  environments: Mapping[str, Environment]
  max_turns: int
  waits: EpisodeWaits

  def _answerer(self, environment: Environment, spec: EpisodeSpec) -> Answerer:
    raise NotImplementedError

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """Plays until the environment or `max_turns` ends the episode."""
    environment = environment_of(spec.task, self.environments)
    answer = self._answerer(environment, spec)
    messages: list[Message] = []
    turns: list[Turn] = []
    shown: Sequence[Tool] = ()
    async with open_session(environment, spec, self.waits) as session:
      step = await begin(session, spec, self.waits)
      messages += step.messages
      status = step.status
      while status is Status.RUNNING:
        reward_before = step.reward
        tools = tools_of(session, spec)
        shown = shown if turns else tools
        message = await answer(tuple(messages), step, tools)
        if isinstance(message, Status):
          status = message
          break
        messages.append(message)
        step = await next_step(session, message, spec, self.waits)
        turns.append(_turn_without_tokens(step.reward - reward_before))
        messages += step.messages
        status = step.status
        if status is Status.RUNNING:
          status = status_after(len(turns), self.max_turns)
    return Trajectory(
      task=spec.task,
      group_id=spec.group_id,
      attempt=spec.attempt,
      seed=spec.seed,
      turns=tuple(turns),
      status=status,
      reward=step.reward,
      metrics=dict(step.metrics),
      transcript=tuple(map(message_to_json, messages)),
      tools=tuple(shown),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertTextPlayer(TextPlayer):
  """Plays experts without tokens: for their scores, and for texts."""

  mistakes: Mapping[str, Mapping[str, float]]

  def __post_init__(self) -> None:
    _require_known(self.mistakes, self.environments)

  def _answerer(self, environment: Environment, spec: EpisodeSpec) -> Answerer:
    expert = expert_of(environment, spec, self.mistakes)

    async def answer(
      messages: Sequence[Message], step: Step, tools: Sequence[Tool]
    ) -> Message:
      del messages, tools
      with environments_own(spec.task.name, "expert"):
        return require_message(expert.answer(step.messages))

    return answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselinePlayer(TextPlayer):
  """Plays a scripted policy: it sees messages and tools, and no solution.

  `policy` is one of each environment's `scripted_policies`; None takes each
  environment's `baseline`.
  """

  policy: str | None

  def _answerer(self, environment: Environment, spec: EpisodeSpec) -> Answerer:
    with environments_own(spec.task.name, "scripted_policies"):
      policies = environment.scripted_policies()
      name = environment.baseline if self.policy is None else self.policy
      if name not in policies:
        raise ConfigError(
          f"{spec.task.name} has no scripted policy {name!r}; it has "
          f"{', '.join(policies)}"
        )
    with environments_own(spec.task.name, f"policy {name}"):
      policy = policies[name](seed=spec.seed)

    async def answer(
      messages: Sequence[Message], step: Step, tools: Sequence[Tool]
    ) -> Message:
      del step
      with environments_own(spec.task.name, f"policy {name}"):
        return require_message(policy.answer(messages, tools))

    return answer


def environment_of(
  task: Task, environments: Mapping[str, Environment]
) -> Environment:
  """Returns the environment that owns the task."""
  if task.name not in environments:
    raise ConfigError(
      f"no environment is called {task.name!r}; there are"
      f" {', '.join(sorted(environments)) or 'none'}. Add it under `tasks`"
    )
  return environments[task.name]


def expert_of(
  environment: Environment,
  spec: EpisodeSpec,
  mistakes: Mapping[str, Mapping[str, float]],
) -> Expert:
  """Returns the expert for this episode; without `mistakes` it makes none.

  Environments are named as in the config, `spec.task.name`: two of them may be
  variants of one class, whose own name is the same. Raises `ConfigError` if
  there is no expert.
  """
  name = spec.task.name
  with environments_own(name, "expert"):
    try:
      return environment.expert(
        spec.task, seed=spec.seed, mistakes=mistakes.get(name, {})
      )
    except NotImplementedError as error:
      raise ConfigError(
        f"{name} has no expert ({error}): leave it out of tasks.names, or give "
        "its class an `expert`"
      ) from error


def without_expert(
  environments: Mapping[str, Environment], split: str
) -> list[str]:
  """Returns the names of the environments that have no expert."""
  names = []
  for name, environment in environments.items():
    for index in environment.indices(split)[:1]:
      try:
        environment.expert(Task(name, split, index), seed=0, mistakes={})
      except NotImplementedError:
        names.append(name)
      except Exception:  # noqa: BLE001 - counts as its fault where it plays
        _log.warning("the expert of %s broke", name, exc_info=True)
  return names


def _require_known(
  mistakes: Mapping[str, object], environments: Mapping[str, Environment]
) -> None:
  """Refuses mistakes of an unknown environment: they would never be made."""
  if unknown := sorted(mistakes.keys() - environments.keys()):
    raise ConfigError(
      f"mistakes are given for {', '.join(unknown)}, and the environments are "
      f"{', '.join(sorted(environments)) or 'none'}; name each as there"
    )


def _turn_without_tokens(reward: float) -> Turn:
  ids, logprobs = np.empty(0, np.int32), np.empty(0, np.float32)
  return Turn(ids, ids, logprobs, logprobs, ids, reward=reward)


def episodes_of(
  task: Task, *, group_id: str, seeds: Sequence[int]
) -> list[EpisodeSpec]:
  """Returns one episode per seed, numbered from 0."""
  return [
    EpisodeSpec(task=task, group_id=group_id, attempt=n, seed=seed)
    for n, seed in enumerate(seeds)
  ]
