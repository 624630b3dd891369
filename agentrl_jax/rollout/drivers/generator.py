"""The engine as the controller knows it: an awaitable `Generator`."""

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
  """A `rollout.api.StreamingGenerator` on a driver in this process."""

  def __init__(
    self,
    driver: Driver,
    *,
    deadline_s: float = 600.0,
    compile_timeout_s: float = COMPILE_S,
  ):
    """`compile_timeout_s` are CPU seconds that a request's grammar may take."""
    self._driver, self._deadline_s = driver, deadline_s
    self._compiler = GrammarCompiler(driver.engine.grammars, compile_timeout_s)

  @property
  def num_policy_slots(self) -> int:
    """How many versions are served side by side."""
    return self._driver.engine.config.num_policy_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """Waits for the answer; cancelling frees the slot that decodes it."""
    await self._prepare(spec)
    future = asyncio.wrap_future(self._driver.submit(prompt, spec))
    try:
      async with asyncio.timeout(self._deadline_s):
        return await future
    except TimeoutError as error:
      raise self._late(spec) from error

  async def stream(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> AsyncGenerator[Answer, None]:
    """The answer in pieces, as they are read from the engine.

    Closing it frees the slot that decodes. A slow reader slows nobody: what it
    has not taken waits here, and `spec.max_tokens` bounds that.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[Answer | None] = asyncio.Queue()

    def hear(piece: Answer | None) -> None:
      with contextlib.suppress(RuntimeError):  # the loop of a reader is gone
        loop.call_soon_threadsafe(pieces.put_nowait, piece)

    await self._prepare(spec)
    future = self._driver.submit(prompt, spec, hear)
    future.add_done_callback(lambda _: hear(None))
    ends = loop.time() + self._deadline_s
    try:
      while True:
        async with asyncio.timeout_at(ends):
          piece = await pieces.get()
        if piece is None:
          break
        yield piece
      future.result(0)  # raises what ended it
    except TimeoutError as error:
      raise self._late(spec) from error
    finally:
      future.cancel()

  async def _prepare(self, spec: SamplingSpec) -> None:
    """Compiles the grammar beside the event loop; submitting waits for it."""
    if spec.grammar:
      await self._compiler.prepare(spec.grammar)

  def _late(self, spec: SamplingSpec) -> DeadlineExceeded:
    return DeadlineExceeded(
      f"no answer of {spec.max_tokens} tokens came from policy slot "
      f"{spec.policy_slot} in {self._deadline_s} s; inside the engine per "
      f"policy slot: "
      f"{self._driver.num_inside}, waiting: {self._driver.num_waiting}"
    )
