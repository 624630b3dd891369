"""Environment whose connections live in an event loop of their own.

Containers and connections belong to the loop that opened them, but a run plays
in several loops, one after the other. Sessions opened here may be played from
any loop: each call crosses over and back, in about a tenth of a millisecond.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from agentrl_jax.data.records import Message, Task
from agentrl_jax.env.interface import Environment, Expert, Session, Step
from agentrl_jax.env.scripted import ScriptedPolicies

T = TypeVar("T")


class OtherLoopEnvironment(Environment):
  """Plays sessions of `remote` in `loop`, the rest in `local`.

  `local` is the same environment in this process: it knows the indices of every
  split, and its experts know the gold solutions, which do not travel.
  """

  def __init__(
    self,
    local: Environment,
    remote: Environment,
    loop: asyncio.AbstractEventLoop,
  ):
    self.name, self.mistakes = local.name, local.mistakes
    self.baseline = local.baseline
    self._local, self._remote, self._loop = local, remote, loop

  def indices(self, split: str) -> Sequence[int]:
    """Returns the local environment's indices."""
    return self._local.indices(split)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes the local environment's expert."""
    return self._local.expert(task, seed=seed, mistakes=mistakes)

  def scripted_policies(self) -> ScriptedPolicies:
    """Returns the local environment's policies."""
    return self._local.scripted_policies()

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session in the other loop; leaving always frees the session."""
    context = self._remote.open(task, seed=seed)
    session = await self.across(context.__aenter__())
    try:
      yield _OtherLoopSession(session, self)
    except BaseException as error:
      # The type of the error decides whether a container is suspect.
      leaving = context.__aexit__(type(error), error, error.__traceback__)
      await asyncio.shield(self.across(leaving))
      raise
    await asyncio.shield(self.across(context.__aexit__(None, None, None)))

  async def close(self) -> None:
    """Closes the local environment; the remote one has an owner."""
    await self._local.close()

  def across(self, call: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Runs a coroutine in the other loop; a cancellation cancels it there."""
    return asyncio.wrap_future(
      asyncio.run_coroutine_threadsafe(call, self._loop)
    )


class _OtherLoopSession(Session):
  def __init__(self, session: Session, environment: OtherLoopEnvironment):
    self.tools = session.tools
    self._session, self._environment = session, environment

  async def reset(self) -> Step:
    return await self._environment.across(self._session.reset())

  async def step(self, answer: Message) -> Step:
    step = await self._environment.across(self._session.step(answer))
    self.tools = self._session.tools
    return step
