"""Environment that a worker serves, with the interface of a local one.

  async with remote.connect("http://127.0.0.1:5021/api") as environment:
    async with environment.open(task, seed=0) as session: ...

It has no expert: gold solutions stay with the worker.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import aiohttp

from agentrl_jax.bearer_token import bearer
from agentrl_jax.data.records import Message, Status, Task, Tool
from agentrl_jax.data.split import LOADED_SPLIT, SPLITS
from agentrl_jax.env.interface import Environment, Session, Step
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.protocol.client import ClientDeadlines, WorkerClient
from agentrl_jax.service.protocol.link import WorkerFull, WorkerRefusal
from agentrl_jax.waits import Backoff

_log = logging.getLogger(__name__)

# Shorter than any server's, so that no request meets a closing connection:
# AgentRL's workers close one that was idle for 5 s.
_KEEPALIVE_S = 4.0
_PAUSE_S = 0.01, 1.0  # between requests for a place, first and longest


class RemoteEnvironment(Environment):
  """The splits of a worker; see `connect`, `connect_foreign`."""

  def __init__(
    self,
    name: str,
    splits: Mapping[str, Sequence[int]],
    client: WorkerClient,
    deadlines: ClientDeadlines,
    *,
    concurrency: int,
    is_ours: bool,
  ):
    self.name = name
    self._splits = dict(splits)
    self._client = client
    self._deadlines = deadlines
    self._free_places = asyncio.Semaphore(concurrency)
    self._is_ours = is_ours

  @property
  def splits(self) -> tuple[str, ...]:
    """Returns the names of the splits that the worker serves."""
    return tuple(self._splits)

  def indices(self, split: str) -> Sequence[int]:
    """Returns the indices that the worker reported on connection."""
    if split not in self._splits:
      raise ConfigError(
        f"worker {self._client.url} serves no split {split!r} of {self.name}, "
        f"only {', '.join(self._splits)}"
      )
    return self._splits[split]

  async def is_alive(self) -> bool:
    """Returns whether the worker answers within `ask_s`."""
    try:
      await self._client.concurrency()
    except EnvironmentFault:
      return False
    return True

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Waits for capacity; leaving cancels a session that has not ended.

    Raises `ConfigError` for a split that the worker does not serve, and
    `EnvironmentFault` if it has no room within `place_s`.
    """
    if self._is_ours and task.split not in self._splits:
      await self._ask_for(task.split)
    self.indices(task.split)
    id = random.getrandbits(48)  # many clients may share a worker
    async with self._capacity():
      try:
        session = await self._start(id, task, seed)
      except BaseException:
        await self._cancel(id)  # the worker may have begun it
        raise
      try:
        yield session
      finally:
        if session.is_running:
          await self._cancel(id)

  async def _ask_for(self, split: str) -> None:
    """Learns of a split that the worker was not asked for on connection."""
    with contextlib.suppress(WorkerRefusal):  # it has none
      _, self._splits[split] = await self._client.describe(split)

  @contextlib.asynccontextmanager
  async def _capacity(self) -> AsyncIterator[None]:
    """Takes one of the worker's places, as counted by this process."""
    place_s = self._deadlines.place_s
    try:
      async with asyncio.timeout(place_s):
        await self._free_places.acquire()
    except TimeoutError as error:
      raise EnvironmentFault(
        f"no session of {self.name} ended within {place_s:g} s; raise the "
        "worker's --concurrency, or see what its sessions wait for"
      ) from error
    try:
      yield
    finally:
      self._free_places.release()

  async def _start(self, id: int, task: Task, seed: int) -> "_RemoteSession":
    """Starts the session, waiting while other clients fill the worker."""
    given_up_at = time.monotonic() + self._deadlines.place_s
    backoff = Backoff(*_PAUSE_S)
    while True:
      try:
        first, tools = await self._client.start(
          id,
          index=task.index,
          split=task.split if self._is_ours else None,
          seed=seed if self._is_ours else None,
        )
      except WorkerFull:
        if not backoff.fits(given_up_at):
          raise
        await asyncio.sleep(backoff.next_s())
      else:
        return _RemoteSession(self._client, id, first, tools)

  async def _cancel(self, id: int) -> None:
    try:
      await self._client.cancel(id)
    except WorkerRefusal:
      pass  # it never began, or it has ended
    except EnvironmentFault as fault:
      _log.warning("session %d is left to expire: %s", id, fault)


class _RemoteSession(Session):
  def __init__(
    self, client: WorkerClient, id: int, first: Step, tools: tuple[Tool, ...]
  ):
    self.tools = tools
    self.is_running = first.status is Status.RUNNING
    self._client = client
    self._id = id
    self._first = first

  async def reset(self) -> Step:
    return self._first

  async def step(self, answer: Message) -> Step:
    step, tools = await self._client.interact(self._id, answer)
    self.tools = tools or self.tools
    self.is_running = step.status is Status.RUNNING
    return step


@contextlib.asynccontextmanager
async def connect(
  url: str,
  *,
  splits: Sequence[str] = (*SPLITS, LOADED_SPLIT),
  token: str = "",
  deadlines: ClientDeadlines = ClientDeadlines(),  # noqa: B008 - frozen
) -> AsyncIterator[RemoteEnvironment]:
  """Connects to one of our workers, with those of `splits` that it has.

  `token` is the worker's, if it requires one. Raises `WorkerRefusal` if the
  worker has none of the splits.
  """
  async with _client(url, deadlines, token) as client:
    described: dict[str, tuple[str, Sequence[int]]] = {}
    for split in splits:
      try:
        described[split] = await client.describe(split)
      except WorkerRefusal:
        if split == splits[-1] and not described:
          raise
    name = next(name for name, _ in described.values())
    yield RemoteEnvironment(
      name,
      {split: indices for split, (_, indices) in described.items()},
      client,
      deadlines,
      concurrency=await client.concurrency(),
      is_ours=True,
    )


@contextlib.asynccontextmanager
async def connect_foreign(
  url: str,
  *,
  name: str,
  split: str,
  deadlines: ClientDeadlines = ClientDeadlines(),  # noqa: B008 - frozen
) -> AsyncIterator[RemoteEnvironment]:
  """Connects to a worker that was written for AgentRL.

  Such a worker reports neither its task's name nor splits, and takes no seed:
  the caller names both, and sessions have the worker's own randomness.
  """
  async with _client(url, deadlines) as client:
    yield RemoteEnvironment(
      name,
      {split: await client.indices()},
      client,
      deadlines,
      concurrency=await client.concurrency(),
      is_ours=False,
    )


@contextlib.asynccontextmanager
async def _client(
  url: str, deadlines: ClientDeadlines, token: str = ""
) -> AsyncIterator[WorkerClient]:
  connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
  async with aiohttp.ClientSession(
    connector=connector, headers=bearer(token)
  ) as http:
    yield WorkerClient(http, url, deadlines)
