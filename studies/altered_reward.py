"""Alters another environment's reward: rarer, coarser, or without meaning.

For experiments: a config names it in place of the environment that it wraps.

  c.environments.dbbench_rare = entry(
    "studies.altered_reward:AlteredReward",
    options={"target": "environments.dbbench:DBBench", "paid_tasks": 0.1},
  )

What succeeded is unchanged, as the metric `success`: evaluations compare what
policies can do, and training alone sees the altered reward.
"""

import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agentrl_jax.data.records import Message, Status, Task, uniform_of
from agentrl_jax.env.interface import Environment, Expert, Session, Step
from agentrl_jax.env.loading import load_environment
from agentrl_jax.env.scripted import ScriptedPolicies
from agentrl_jax.errors import ConfigError


class AlteredReward(Environment):
  """Another environment, with another reward.

  Args:
    target: `module:Class` of the environment.
    options: its options.
    paid_tasks: share of the tasks that give a reward; of the others every
      attempt gets 0. The same tasks in every run.
    paid_episodes: share of the episodes that give a reward; others get 0, drawn
      by the episode's seed.
    levels: number of levels above 0 that a reward is rounded down to; 1 pays
      for a full reward only. 0 leaves it as it is.
    meaningless: probability of a reward of 1 for each episode, whatever it did;
      a negative control. Negative: off.
  """

  def __init__(
    self,
    *,
    target: str,
    options: Mapping[str, Any] | None = None,
    paid_tasks: float = 1.0,
    paid_episodes: float = 1.0,
    levels: int = 0,
    meaningless: float = -1.0,
  ):
    for key, share in (
      ("paid_tasks", paid_tasks),
      ("paid_episodes", paid_episodes),
    ):
      if not 0 <= share <= 1:
        raise ConfigError(f"{key}={share} must be from 0 to 1")
    if levels < 0:
      raise ConfigError(f"levels={levels} must be 0 or more")
    if meaningless > 1:
      raise ConfigError(f"meaningless={meaningless} must be at most 1")
    self._inner = load_environment(target, options)
    self.name = self._inner.name
    self.needs_one_loop = self._inner.needs_one_loop
    self.mistakes = self._inner.mistakes
    self.baseline = self._inner.baseline
    self._paid_tasks, self._paid_episodes = paid_tasks, paid_episodes
    self._levels, self._meaningless = levels, meaningless

  def indices(self, split: str) -> Sequence[int]:
    """Returns those of the wrapped environment."""
    return self._inner.indices(split)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens the wrapped environment's session."""
    async with self._inner.open(task, seed=seed) as session:
      yield _AlteredSession(session, self, task, seed)

  async def close(self) -> None:
    """Closes the wrapped environment."""
    await self._inner.close()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes the wrapped environment's expert."""
    return self._inner.expert(task, seed=seed, mistakes=mistakes)

  def scripted_policies(self) -> ScriptedPolicies:
    """Returns those of the wrapped environment."""
    return self._inner.scripted_policies()

  def reward_of(self, step: Step, task: Task, seed: int) -> float:
    """Returns the reward that a policy is told in place of the step's."""
    if self._meaningless >= 0:
      drawn = uniform_of(seed, "meaningless") < self._meaningless
      return float(drawn and step.status is not Status.RUNNING)
    by_task = uniform_of(0, "paid", task.split, task.index)
    if by_task >= self._paid_tasks:
      return 0.0
    if uniform_of(seed, "paid") >= self._paid_episodes:
      return 0.0
    if self._levels:
      # Rounding must not take a level from 0.3 * 10.
      return math.floor(step.reward * self._levels + 1e-9) / self._levels
    return step.reward


class _AlteredSession(Session):
  def __init__(
    self, inner: Session, environment: AlteredReward, task: Task, seed: int
  ):
    self.tools = inner.tools
    self._inner, self._environment = inner, environment
    self._task, self._seed = task, seed

  async def reset(self) -> Step:
    return self._alter(await self._inner.reset())

  async def step(self, answer: Message) -> Step:
    return self._alter(await self._inner.step(answer))

  def _alter(self, step: Step) -> Step:
    self.tools = self._inner.tools
    metrics = dict(step.metrics)
    if step.status is not Status.RUNNING:
      metrics.setdefault("success", float(step.reward == 1.0))
    return Step(
      step.messages,
      self._environment.reward_of(step, self._task, self._seed),
      step.status,
      metrics,
    )
