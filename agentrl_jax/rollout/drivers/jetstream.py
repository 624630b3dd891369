"""Drives the engine with JetStream's orchestrator: threads, queues and seats.

JetStream's prefill and transfer threads pass requests on in order, its generate
thread takes the steps, and a detokenize thread of our own reads them, whole
steps at a time, while the next one runs. JetStream kills the process when one
of its threads fails; here the requests fail instead, and the process lives.
"""

import contextlib
import dataclasses
import types
from collections.abc import Callable
from typing import Any

from agentrl_jax.errors import GeneratorFault
from agentrl_jax.rollout.drivers.base import Driver
from agentrl_jax.rollout.drivers.jetstream_compat import orchestrator
from agentrl_jax.rollout.drivers.jetstream_engine import (
  JetStreamEngine,
  StepTokens,
)
from agentrl_jax.rollout.engine.engine import RolloutEngine
from agentrl_jax.rollout.engine.request import Request


class JetStreamDriver(Driver):
  """Answers requests in the background until it is closed."""

  def __init__(self, engine: RolloutEngine, *, max_waiting: int = 4096):
    super().__init__(engine, max_waiting=max_waiting)
    face = JetStreamEngine(engine, num_seats=self.max_inside)
    params = face.load_params()
    self._threads = _Orchestrator(
      self,
      prefill_engines=[face],
      generate_engines=[face],
      prefill_params=[params],
      generate_params=[params],
      interleaved_mode=True,  # prefill and decode share their devices
      jax_padding=False,
    )

  def close(self) -> None:
    """Fails what is not answered, and waits for the threads to end.

    They end after the step that is running.
    """
    self._fail(GeneratorFault("the driver was closed"))
    self._threads.stop()

  def _admit(self, request: Request) -> None:
    self._threads.place_request_on_prefill_queue(
      _Ticket(
        max_tokens=request.spec.max_tokens,
        return_channel=None,
        prefill_content=[],
        request=request,
      )
    )

  def _wake(self) -> None:
    """The generate thread goes on stepping while any seat is taken."""


@dataclasses.dataclass(eq=False)
class _Ticket(orchestrator.ActiveRequest):
  """JetStream's idea of a request, around ours."""

  request: Request | None = None


class _Orchestrator(orchestrator.Driver):
  """JetStream's driver with our requests, our reader and no suicide."""

  def __init__(self, owner: JetStreamDriver, **engines: Any):
    self._owner = owner  # before the threads start
    super().__init__(**engines)

  def _process_prefill_content(
    self, request: _Ticket, *_: Any
  ) -> tuple[Request, int]:
    assert request.request is not None, "a ticket came without its request"
    return request.request, len(request.request.prompt)

  def _prefill_thread(self, idx: int) -> None:
    self._guarded(super()._prefill_thread, idx)

  def _transfer_thread(self, idx: int) -> None:
    self._guarded(super()._transfer_thread, idx)

  def _generate_thread(self, idx: int) -> None:
    self._guarded(super()._generate_thread, idx)

  def _detokenize_thread(self, idx: int) -> None:
    self._guarded(self._read_steps, idx)

  def _guarded(self, run: Callable[[int], None], idx: int) -> None:
    with _Failing(self._owner):
      run(idx)

  def _read_steps(self, idx: int) -> None:
    """Takes in steps and gives back the seats of requests that left."""
    backlog, seats = self._detokenize_backlogs[idx], self._generate_slots[idx]
    seat_of: dict[int, int] = {}  # by the request's serial
    while self.live:
      item = backlog.get()
      if item is None:
        return
      _, what = item
      if isinstance(what, _Ticket) and isinstance(item[0], int):
        assert what.request is not None, "a ticket came without its request"
        seat_of[what.request.serial] = item[0]
      elif isinstance(what, StepTokens):
        answered = self._owner.engine.read(what.step)
        for request in (*(r for r, _ in answered), *what.step.cancelled):
          seats.put(seat_of.pop(request.serial), block=False)
        self._owner._settle(answered, what.step.cancelled)


class _Failing(contextlib.AbstractContextManager["_Failing"]):
  """Whatever ends a thread fails the driver's requests, and goes no further."""

  def __init__(self, driver: JetStreamDriver):
    self._driver = driver

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: types.TracebackType | None,
  ) -> bool:
    if error is not None:
      self._driver._fail(error)
    return error is not None
