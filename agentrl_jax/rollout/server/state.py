"""Who is being answered, and whether anybody else may ask.

What every face of a server shares, whichever protocol it speaks.
"""

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
from agentrl_jax.http_requests import BodyReader, HttpLimits
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.server.metrics import ServerMetrics

# Of no other request: the engine is well.
_OF_ONE_REQUEST = (PromptTooLong, ServerFull, GrammarFault, ListenerFault)


class ServerState:
  """Counts the calls that are being answered. Of one event loop.

  `is_final` says that an error of the generator is its last: an engine's is, a
  pool's of servers is not.
  """

  def __init__(
    self,
    status: Callable[[], wire.ServerStatus],
    slots: Callable[[], Sequence[int]] | None = None,
    *,
    is_final: bool = True,
    http: HttpLimits = HttpLimits(),  # noqa: B008 - frozen
  ):
    self._status, self._is_final = status, is_final
    self.bodies = BodyReader(http)
    self.metrics = ServerMetrics(self.status, slots)
    self._is_draining = False
    self.num_asked = 0
    self._emptied = asyncio.Event()
    self._emptied.set()
    # What broke the engine, once something has: no request will be answered.
    self.broken: asyncio.Future[GeneratorFault] = (
      asyncio.get_running_loop().create_future()
    )

  def status(self) -> wire.ServerStatus:
    """What is served per policy slot, how much there is to do, and trouble."""
    return dataclasses.replace(self._status(), is_draining=self._is_draining)

  def refuse_unready(self, policy_slot: int) -> None:
    """Raises `Draining` or `NotServing` if that is how it is."""
    status = self.status()
    if self._is_draining:
      raise wire.Draining("this server was told to stop; ask another one")
    if policy_slot in range(len(status.policy_slots)) and not status.answers(
      policy_slot
    ):
      raise wire.NotServing(
        f"this server waits for the first snapshot of policy slot "
        f"{policy_slot}; it "
        f"has {status.policy_slots}. {status.trouble}"
      )

  @contextlib.contextmanager
  def one(self) -> Iterator[None]:
    """Around one call: draining waits for it, and a broken engine is seen."""
    self.num_asked += 1
    self._emptied.clear()
    try:
      yield
    except GeneratorFault as fault:
      self.failed(fault)
      raise
    finally:
      self.num_asked -= 1
      if not self.num_asked:
        self._emptied.set()

  def failed(self, error: AgentRLError) -> None:
    """Takes note of an error: some say that nothing will be answered again."""
    is_last = self._is_final and isinstance(error, GeneratorFault)
    if not is_last or isinstance(error, _OF_ONE_REQUEST):
      return
    self._is_draining = True
    if not self.broken.done():
      self.broken.set_result(error)

  async def drain(self, grace_s: float) -> None:
    """Takes nothing new, and waits for what is being answered.

    Raises `DeadlineExceeded` if that takes longer than `grace_s`.
    """
    self._is_draining = True
    try:
      async with asyncio.timeout(grace_s):
        await self._emptied.wait()
    except TimeoutError as error:
      raise DeadlineExceeded(
        f"{self.num_asked} answers were not finished within rollouts.grace_s="
        f"{grace_s:g} s of being told to stop; their clients ask another server"
      ) from error
