"""A `Generator` for asyncio on a driver in this process."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

import numpy as np

from agentrl_jax.errors import DeadlineExceeded
from agentrl_jax.rollout.api import Answer, SamplingSpec
from agentrl_jax.rollout.drivers.base import Driver
from agentrl_jax.rollout.engine.grammar_compiler import (
  COMPILE_S,
  GrammarCompiler,
)


class EngineGenerator:
  """Implements `rollout.api.StreamingGenerator`."""

  def __init__(
    self,
    driver: Driver,
    *,
    deadline_s: float = 600.0,
    compile_timeout_s: float = COMPILE_S,
  ):
    """`compile_timeout_s` is the CPU time that a request's grammar may take."""
    self._driver, self._deadline_s = driver, deadline_s
    self._compiler = GrammarCompiler(driver.engine.grammars, compile_timeout_s)

  @property
  def num_policy_slots(self) -> int:
    """Number of versions that are served side by side."""
    return self._driver.engine.config.num_policy_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """Waits for the answer; cancelling frees the slot that decodes it."""
    await self._compile(spec)
    future = asyncio.wrap_future(self._driver.submit(prompt, spec))
    try:
      async with asyncio.timeout(self._deadline_s):
        return await future
    except TimeoutError as error:
      raise self._deadline_exceeded(spec) from error

  async def stream(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> AsyncGenerator[Answer, None]:
    """Yields the chunks of the answer as they are read from the engine.

    Closing it frees the slot. A slow reader does not slow the engine: its
    chunks wait here, bounded by `spec.max_tokens`.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[Answer | None] = asyncio.Queue()

    def put(chunk: Answer | None) -> None:
      with contextlib.suppress(RuntimeError):  # the reader's loop is closed
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    await self._compile(spec)
    future = self._driver.submit(prompt, spec, put)
    future.add_done_callback(lambda _: put(None))
    deadline = loop.time() + self._deadline_s
    try:
      while True:
        async with asyncio.timeout_at(deadline):
          chunk = await chunks.get()
        if chunk is None:
          break
        yield chunk
      future.result(0)  # raises the error that ended the answer
    except TimeoutError as error:
      raise self._deadline_exceeded(spec) from error
    finally:
      future.cancel()

  async def _compile(self, spec: SamplingSpec) -> None:
    """Compiles the grammar here, since `submit` would block the event loop."""
    if spec.grammar:
      await self._compiler.prepare(spec.grammar)

  def _deadline_exceeded(self, spec: SamplingSpec) -> DeadlineExceeded:
    return DeadlineExceeded(
      f"no answer of {spec.max_tokens} tokens came from policy slot "
      f"{spec.policy_slot} in {self._deadline_s} s; requests per policy slot: "
      f"{self._driver.num_inside} inside the engine, "
      f"{self._driver.num_waiting} waiting"
    )
