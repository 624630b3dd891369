"""Pool of containers that serve one environment, replaced when they die.

  async with container_pool(engine, spec, num_containers=4) as environment: ...

A session in a container that dies raises a fault; the next session opens in
another container, or waits until the container is replaced.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import docker

from agentrl_jax.data.records import Task
from agentrl_jax.env.interface import Environment, Session
from agentrl_jax.env.options import require_positive
from agentrl_jax.errors import AgentRLError, ConfigError, EnvironmentFault
from agentrl_jax.service.docker.containers import (
  ContainerSpec,
  container_worker,
)
from agentrl_jax.service.protocol.client import ClientDeadlines
from agentrl_jax.service.remote.environment import RemoteEnvironment
from agentrl_jax.waits import Backoff

_log = logging.getLogger(__name__)

CHECK_PERIOD_S = 10.0  # between two checks of a container
_PAUSE_S = 0.5, 60.0  # before another container is started, first and longest


class _Replica:
  """One container of the pool, and its replacements."""

  def __init__(self) -> None:
    # None between two containers.
    self.environment: RemoteEnvironment | None = None
    self.num_sessions = 0
    self.is_suspect = asyncio.Event()

  @contextlib.asynccontextmanager
  async def counted(self) -> AsyncIterator[None]:
    """Counts a session; a fault makes the container suspect."""
    self.num_sessions += 1
    try:
      yield
    except EnvironmentFault:
      self.is_suspect.set()
      raise
    finally:
      self.num_sessions -= 1


class ContainerPool(Environment):
  """Opens sessions in the container with the fewest of them.

  Made by `container_pool`.
  """

  def __init__(
    self,
    engine: docker.DockerClient,
    spec: ContainerSpec,
    *,
    num_containers: int,
    deadlines: ClientDeadlines,
  ):
    require_positive(num_containers=num_containers)
    self._engine = engine
    self._spec = spec
    self._deadlines = deadlines
    self._replicas = [_Replica() for _ in range(num_containers)]
    self._filled = asyncio.Condition()
    self._indices: dict[str, Sequence[int]] = {}

  def indices(self, split: str) -> Sequence[int]:
    """Returns the indices that the first container's worker reported."""
    if split not in self._indices:
      raise ConfigError(
        f"{self.name} has no split {split!r} here, only "
        f"{', '.join(self._indices)}"
      )
    return self._indices[split]

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Waits for a container that is alive, and then for its capacity."""
    replica, environment = await self._choose()
    async with replica.counted(), environment.open(task, seed=seed) as session:
      yield session

  async def run(self) -> None:
    """Replaces dead containers until cancelled.

    Raises the error that keeps a first container from starting.
    """
    async with asyncio.TaskGroup() as group:
      for replica in self._replicas:
        group.create_task(self._keep_filled(replica))

  async def wait_until_filled(self) -> None:
    """Waits until all first containers have started."""
    async with self._filled:
      await self._filled.wait_for(
        lambda: all(replica.environment for replica in self._replicas)
      )

  async def _choose(self) -> tuple[_Replica, RemoteEnvironment]:
    def alive() -> list[_Replica]:
      return [replica for replica in self._replicas if replica.environment]

    place_s = self._deadlines.place_s
    try:
      async with asyncio.timeout(place_s), self._filled:
        await self._filled.wait_for(alive)
    except TimeoutError as error:
      raise EnvironmentFault(
        f"no container of {self._spec.image} was ready within {place_s:g} "
        "s; the log has the reasons"
      ) from error
    replica = min(alive(), key=lambda replica: replica.num_sessions)
    assert replica.environment is not None
    return replica, replica.environment

  async def _keep_filled(self, replica: _Replica) -> None:
    backoff = Backoff(*_PAUSE_S)
    has_lived = False
    while True:
      try:
        async with container_worker(
          self._engine, self._spec, deadlines=self._deadlines
        ) as environment:
          await self._announce(replica, environment)
          has_lived, backoff = True, Backoff(*_PAUSE_S)
          await _until_dead(replica, environment)
          _log.warning("a container of %s died", self._spec.image)
      except AgentRLError as error:
        if not has_lived:
          raise
        pause_s = backoff.next_s()
        _log.warning("no new container within %g s: %s", pause_s, error)
        await asyncio.sleep(pause_s)
      finally:
        replica.environment = None

  async def _announce(
    self, replica: _Replica, environment: RemoteEnvironment
  ) -> None:
    async with self._filled:
      self.name = environment.name
      self._indices = {s: environment.indices(s) for s in environment.splits}
      replica.is_suspect.clear()
      replica.environment = environment
      self._filled.notify_all()


@contextlib.asynccontextmanager
async def container_pool(
  engine: docker.DockerClient,
  spec: ContainerSpec,
  *,
  num_containers: int = 1,
  deadlines: ClientDeadlines = ClientDeadlines(),  # noqa: B008 - frozen
) -> AsyncIterator[ContainerPool]:
  """Starts the containers and yields the environment that they serve.

  Raises the error that keeps one from starting: see `container_worker`.
  """
  pool = ContainerPool(
    engine, spec, num_containers=num_containers, deadlines=deadlines
  )
  running = asyncio.create_task(pool.run(), name=f"containers-{spec.image}")
  filling = asyncio.create_task(pool.wait_until_filled())
  try:
    # Bounded by `start_timeout_s`: the pool fails if a first container takes
    # longer.
    await asyncio.wait({running, filling}, return_when="FIRST_COMPLETED")
    if not running.done():
      yield pool
  finally:
    filling.cancel()
    running.cancel()
    await asyncio.wait({running, filling})
  if not running.cancelled():
    _raise_first(running)


def _raise_first(running: asyncio.Task[None]) -> None:
  """Raises the first error of a nested exception group."""
  error = running.exception()
  while isinstance(error, BaseExceptionGroup):
    error = error.exceptions[0]
  if error is not None:
    raise error


async def _until_dead(
  replica: _Replica, environment: RemoteEnvironment
) -> None:
  """Returns once the worker no longer answers."""
  while await environment.is_alive():
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(CHECK_PERIOD_S):
        await replica.is_suspect.wait()
    replica.is_suspect.clear()
