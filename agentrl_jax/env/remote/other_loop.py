"""An environment whose connections live in an event loop of its own.

Containers and connections belong to the loop that opened them, while a run
plays in several, one after the other. Sessions opened here may be played from
any loop: each call crosses over and back, in about a tenth of a millisecond.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from agentrl_jax.data.messages import Message
from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.interface import Environment, Expert, Session, Step
from agentrl_jax.env.scripted import ScriptedPolicies

T = TypeVar("T")


class OtherLoopEnvironment(Environment):
  """Plays in `there`, which lives in `loop`; asks `here` for all the rest.

  `here` is the same environment in this process: it knows the indices of every
  split, and its experts the gold solutions, which do not travel.
  """

  def __init__(
    self,
    here: Environment,
    there: Environment,
    loop: asyncio.AbstractEventLoop,
  ):
    self.name, self.mistakes = here.name, here.mistakes
    self._here, self._there, self._loop = here, there, loop

  def indices(self, split: str) -> Sequence[int]:
    """As the environment in this process says."""
    return self._here.indices(split)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Of the environment in this process."""
    return self._here.expert(task, seed=seed, mistakes=mistakes)

  def scripted_policies(self) -> ScriptedPolicies:
    """Of the environment in this process."""
    return self._here.scripted_policies()

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """A session over there; its freeing goes on if leaving is cancelled."""
    context = self._there.open(task, seed=seed)
    session = await self.across(context.__aenter__())
    try:
      yield _OtherLoopSession(session, self)
    except BaseException as error:
      # It decides over there whether a container falls under suspicion.
      leaving = context.__aexit__(type(error), error, error.__traceback__)
      await asyncio.shield(self.across(leaving))
      raise
    await asyncio.shield(self.across(context.__aexit__(None, None, None)))

  async def close(self) -> None:
    """Closes the environment in this process; `there` has an owner."""
    await self._here.close()

  def across(self, call: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Makes a call over there; cancelling it cancels it there."""
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
