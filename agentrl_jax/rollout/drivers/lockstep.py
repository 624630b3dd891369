"""A generator that answers in lockstep, for runs that must repeat bit for bit.

The last bits of a sequence's numbers may depend on the sequences beside it in a
step, and the arrival of requests is a matter of timing. Therefore no request is
answered before every running episode has sent one, and all are answered before
any episode goes on: each round is the same list of requests in every run. Each
round takes as long as the slowest environment.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from agentrl_jax.errors import AgentRLError, DeadlineExceeded
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver

# Turns of the event loop without a request or a new episode, after which all
# running episodes have sent theirs: a new episode starts within a few turns
# after its admission.
_QUIET_TURNS = 64


@dataclasses.dataclass(eq=False)
class _WaitingRequest:
  """A request of the next round."""

  prompt: np.ndarray
  sampling: SamplingParams
  answer: "asyncio.Future[Completion]"

  @property
  def order(self) -> tuple[int, int, bytes]:
    """Sort key that does not depend on the time of arrival."""
    return self.sampling.policy_slot, self.sampling.seed, self.prompt.tobytes()


class LockstepGenerator:
  """A `rollout.api.Generator` for the episodes of one event loop."""

  def __init__(self, driver: LocalDriver, *, deadline_s: float):
    self._driver, self._deadline_s = driver, deadline_s
    self._num_playing = 0
    self._waiting: list[_WaitingRequest] = []
    self._rounds: asyncio.Task[None] | None = None
    self._num_events = 0

  @property
  def num_policy_slots(self) -> int:
    """Number of versions that are served side by side."""
    return self._driver.engine.config.num_policy_slots

  @contextlib.contextmanager
  def playing(self) -> Iterator[None]:
    """Plays an episode in the context: each round waits for its request."""
    self._num_playing += 1
    self._num_events += 1
    try:
      yield
    finally:
      self._num_playing -= 1
      self._start_rounds()

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Waits for the next round, then for all of its answers.

    Cancelling drops the answer; the round goes on.
    """
    loop = asyncio.get_running_loop()
    request = _WaitingRequest(
      np.asarray(prompt, np.int32), sampling, loop.create_future()
    )
    self._waiting.append(request)
    self._start_rounds()
    try:
      async with asyncio.timeout(self._deadline_s):
        return await request.answer
    except TimeoutError as error:
      raise DeadlineExceeded(
        f"no round of answers came in {self._deadline_s:g} s; "
        f"{len(self._waiting)} of {self._num_playing} episodes wait for an "
        "answer, the others for their environments"
      ) from error
    finally:
      if request in self._waiting:
        self._waiting.remove(request)

  def _start_rounds(self) -> None:
    self._num_events += 1
    if self._rounds is None or self._rounds.done():
      self._rounds = asyncio.ensure_future(self._run_rounds())

  async def _run_rounds(self) -> None:
    """Answers round after round, until an episode has no request yet."""
    while await self._all_wait():
      batch = sorted(self._waiting, key=lambda request: request.order)
      self._waiting = []
      with self._driver.paused():  # all requests reach the first step
        submitted = [self._submit(request) for request in batch]
      answers = await asyncio.gather(*submitted, return_exceptions=True)
      for request, answer in zip(batch, answers, strict=True):
        if request.answer.done():
          continue  # it was cancelled
        if isinstance(answer, BaseException):
          request.answer.set_exception(answer)
        else:
          request.answer.set_result(answer)

  def _submit(self, request: _WaitingRequest) -> "asyncio.Future[Completion]":
    try:
      submitted = self._driver.submit(request.prompt, request.sampling)
    except AgentRLError as error:  # only this request is refused
      refused: asyncio.Future[Completion] = asyncio.Future()
      refused.set_exception(error)
      return refused
    return asyncio.wrap_future(submitted)

  async def _all_wait(self) -> bool:
    num_quiet = 0
    while num_quiet < _QUIET_TURNS:
      before = self._num_events
      await asyncio.sleep(0)
      num_quiet = num_quiet + 1 if before == self._num_events else 0
    return bool(self._waiting) and len(self._waiting) >= self._num_playing
