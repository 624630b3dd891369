"""The engine as the controller knows it: an awaitable `Generator`."""

import asyncio
from collections.abc import Sequence

import numpy as np

from agentrl_jax.errors import DeadlineExceeded
from agentrl_jax.rollout.client import Answer, SamplingSpec
from agentrl_jax.rollout.driver import Driver


class EngineGenerator:
  """A `rollout.client.Generator` on a driver in this process."""

  def __init__(self, driver: Driver, *, deadline_s: float = 600.0):
    self._driver, self._deadline_s = driver, deadline_s

  @property
  def num_slots(self) -> int:
    """How many versions are served side by side."""
    return self._driver.engine.config.num_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """Waits for the answer; cancelling frees the lane that decodes it."""
    future = asyncio.wrap_future(self._driver.submit(prompt, spec))
    try:
      async with asyncio.timeout(self._deadline_s):
        return await future
    except TimeoutError as error:
      raise DeadlineExceeded(
        f"no answer of {spec.max_tokens} tokens came from version slot "
        f"{spec.slot} in {self._deadline_s} s; inside the engine per slot: "
        f"{self._driver.num_inside}, waiting: {self._driver.num_waiting}"
      ) from error
