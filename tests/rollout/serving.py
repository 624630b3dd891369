"""Real engines behind real HTTP servers, in the test's own event loop."""

import contextlib

from agentrl_jax.rollout import wire
from agentrl_jax.rollout.generator import EngineGenerator
from agentrl_jax.rollout.http_server import RolloutApi, listening
from agentrl_jax.rollout.local_driver import LocalDriver
from tests.rollout import small


class Served:
  """A server on an engine whose slot i serves what step i made."""

  def __init__(self, port=0, **changes):
    self._port, self._changes = port, changes
    self._stack = contextlib.AsyncExitStack()
    self.trouble = ""

  @property
  def address(self) -> str:
    return f"127.0.0.1:{self.port}"

  def status(self) -> wire.ServerStatus:
    steps = self.driver.engine.versions.steps()
    return wire.ServerStatus(
      slots=tuple(
        None if step is None else wire.ServedSlot(step, edition=step)
        for step in steps
      ),
      num_inside=sum(self.driver.num_inside),
      num_waiting=sum(self.driver.num_waiting),
      trouble=self.trouble,
    )

  def api_of(self, generator) -> RolloutApi:
    """What it says over HTTP."""
    return RolloutApi(generator, self.status, context=small.CONTEXT)

  async def __aenter__(self):
    options = self._changes.pop("driver_options", {})
    self.driver = LocalDriver(small.engine_of(**self._changes), **options)
    self._stack.callback(self.driver.close)
    await self._stack.enter_async_context(self.driver.serving())
    self.api = self.api_of(EngineGenerator(self.driver))
    self.port = await self._stack.enter_async_context(
      listening(self.api, "127.0.0.1", self._port)
    )
    return self

  async def __aexit__(self, *error):
    await self._stack.aclose()
