"""Starts the rollout side of a run: engine and driver, or remote servers."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import jax
import ml_collections

from agentrl_jax.controller.thread import CALL_S, ControllerThread
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import Generator
from agentrl_jax.rollout.drivers.driver import (
  Driver,
  EngineGenerator,
  LocalDriver,
)
from agentrl_jax.rollout.drivers.metrics import EngineMetrics
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.remote import wire
from agentrl_jax.train.weights.publish import Publisher
from launch.config.settings import Settings
from launch.serving import remote as remote_serving


@dataclasses.dataclass(frozen=True)
class Service:
  """A policy in several versions, ready to answer, here or elsewhere."""

  codec: ChatCodec
  publisher: Publisher
  generator: Generator
  # Waits until what was published last is what every answer comes from.
  settle: Callable[[], None]
  report: Callable[[], Mapping[str, float]]  # for the metrics
  status: Callable[[], wire.ServerStatus]  # what the policy slots serve
  driver: Driver | None = None  # of the engine in this process

  def require_engine(self) -> None:
    """Raises `GeneratorFault` if the engine in this process has stopped."""
    if self.driver is not None:
      self.driver.require_running()


@contextmanager
def serve_run(
  config: ml_collections.ConfigDict,
  settings: Settings,
  policy: Policy,
  codec: ChatCodec,
) -> Iterator[Service]:
  """Serves by the servers in `rollouts.servers`, or else in this process."""
  if not settings.rollouts.addresses:
    driver = config.engine.driver
    with serve(settings, policy, codec, driver=driver) as service:
      yield service
    return
  with (
    remote_serving.snapshots(config, settings) as sink,
    remote_serving.servers(
      settings, sink, config.evaluation.temperature
    ) as remote,
  ):
    yield Service(
      codec,
      remote_serving.publisher(settings, policy, sink),
      remote.generator,
      remote.settle,
      remote.report,
      remote.status,
    )


@contextmanager
def serve(
  settings: Settings, policy: Policy, codec: ChatCodec, *, driver: str
) -> Iterator[Service]:
  """Starts the engine's threads, and ends them whatever happens between."""
  versions = ServedWeights(settings.engine.num_policy_slots)
  engine = RolloutEngine(
    policy,
    settings.engine,
    versions,
    grammars=grammars_by(lambda: codec, policy),
  )
  with DRIVERS[driver](engine) as running:
    yield Service(
      codec,
      Publisher(
        policy,
        versions,
        gathered=jax.process_count() > 1,
        weights=settings.engine.weights,
      ),
      EngineGenerator(
        running, deadline_s=settings.waits.answer_timeout_s, max_grammars=None
      ),
      settle=lambda: None,  # publishing here is serving
      report=EngineMetrics(running).report,
      status=functools.partial(status_of, running),
      driver=running,
    )


def grammars_by(
  codec: Callable[[], ChatCodec | None], policy: Policy
) -> Callable[[], Grammars | None]:
  """Returns a function that makes the grammar reader on first use.

  It returns None while there is no codec.
  """
  found: list[Grammars] = []

  def grammars() -> Grammars | None:
    if not found and (known := codec()) is not None:
      found.append(known.grammars(policy.config.vocab_size))
    return found[0] if found else None

  return grammars


def status_of(driver: Driver) -> wire.ServerStatus:
  """Returns the versions that an engine serves, and its load."""
  return wire.ServerStatus(
    policy_slots=tuple(
      None
      if served is None
      else wire.ServedPolicySlot(served.version, served.publication)
      for served in driver.engine.versions.served()
    ),
    num_inside=sum(driver.num_inside),
    num_waiting=sum(driver.num_waiting),
  )


@contextmanager
def _jetstream(engine: RolloutEngine) -> Iterator[Driver]:
  # Where another driver is chosen, google-jetstream need not be installed.
  try:
    from agentrl_jax.rollout.drivers.jetstream import JetStreamDriver
  except ImportError as error:
    raise ConfigError(f"engine.driver=jetstream: {error}") from error
  driver = JetStreamDriver(engine)
  try:
    yield driver
  finally:
    driver.close()


@contextmanager
def _local(engine: RolloutEngine) -> Iterator[Driver]:
  driver = LocalDriver(engine)
  with ControllerThread() as thread, thread.entered(driver.serving(), CALL_S):
    try:
      yield driver
    finally:
      driver.close()


DRIVERS = {"jetstream": _jetstream, "local": _local}
