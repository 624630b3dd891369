"""The rollout side in this process: engine, driver, and who may ask them."""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl_jax.controller.thread import CALL_S, ControllerThread
from agentrl_jax.data.chat import ChatCodec
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.driver import Driver
from agentrl_jax.rollout.engine import RolloutEngine
from agentrl_jax.rollout.generator import EngineGenerator
from agentrl_jax.rollout.jetstream_driver import JetStreamDriver
from agentrl_jax.rollout.local_driver import LocalDriver
from agentrl_jax.rollout.versions import VersionStore
from launch.settings import Settings


@dataclasses.dataclass(frozen=True)
class Service:
  """A policy in several versions, ready to answer."""

  codec: ChatCodec
  versions: VersionStore
  engine: RolloutEngine
  generator: EngineGenerator


@contextmanager
def serve(
  settings: Settings, policy: Policy, codec: ChatCodec, *, driver: str
) -> Iterator[Service]:
  """Starts the engine's threads and ends them, whatever happens between."""
  versions = VersionStore(settings.engine.num_slots)
  engine = RolloutEngine(policy, settings.engine, versions)
  with DRIVERS[driver](engine) as running:
    yield Service(codec, versions, engine, EngineGenerator(running))


@contextmanager
def _jetstream(engine: RolloutEngine) -> Iterator[Driver]:
  driver = JetStreamDriver(engine)
  try:
    yield driver
  finally:
    driver.close()


@contextmanager
def _local(engine: RolloutEngine) -> Iterator[Driver]:
  driver = LocalDriver(engine)
  serving = contextlib.AsyncExitStack()
  with ControllerThread() as thread:
    thread.run(serving.enter_async_context(driver.serving()), CALL_S)
    try:
      yield driver
    finally:
      driver.close()
      thread.run(serving.aclose(), CALL_S)


DRIVERS = {"jetstream": _jetstream, "local": _local}
