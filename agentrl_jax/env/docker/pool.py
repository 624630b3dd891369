"""An environment in several containers, each replaced when it dies.

  async with container_pool(engine, spec, num_containers=4) as environment: ...

A session that was in a container that died is a fault, as its attempt is lost;
the next one is opened elsewhere, or waits until the container is replaced.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import docker

from agentrl_jax.data.split import SPLITS
from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.docker.containers import ContainerSpec, container_worker
from agentrl_jax.env.interface import Environment, Session
from agentrl_jax.env.protocol.client import ClientDeadlines
from agentrl_jax.env.remote.environment import RemoteEnvironment
from agentrl_jax.errors import AgentRLError, ConfigError, EnvironmentFault

_log = logging.getLogger(__name__)

CHECK_PERIOD_S = 10.0  # between two looks at a container that nobody suspects
_FIRST_PAUSE_S = 0.5  # before another container is tried; doubled each time,
_LONGEST_PAUSE_S = 60.0  # up to this


class _Berth:
  """The place of one container."""

  def __init__(self) -> None:
    self.environment: RemoteEnvironment | None = None  # while one is alive
    self.num_sessions = 0
    self.is_suspect = asyncio.Event()

  @contextlib.asynccontextmanager
  async def occupied(self) -> AsyncIterator[None]:
    """Counts a session; one that fails casts suspicion on the container."""
    self.num_sessions += 1
    try:
      yield
    except EnvironmentFault:
      self.is_suspect.set()
      raise
    finally:
      self.num_sessions -= 1


class ContainerPool(Environment):
  """Sessions go to the container with the fewest; made by `container_pool`."""

  def __init__(
    self,
    engine: docker.DockerClient,
    spec: ContainerSpec,
    *,
    num_containers: int,
    splits: Sequence[str],
    deadlines: ClientDeadlines,
  ):
    if num_containers < 1:
      raise ConfigError(f"num_containers={num_containers} must be 1 or more")
    self._engine = engine
    self._spec = spec
    self._splits = splits
    self._deadlines = deadlines
    self._berths = [_Berth() for _ in range(num_containers)]
    self._filled = asyncio.Condition()
    self._indices: dict[str, Sequence[int]] = {}

  def indices(self, split: str) -> Sequence[int]:
    """As the first container's worker said."""
    if split not in self._indices:
      raise ConfigError(
        f"{self.name} has no split {split!r} here, only "
        f"{', '.join(self._indices)}"
      )
    return self._indices[split]

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Waits for a container that is alive, and then for a place in it."""
    berth, environment = await self._choose()
    async with (
      berth.occupied(),
      environment.open(task, seed=seed) as session,
    ):
      yield session

  async def run(self) -> None:
    """Keeps the berths filled until cancelled.

    Raises what keeps a first container from starting.
    """
    async with asyncio.TaskGroup() as group:
      for berth in self._berths:
        group.create_task(self._keep_filled(berth))

  async def wait_until_filled(self) -> None:
    """Waits until each berth has its first container."""
    async with self._filled:
      await self._filled.wait_for(
        lambda: all(berth.environment for berth in self._berths)
      )

  async def _choose(self) -> tuple[_Berth, RemoteEnvironment]:
    def alive() -> list[_Berth]:
      return [berth for berth in self._berths if berth.environment]

    place_s = self._deadlines.place_s
    try:
      async with asyncio.timeout(place_s), self._filled:
        await self._filled.wait_for(alive)
    except TimeoutError as error:
      raise EnvironmentFault(
        f"no container of {self._spec.image} came to life within {place_s:g} "
        "s; the log says why each died"
      ) from error
    berth = min(alive(), key=lambda berth: berth.num_sessions)
    assert berth.environment is not None
    return berth, berth.environment

  async def _keep_filled(self, berth: _Berth) -> None:
    backoff_s = _FIRST_PAUSE_S
    has_lived = False
    while True:
      try:
        async with self._container() as environment:
          await self._announce(berth, environment)
          has_lived, backoff_s = True, _FIRST_PAUSE_S
          await _until_dead(berth, environment)
          _log.warning("a container of %s died", self._spec.image)
      except AgentRLError as error:
        if not has_lived:
          raise
        _log.warning("no new container within %g s: %s", backoff_s, error)
        await asyncio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, _LONGEST_PAUSE_S)
      finally:
        berth.environment = None

  def _container(
    self,
  ) -> contextlib.AbstractAsyncContextManager[RemoteEnvironment]:
    return container_worker(
      self._engine, self._spec, splits=self._splits, deadlines=self._deadlines
    )

  async def _announce(
    self, berth: _Berth, environment: RemoteEnvironment
  ) -> None:
    async with self._filled:
      self.name = environment.name
      self._indices = {s: environment.indices(s) for s in self._splits}
      berth.is_suspect.clear()
      berth.environment = environment
      self._filled.notify_all()


@contextlib.asynccontextmanager
async def container_pool(
  engine: docker.DockerClient,
  spec: ContainerSpec,
  *,
  num_containers: int = 1,
  splits: Sequence[str] = SPLITS,
  deadlines: ClientDeadlines = ClientDeadlines(),  # noqa: B008 - frozen
) -> AsyncIterator[ContainerPool]:
  """The environment that these containers serve, once all of them have begun.

  Raises what keeps one from starting: see `containers.container_worker`.
  """
  pool = ContainerPool(
    engine,
    spec,
    num_containers=num_containers,
    splits=splits,
    deadlines=deadlines,
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
  """Raises what broke, not the group of all that broke at once."""
  error = running.exception()
  while isinstance(error, BaseExceptionGroup):
    error = error.exceptions[0]
  if error is not None:
    raise error


async def _until_dead(berth: _Berth, environment: RemoteEnvironment) -> None:
  """Returns once the worker no longer answers."""
  while await environment.is_alive():
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(CHECK_PERIOD_S):
        await berth.is_suspect.wait()
    berth.is_suspect.clear()
