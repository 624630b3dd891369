"""The state of a server that all its protocols share."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from agentrl_jax.errors import (
  AgentRLError,
  DeadlineExceeded,
  GeneratorFault,
  GrammarFault,
  ListenerFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.http_requests import HttpLimits
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.server.metrics import ServerMetrics

# Errors that concern a single request; the engine goes on.
_REQUEST_ERRORS = (PromptTooLong, ServerFull, GrammarFault, ListenerFault)


class ServerState:
  """The calls of a server; belongs to one event loop.

  With `is_final` an error of the generator is its last: true of an engine,
  false of a pool of servers.
  """

  def __init__(
    self,
    status: Callable[[], wire.ServerStatus],
    slots: Callable[[], Sequence[int]] | None = None,
    *,
    is_final: bool = True,
    http: HttpLimits,
  ):
    self._status, self._is_final = status, is_final
    self.http = http
    self.metrics = ServerMetrics(self.status, slots)
    self._is_draining = False
    self.num_calls = 0
    self._no_calls = asyncio.Event()
    self._no_calls.set()
    # The error that broke the engine, once there is one.
    self.broken: asyncio.Future[GeneratorFault] = (
      asyncio.get_running_loop().create_future()
    )

  def status(self) -> wire.ServerStatus:
    """Returns the served versions, the load and problems."""
    return dataclasses.replace(self._status(), is_draining=self._is_draining)

  def refuse_unready(self, policy_slot: int) -> None:
    """Raises `Draining`, or `NotServing` without weights."""
    status = self.status()
    if self._is_draining:
      raise wire.Draining("this server was told to stop; ask another one")
    if policy_slot in range(len(status.policy_slots)) and not status.answers(
      policy_slot
    ):
      raise wire.NotServing(
        "this server waits for the first snapshot of policy slot "
        f"{policy_slot}; it has {status.policy_slots}. {status.trouble}"
      )

  @contextlib.contextmanager
  def call(self) -> Iterator[None]:
    """Encloses one call: draining waits for it; notes a broken engine."""
    self.num_calls += 1
    self._no_calls.clear()
    try:
      yield
    except GeneratorFault as fault:
      self.failed(fault)
      raise
    finally:
      self.num_calls -= 1
      if not self.num_calls:
        self._no_calls.set()

  def failed(self, error: AgentRLError) -> None:
    """Takes note of an error, which may be the engine's last."""
    is_last = self._is_final and isinstance(error, GeneratorFault)
    if not is_last or isinstance(error, _REQUEST_ERRORS):
      return
    self._is_draining = True
    if not self.broken.done():
      self.broken.set_result(error)

  async def drain(self, grace_s: float) -> None:
    """Refuses new calls, and waits for those being answered.

    Raises `DeadlineExceeded` if that takes longer than `grace_s`.
    """
    self._is_draining = True
    try:
      async with asyncio.timeout(grace_s):
        await self._no_calls.wait()
    except TimeoutError as error:
      raise DeadlineExceeded(
        f"{self.num_calls} answers were not finished within rollouts.grace_s="
        f"{grace_s:g} s of being told to stop; their clients ask another server"
      ) from error
