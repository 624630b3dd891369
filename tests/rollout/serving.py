"""Real engines behind real HTTP servers, in the test's own event loop."""

import asyncio
import contextlib

from agentrl_jax.rollout.drivers.driver import EngineGenerator, LocalDriver
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.server.app import RolloutApi, listening
from tests.rollout import small
from tests.settings import HTTP


class Served:
  """A server on an engine whose policy slots serve `small.params`."""

  def __init__(self, port=0, **changes):
    self._port, self._changes = port, changes
    self._stack = contextlib.AsyncExitStack()
    self.trouble = ""

  @property
  def address(self) -> str:
    return f"127.0.0.1:{self.port}"

  def status(self) -> wire.ServerStatus:
    return status_of(self.driver, self.trouble)

  def api_of(self, generator) -> RolloutApi:
    """Makes the HTTP interface on a generator."""
    return RolloutApi(generator, self.status, context=small.CONTEXT, http=HTTP)

  async def __aenter__(self):
    options = self._changes.pop("driver_options", {})
    self.driver = LocalDriver(small.engine_of(**self._changes), **options)
    self._stack.callback(self.driver.close)
    await self._stack.enter_async_context(self.driver.serving())
    self.api = self.api_of(EngineGenerator(self.driver, deadline_s=600.0))
    self.port = await self._stack.enter_async_context(
      listening(self.api, "127.0.0.1", self._port)
    )
    return self

  async def __aexit__(self, *error):
    await self._stack.aclose()


def status_of(driver, trouble="") -> wire.ServerStatus:
  """Returns the status that a server reports of its driver."""
  return wire.ServerStatus(
    policy_slots=tuple(
      s and wire.ServedPolicySlot(s.version, publication=s.version)
      for s in driver.engine.versions.served()
    ),
    num_inside=sum(driver.num_inside),
    num_waiting=sum(driver.num_waiting),
    trouble=trouble,
  )


def hold(test, served) -> asyncio.Event:
  """Keeps a server's engine from taking steps until it is released.

  The end of the test releases it.
  """
  released, loop = asyncio.Event(), asyncio.get_running_loop()
  step = served.driver.engine.step

  def held_step():
    asyncio.run_coroutine_threadsafe(released.wait(), loop).result(60)
    return step()

  async def release():
    released.set()

  served.driver.engine.step = held_step
  test.addAsyncCleanup(release)
  return released
