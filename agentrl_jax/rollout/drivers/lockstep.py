"""Answers in waves, so that who shares a step with whom follows from the play.

A slot's numbers may differ in the last bits with the company that it is
computed in, and who arrives in time for a step is chance. Here nobody is
answered before everyone who plays has asked, and all are answered before anyone
goes on: every wave is the same set of requests in the same order, run after
run. It costs what waiting for the slowest costs; it is for runs that must
repeat bit for bit.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from agentrl_jax.errors import AgentRLError, DeadlineExceeded
from agentrl_jax.rollout.api import Answer, SamplingSpec
from agentrl_jax.rollout.drivers.local import LocalDriver

# Turns of the event loop without news, after which everyone has asked: what
# leads from an admission to an attempt's begin takes a few, and no time else.
_QUIET_TURNS = 64


@dataclasses.dataclass(eq=False)
class _Asked:
  prompt: np.ndarray
  spec: SamplingSpec
  answer: "asyncio.Future[Answer]"

  @property
  def order(self) -> tuple[int, int, bytes]:
    """Same in every run, whoever asked first."""
    return self.spec.policy_slot, self.spec.seed, self.prompt.tobytes()


class LockstepGenerator:
  """A `rollout.api.Generator` for one event loop's attempts."""

  def __init__(self, driver: LocalDriver, *, deadline_s: float = 600.0):
    self._driver, self._deadline_s = driver, deadline_s
    self._num_playing = 0
    self._asked: list[_Asked] = []
    self._wave: asyncio.Task[None] | None = None
    self._num_events = 0

  @property
  def num_policy_slots(self) -> int:
    """How many versions are served side by side."""
    return self._driver.engine.config.num_policy_slots

  @contextlib.contextmanager
  def playing(self) -> Iterator[None]:
    """An attempt is played within: no wave comes before it has asked."""
    self._num_playing += 1
    self._num_events += 1
    try:
      yield
    finally:
      self._num_playing -= 1
      self._look()

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """Waits for the wave, then for all of its answers.

    An attempt that is cancelled is asked for no more; its wave goes on.
    """
    loop = asyncio.get_running_loop()
    asked = _Asked(np.asarray(prompt, np.int32), spec, loop.create_future())
    self._asked.append(asked)
    self._look()
    try:
      async with asyncio.timeout(self._deadline_s):
        return await asked.answer
    except TimeoutError as error:
      raise DeadlineExceeded(
        f"no wave of answers came in {self._deadline_s:g} s; {len(self._asked)}"
        f" of {self._num_playing} attempts have asked, and the others are with"
        " their environments"
      ) from error
    finally:
      if asked in self._asked:
        self._asked.remove(asked)

  def _look(self) -> None:
    self._num_events += 1
    if self._wave is None or self._wave.done():
      self._wave = asyncio.ensure_future(self._answer_all())

  async def _answer_all(self) -> None:
    """Answers wave after wave, until somebody is still to ask."""
    while await self._all_have_asked():
      wave = sorted(self._asked, key=lambda asked: asked.order)
      self._asked = []
      with self._driver.held():  # all of them are there for the first step
        answers = [self._submit(asked) for asked in wave]
      found = await asyncio.gather(*answers, return_exceptions=True)
      for asked, answer in zip(wave, found, strict=True):
        if asked.answer.done():
          continue  # it was cancelled
        if isinstance(answer, BaseException):
          asked.answer.set_exception(answer)
        else:
          asked.answer.set_result(answer)

  def _submit(self, asked: _Asked) -> "asyncio.Future[Answer]":
    try:
      submitted = self._driver.submit(asked.prompt, asked.spec)
    except AgentRLError as error:  # its own: the others are answered
      refused: asyncio.Future[Answer] = asyncio.Future()
      refused.set_exception(error)
      return refused
    return asyncio.wrap_future(submitted)

  async def _all_have_asked(self) -> bool:
    quiet = 0
    while quiet < _QUIET_TURNS:
      before = self._num_events
      await asyncio.sleep(0)
      quiet = quiet + 1 if before == self._num_events else 0
    return bool(self._asked) and len(self._asked) >= self._num_playing
