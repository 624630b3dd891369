"""A generator over rollout servers in other processes.

An answer is a function of its request and the weights, so the request of a lost
server is sent to another one: a lost server costs time, and no episode. Every
wait has a deadline, and its error describes every server. Needs no jax.
"""

import asyncio
import contextlib
from collections.abc import (
  AsyncGenerator,
  AsyncIterator,
  Callable,
  Coroutine,
  Mapping,
  Sequence,
)
from typing import Any, TypeVar

import aiohttp
import numpy as np

from agentrl_jax.bearer_token import bearer
from agentrl_jax.errors import (
  ConfigError,
  DeadlineExceeded,
  GeneratorFault,
  GrammarFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.client import (
  CONNECT_TIMEOUT_S,
  BinaryClient,
  RetryRequest,
  ServerClient,
  Unreachable,
)
from agentrl_jax.rollout.remote.pool import Server, ServerPool
from agentrl_jax.rollout.settings import RolloutsConfig

PAUSE_S = 1.0  # after a server was full
POLL_S = 0.5  # while no server is available

T = TypeVar("T")
Send = Callable[[Server], Coroutine[Any, Any, T]]  # to one server


class _Lost(GeneratorFault):
  """The server was lost before it answered."""


class HttpGenerator:
  """A `rollout.api.StreamingGenerator` over servers; made by `connected`.

  Belongs to the event loop in which it was created.
  """

  def __init__(
    self, client: ServerClient, pool: ServerPool, config: RolloutsConfig
  ):
    self._client, self.pool, self._config = client, pool, config
    self._changed = asyncio.Event()
    self._tasks: dict[Server, set[asyncio.Task[Any]]] = {
      server: set() for server in pool.servers
    }
    self._refusal: Exception | None = None
    self.num_repeated = 0  # requests sent once more

  @property
  def num_policy_slots(self) -> int:
    """Number of versions that are served side by side."""
    return self.pool.num_policy_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Waits for the answer of some server; cancelling frees its slot.

    Goes on to other servers while servers are lost or full, for up to
    `rollouts.answer_timeout_s`.
    """
    request = self._client.request(prompt, sampling)
    return await self._within_deadline(
      sampling, lambda server: self._client.answer(server, request)
    )

  async def stream(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> AsyncGenerator[Completion, None]:
    """Yields the answer in chunks, as they come; closing frees the slot.

    Another server replaces a lost one, as in `generate`, if it continues with
    the same tokens; otherwise raises `GeneratorFault`.
    """
    request, stream = self._client.request(prompt, sampling), ResumableStream()

    async def follow(server: Server) -> None:
      stream.restart()
      chunks = self._client.stream(server, request)
      async with contextlib.aclosing(chunks):
        async for chunk in chunks:
          stream.put(chunk)

    task = asyncio.create_task(self._within_deadline(sampling, follow))
    task.add_done_callback(lambda _: stream.end())
    try:
      while (chunk := await stream.get()) is not None:
        yield chunk
      task.result()  # raises the error that ended the stream
    finally:
      task.cancel()
      await asyncio.gather(task, return_exceptions=True)

  async def _within_deadline(
    self, sampling: SamplingParams, send: Send[T]
  ) -> T:
    try:
      async with asyncio.timeout(self._config.answer_timeout_s) as timer:
        return await self._send_to_any(sampling, send)
    except TimeoutError as error:
      if not timer.expired():
        raise
      raise DeadlineExceeded(
        f"no rollout server gave an answer of {sampling.max_tokens} tokens "
        f"from policy slot {sampling.policy_slot} within "
        f"rollouts.answer_timeout_s={self._config.answer_timeout_s:g} s: "
        f"{self.describe()}"
      ) from error

  async def serving(
    self, publications: Mapping[int, int], timeout_s: float
  ) -> None:
    """Waits until every reachable server serves these publications.

    Servers with older ones are excluded from then on. One server is enough:
    servers that come later load the newest weights before they answer.
    """
    self.pool.require(publications)
    try:
      async with asyncio.timeout(timeout_s) as timer:
        while self.pool.lagging() or not any(
          server.is_reachable for server in self.pool.servers
        ):
          self._raise_refusal()
          await self._change()
    except TimeoutError as error:
      if not timer.expired():
        raise
      raise DeadlineExceeded(
        f"the learner waited rollouts.sync_timeout_s={timeout_s:g} s for the "
        f"rollout servers to serve its publication: {self.describe()}. Look at "
        "their output, and whether they can read rollouts.snapshots"
      ) from error

  def describe(self) -> str:
    """Describes every server."""
    return "; ".join(map(str, self.pool.servers))

  async def watch(self, server: Server) -> None:
    """Polls the health of a server until cancelled."""
    last_status = asyncio.get_running_loop().time()
    within_s = min(CONNECT_TIMEOUT_S, self._config.server_timeout_s)
    while self._refusal is None:
      now = asyncio.get_running_loop().time()
      try:
        status = await self._client.status(server, within_s)
      except ConfigError as refusal:
        self._refuse(refusal)
      except (aiohttp.ClientConnectorError, GeneratorFault) as error:
        self._lose(server, f"cannot be reached: {error}")
      except (aiohttp.ClientError, TimeoutError) as error:
        if now - last_status > self._config.server_timeout_s:
          self._lose(
            server,
            f"has not reported its health for {now - last_status:.0f} s: "
            f"{error!r}",
          )
      except Exception as error:
        self._refuse(error)  # a mistake of ours: every caller hears of it
        raise
      else:
        last_status = now
        self._update(server, status)
      await asyncio.sleep(self._config.health_interval_s)

  async def _send_to_any(self, sampling: SamplingParams, send: Send[T]) -> T:
    """Returns the answer of the first server that is available and not lost."""
    while True:
      self._raise_refusal()
      server = self.pool.choose(sampling)
      if server is None:
        await self._change()
        continue
      try:
        return await self._send_to(server, send)
      except (PromptTooLong, GrammarFault, StreamDiverged):
        raise  # the same on every server
      except ServerFull:
        self.pool.pause(server, PAUSE_S)
      except (_Lost, RetryRequest):
        self.num_repeated += 1
      except GeneratorFault as fault:
        self.num_repeated += 1
        self._lose(server, f"broke: {fault}")

  async def _send_to(self, server: Server, send: Send[T]) -> T:
    """Returns the answer; raises `_Lost` once any request loses the server."""
    task = asyncio.create_task(self._post(server, send))
    task.add_done_callback(_retrieve_error)
    self._tasks[server].add(task)
    server.num_requests += 1
    try:
      await asyncio.wait([task])
    finally:
      server.num_requests -= 1
      self._tasks[server].discard(task)
      task.cancel()
    if task.cancelled():
      raise _Lost(f"{server}")
    return task.result()

  async def _post(self, server: Server, send: Send[T]) -> T:
    try:
      return await send(server)
    except Unreachable as error:
      self._lose(server, f"was lost: {error}")
      raise _Lost(f"{server}") from error

  def _update(self, server: Server, status: wire.ServerStatus) -> None:
    try:
      self.pool.update(server, status)
    except ConfigError as refusal:
      self._refuse(refusal)
    self._announce()

  def _refuse(self, refusal: Exception) -> None:
    """Fails all requests from now on: the error is permanent."""
    self._refusal = refusal
    self._announce()

  def _lose(self, server: Server, why: str) -> None:
    """Sends all requests of a server to others."""
    self.pool.mark_lost(server, why)
    for task in self._tasks[server]:
      if task is not asyncio.current_task():
        task.cancel()
    self._announce()

  def _raise_refusal(self) -> None:
    if self._refusal is not None:
      raise self._refusal

  def _announce(self) -> None:
    self._changed.set()
    self._changed = asyncio.Event()

  async def _change(self) -> None:
    """Waits until a server changed, for up to `POLL_S`."""
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(POLL_S):
        await self._changed.wait()


def _retrieve_error(task: asyncio.Task[Any]) -> None:
  """Retrieves a task's error, since its caller may have been cancelled."""
  if not task.cancelled():
    task.exception()


@contextlib.asynccontextmanager
async def connected(
  config: RolloutsConfig,
  *,
  num_policy_slots: int,
  acceptable: Callable[[], Mapping[int, int]] = dict,
  client: Callable[[aiohttp.ClientSession], ServerClient] = BinaryClient,
) -> AsyncIterator[HttpGenerator]:
  """Yields a generator that polls its servers within the context.

  `acceptable` returns the oldest publication to sample from, by policy slot;
  `client` creates the client of the servers.
  """
  pool = ServerPool(
    config.addresses, num_policy_slots=num_policy_slots, acceptable=acceptable
  )
  async with aiohttp.ClientSession(
    connector=aiohttp.TCPConnector(limit=0), headers=bearer(config.read_token())
  ) as http:
    generator = HttpGenerator(client(http), pool, config)
    watchers = [
      asyncio.create_task(generator.watch(server), name=server.address)
      for server in pool.servers
    ]
    try:
      yield generator
    finally:
      for task in watchers:
        task.cancel()
      await asyncio.gather(*watchers, return_exceptions=True)


class StreamDiverged(GeneratorFault):
  """No server continues an answer of which a part was handed out."""


class ResumableStream:
  """Chunks of one answer, whichever servers they come from; one event loop.

  Chunks that were handed out cannot be taken back. When a server is lost, the
  next one gets the same request; since the seed and the position decide every
  draw, its answer begins with the same tokens if it has the same weights.
  `put` checks that.
  """

  def __init__(self) -> None:
    self._queue: asyncio.Queue[Completion | None] = asyncio.Queue()
    self._known: list[tuple[int, int]] = []  # ids and versions handed out
    self._num_sent = 0  # tokens that the current server has sent

  def restart(self) -> None:
    """Expects the answer from its first token on, from another server."""
    self._num_sent = 0

  def put(self, chunk: Completion) -> None:
    """Hands out new tokens. Raises `StreamDiverged` if others changed."""
    tokens = list(
      zip(chunk.sampled.tolist(), chunk.version.tolist(), strict=True)
    )
    old = self._known[self._num_sent : self._num_sent + len(tokens)]
    if tokens[: len(old)] != old:
      raise StreamDiverged(
        f"{len(self._known)} tokens of an answer had been handed out when its "
        "server was lost, and the next server has sampled others or has other "
        "weights, so it cannot continue them; repeat the request"
      )
    self._num_sent += len(tokens)
    if len(old) == len(tokens):
      return
    self._known += tokens[len(old) :]
    self._queue.put_nowait(chunk.span(len(old)))

  def end(self) -> None:
    """Ends the stream."""
    self._queue.put_nowait(None)

  async def get(self) -> Completion | None:
    """Waits for the next chunk; None at the end."""
    return await self._queue.get()
