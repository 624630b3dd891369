"""One attempt, made again if we broke it.

What the policy did is kept, whatever it did. What broke around it is made again
with the same seed, then given up and counted; it is never scored.
"""

import asyncio
import dataclasses
import logging
import time

from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import Player
from agentrl_jax.controller.recorder import Attempt
from agentrl_jax.data.trajectory import Trajectory
from agentrl_jax.errors import (
  ConfigError,
  DeadlineExceeded,
  EnvironmentFault,
  GeneratorFault,
  PromptTooLong,
)

_log = logging.getLogger(__name__)

FAULTS = (EnvironmentFault, GeneratorFault, DeadlineExceeded)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetryLimits:
  """The `retry` section of the config."""

  max_retries: int = 2
  backoff_s: float = 0.5  # before the first retry; doubles with each

  def __post_init__(self) -> None:
    if self.max_retries < 0 or self.backoff_s < 0:
      raise ConfigError(
        f"retry.max_retries is {self.max_retries} and retry.backoff_s"
        f" {self.backoff_s}; neither may be below 0"
      )


async def play_with_retries(
  attempt: Attempt, player: Player, retries: RetryLimits, monitor: Monitor
) -> Trajectory | None:
  """Plays, again after a fault of ours; None once the retries are spent.

  Every retry has the seed of the first try. A task whose text alone is too long
  is given up at once, for it will not shrink.
  """
  for retry in range(retries.max_retries + 1):
    if retry:
      monitor.retried(attempt.task)
      await asyncio.sleep(retries.backoff_s * 2 ** (retry - 1))
    begun = time.monotonic()
    monitor.started(attempt.task)
    try:
      trajectory = await player.play(attempt)
    except FAULTS as fault:
      monitor.faulted(attempt.task, type(fault).__name__)
      _log.warning("try %d of %s broke: %s", retry + 1, attempt, fault)
      if isinstance(fault, PromptTooLong):
        break
      continue
    if trajectory.status.is_policys_doing:
      monitor.finished(trajectory, time.monotonic() - begun)
      return trajectory
    ending = trajectory.status.value
    monitor.faulted(attempt.task, ending.replace(" ", "_"))
    _log.warning("try %d of %s ended as %r", retry + 1, attempt, ending)
  monitor.masked(attempt.task)
  return None
