"""Rollout servers in other processes: weights out, answers in.

Weights go through a folder of snapshots, which every learner process helps to
write; answers come over HTTP, to the process that plays.
"""

import asyncio
import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import aiohttp
import ml_collections
import numpy as np

from agentrl_jax.controller.thread import CALL_S, ControllerThread
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.external.client import DIALECTS, EngineClient
from agentrl_jax.rollout.external.probe import Needs
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.client import BinaryClient, ServerClient
from agentrl_jax.rollout.remote.generator import HttpGenerator, connected
from agentrl_jax.train.weights.publish import Publisher
from agentrl_jax.train.weights.snapshots import SnapshotSink
from launch.config.settings import Settings


def snapshots_of(config: ml_collections.ConfigDict) -> str:
  """Returns the folder, or bucket, where the run's weights are published."""
  run = pathlib.Path(config.workdir) / config.name
  return str(config.rollouts.snapshots or run / "snapshots")


@contextmanager
def snapshots(
  config: ml_collections.ConfigDict, settings: Settings
) -> Iterator[SnapshotSink]:
  """Opens the snapshot folder; every learner process does so together."""
  sink = SnapshotSink(
    snapshots_of(config),
    max_lag=settings.rollouts.max_lag,
    deadline_s=settings.rollouts.sync_timeout_s,
  )
  try:
    yield sink
  finally:
    sink.close()


def publisher(
  settings: Settings, policy: Policy, sink: SnapshotSink
) -> Publisher:
  """Returns a publisher to the sink, in the precision of the rollouts."""
  return Publisher(
    policy, sink, dtype=settings.compute.dtype, layers_apart=False
  )


@contextmanager
def followed(
  config: ml_collections.ConfigDict, settings: Settings, policy: Policy
) -> Iterator[Publisher]:
  """Returns the publisher of a learner process that does not play."""
  if not settings.rollouts.addresses:
    yield Publisher(
      policy, None, gathered=True, weights=settings.engine.weights
    )
    return
  with snapshots(config, settings) as sink:
    yield publisher(settings, policy, sink)


class RemoteRollouts:
  """Rollout servers, for a process whose event loops come and go."""

  def __init__(
    self,
    generator: HttpGenerator,
    sink: SnapshotSink,
    thread: ControllerThread,
    sync_timeout_s: float,
  ):
    self._remote, self._sink = generator, sink
    self._thread, self._settle_s = thread, sync_timeout_s
    self.generator = _AcrossLoops(generator, thread.loop)

  def settle(self) -> None:
    """Waits until every server serves the last publication of policy slot 0.

    Raises `DeadlineExceeded` after `rollouts.sync_timeout_s`, with the state of
    each server.
    """
    self._sink.flush()
    fresh = {0: self._sink.publications()[0]}
    self._thread.run(
      self._remote.serving(fresh, self._settle_s), self._settle_s + CALL_S
    )

  def status(self) -> wire.ServerStatus:
    """Returns the newest versions that reachable servers serve, together."""
    reachable = [s for s in self._remote.pool.servers if s.status is not None]
    policy_slots = zip(
      *(s.status.policy_slots for s in reachable if s.status), strict=True
    )
    return wire.ServerStatus(
      policy_slots=tuple(
        max(filter(None, served), key=lambda s: s.publication, default=None)
        for served in policy_slots
      )
      or (None,) * self._remote.num_policy_slots,
      num_inside=sum(server.num_requests for server in reachable),
      num_waiting=0,
      trouble="" if reachable else self._remote.describe(),
    )

  def report(self) -> dict[str, float]:
    """Returns counts of servers and losses, and the age of their weights.

    `rollouts/lag` is in versions, of the server that is furthest behind.
    """
    pool = self._remote.pool
    reachable = [s for s in pool.servers if s.is_reachable]
    steps = [
      server.status.policy_slots[0].version
      for server in reachable
      if server.status is not None and server.status.policy_slots[0] is not None
    ]
    published = self._sink.version
    return self._sink.report() | {
      "rollouts/servers": len(reachable),
      "rollouts/lost": sum(s.num_lost for s in pool.servers),
      "rollouts/repeated": self._remote.num_repeated,
      "rollouts/lag": published - min(steps, default=published),
      "rollouts/damaged": sum(bool(s.reported_trouble) for s in reachable),
    }


def speaking(
  settings: Settings, *temperatures: float
) -> Callable[[aiohttp.ClientSession], ServerClient]:
  """Returns the client of the servers, by `rollouts.protocol`.

  `temperatures` are those that the run samples at beside training's.
  """
  rollouts, sampling = settings.rollouts, settings.sampling
  if rollouts.protocol == "agentrl":
    return BinaryClient
  if sampling.calls != "free":
    raise ConfigError(
      f"sampling.calls={sampling.calls} needs engines that sample under our "
      f"grammars, and those that speak rollouts.protocol={rollouts.protocol} "
      "do not: set --config.sampling.calls=free, or serve with "
      "launch.serve_rollouts and --config.rollouts.protocol=agentrl"
    )
  needs = Needs(
    vocab_size=settings.model.vocab_size,
    num_policy_slots=settings.engine.num_policy_slots,
    specs=(
      sampling.params(),
      *(SamplingParams(temperature=t) for t in temperatures),
    ),
    seeds=rollouts.need_seeds,
  )
  return functools.partial(
    EngineClient,
    dialect=DIALECTS[rollouts.protocol],
    needs=needs,
    model=rollouts.model,
    probe_s=rollouts.answer_timeout_s,
  )


@contextmanager
def servers(
  settings: Settings, sink: SnapshotSink, *temperatures: float
) -> Iterator[RemoteRollouts]:
  """Connects to the servers, in an event loop of its own.

  Requests sample at training's temperature, and at `temperatures`.
  """
  connecting = contextlib.AsyncExitStack()
  with ControllerThread() as thread:
    generator = thread.run(
      connecting.enter_async_context(
        connected(
          settings.rollouts,
          num_policy_slots=settings.engine.num_policy_slots,
          acceptable=sink.acceptable,
          client=speaking(settings, *temperatures),
        )
      ),
      CALL_S,
    )
    try:
      yield RemoteRollouts(
        generator, sink, thread, settings.rollouts.sync_timeout_s
      )
    finally:
      thread.run(connecting.aclose(), CALL_S)


class _AcrossLoops:
  """Calls a generator of one event loop from any other."""

  def __init__(self, generator: HttpGenerator, loop: asyncio.AbstractEventLoop):
    self._generator, self._loop = generator, loop

  @property
  def num_policy_slots(self) -> int:
    """The number of versions that are served side by side."""
    return self._generator.num_policy_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Does as `HttpGenerator.generate`; cancelling it cancels it there."""
    return await asyncio.wrap_future(
      asyncio.run_coroutine_threadsafe(
        self._generator.generate(prompt, sampling), self._loop
      )
    )
