"""A generator that asks rollout servers in other processes.

An answer is a function of its request and the weights, so whoever loses a
server asks another one the same: a lost server costs time and no attempt. Every
wait has a deadline, and its error tells how each server is. Needs no jax.
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

from agentrl_jax.errors import (
  ConfigError,
  DeadlineExceeded,
  GeneratorFault,
  GrammarFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.rollout.api import Answer, SamplingSpec
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.client import (
  CONNECT_S,
  AskAgain,
  BinaryClient,
  ServerClient,
  Unreachable,
  bearer,
)
from agentrl_jax.rollout.remote.pool import Server, ServerPool
from agentrl_jax.rollout.settings import RolloutsConfig

REST_S = 1.0  # of a server that is full
LOOK_AGAIN_S = 0.5  # while nobody can be asked

T = TypeVar("T")
Ask = Callable[[Server], Coroutine[Any, Any, T]]  # asks one server


class _Lost(GeneratorFault):
  """The server went away with the request."""


class HttpGenerator:
  """A `rollout.api.StreamingGenerator` over servers; made by `connected`.

  It belongs to the event loop in which it was made.
  """

  def __init__(
    self, client: ServerClient, pool: ServerPool, config: RolloutsConfig
  ):
    self._client, self.pool, self._config = client, pool, config
    self._changed = asyncio.Event()
    self._asking: dict[Server, set[asyncio.Task[Any]]] = {
      server: set() for server in pool.servers
    }
    self._refusal: ConfigError | None = None
    self.num_repeated = 0  # requests asked once more, of another server

  @property
  def num_policy_slots(self) -> int:
    """How many versions are served side by side."""
    return self.pool.num_policy_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Answer:
    """Waits for the answer of some server; cancelling frees its slot.

    Asks others while servers are lost or full, until
    `rollouts.answer_timeout_s` have passed.
    """
    request = self._client.request(prompt, spec)
    return await self._within_deadline(
      spec, lambda server: self._client.answer(server, request)
    )

  async def stream(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> AsyncGenerator[Answer, None]:
    """The answer in pieces, as they come; closing it frees the slot.

    A server that is lost under way is replaced as in `generate` by one that
    goes on with the same tokens; if none does, that is a `GeneratorFault`.
    """
    request, pieces = self._client.request(prompt, spec), Chunks()

    async def follow(server: Server) -> None:
      pieces.begin()
      found = self._client.stream(server, request)
      async with contextlib.aclosing(found):
        async for piece in found:
          pieces.put(piece)

    drawing = asyncio.create_task(self._within_deadline(spec, follow))
    drawing.add_done_callback(lambda _: pieces.end())
    try:
      while (piece := await pieces.get()) is not None:
        yield piece
      drawing.result()  # raises what ended it
    finally:
      drawing.cancel()
      await asyncio.gather(drawing, return_exceptions=True)

  async def _within_deadline(self, spec: SamplingSpec, ask: Ask[T]) -> T:
    try:
      async with asyncio.timeout(self._config.answer_timeout_s) as timer:
        return await self._asked(spec, ask)
    except TimeoutError as error:
      if not timer.expired():
        raise
      raise DeadlineExceeded(
        f"no rollout server gave an answer of {spec.max_tokens} tokens from "
        f"policy slot {spec.policy_slot} within rollouts.answer_timeout_s="
        f"{self._config.answer_timeout_s:g} s: {self.describe()}"
      ) from error

  async def serving(
    self, publications: Mapping[int, int], timeout_s: float
  ) -> None:
    """Waits until every server that can be reached serves these publications.

    From now on only servers that do are asked. One server is enough: those
    that come later load the newest weights before they answer.
    """
    self.pool.need(publications)
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
        f"rollout "
        f"servers to serve what it published: {self.describe()}. Look at what "
        "they print, and whether they can read rollouts.snapshots"
      ) from error

  def describe(self) -> str:
    """How each server is."""
    return "; ".join(map(str, self.pool.servers))

  async def watch(self, server: Server) -> None:
    """Looks after a server until it is cancelled."""
    last_heard = asyncio.get_running_loop().time()
    within_s = min(CONNECT_S, self._config.server_timeout_s)
    while self._refusal is None:
      now = asyncio.get_running_loop().time()
      try:
        status = await self._client.status(server, within_s)
      except ConfigError as refusal:
        self._refuse(refusal)
      except (aiohttp.ClientConnectorError, GeneratorFault) as error:
        self._lose(server, f"cannot be asked: {error}")
      except (aiohttp.ClientError, TimeoutError) as error:
        if now - last_heard > self._config.server_timeout_s:
          self._lose(
            server,
            f"has not told its health for {now - last_heard:.0f} s: {error!r}",
          )
      else:
        last_heard = now
        self._hear(server, status)
      await asyncio.sleep(self._config.health_interval_s)

  async def _asked(self, spec: SamplingSpec, ask: Ask[T]) -> T:
    """What the first server says to it that is able and not lost."""
    while True:
      self._raise_refusal()
      server = self.pool.choose(spec)
      if server is None:
        await self._change()
        continue
      try:
        return await self._ask(server, ask)
      except (PromptTooLong, GrammarFault, Differs):
        raise  # it would be the same everywhere
      except ServerFull:
        self.pool.rest(server, REST_S)
      except (_Lost, AskAgain):
        self.num_repeated += 1
      except GeneratorFault as fault:
        self.num_repeated += 1
        self._lose(server, f"broke: {fault}")

  async def _ask(self, server: Server, ask: Ask[T]) -> T:
    """The answer. `_Lost` if the server is, by this request or another."""
    task = asyncio.create_task(self._post(server, ask))
    task.add_done_callback(_retrieved)
    self._asking[server].add(task)
    server.num_asked += 1
    try:
      await asyncio.wait([task])
    finally:
      server.num_asked -= 1
      self._asking[server].discard(task)
      task.cancel()
    if task.cancelled():
      raise _Lost(f"{server}")
    return task.result()

  async def _post(self, server: Server, ask: Ask[T]) -> T:
    try:
      return await ask(server)
    except Unreachable as error:
      self._lose(server, f"was lost: {error}")
      raise _Lost(f"{server}") from error

  def _hear(self, server: Server, status: wire.ServerStatus) -> None:
    try:
      self.pool.heard(server, status)
    except ConfigError as refusal:
      self._refuse(refusal)
    self._announce()

  def _refuse(self, refusal: ConfigError) -> None:
    """Nobody is asked any more: this will not pass."""
    self._refusal = refusal
    self._announce()

  def _lose(self, server: Server, why: str) -> None:
    """Its other requests are asked of others, too."""
    self.pool.lost(server, why)
    for task in self._asking[server]:
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
    """Waits until something was heard, or for a moment."""
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(LOOK_AGAIN_S):
        await self._changed.wait()


def _retrieved(task: asyncio.Task[Any]) -> None:
  """Its error may find nobody: who asked may have been cancelled meanwhile."""
  if not task.cancelled():
    task.exception()


@contextlib.asynccontextmanager
async def connected(
  config: RolloutsConfig,
  *,
  num_policy_slots: int,
  acceptable: Callable[[], Mapping[int, int]] = dict,
  speaking: Callable[[aiohttp.ClientSession], ServerClient] = BinaryClient,
) -> AsyncIterator[HttpGenerator]:
  """A generator that looks after its servers until it is left.

  `acceptable` is asked for the oldest publication to sample from, by policy
  slot; `speaking` makes what speaks with the servers.
  """
  pool = ServerPool(
    config.addresses, num_policy_slots=num_policy_slots, acceptable=acceptable
  )
  async with aiohttp.ClientSession(
    connector=aiohttp.TCPConnector(limit=0),
    headers=bearer(config.read_token()),
  ) as http:
    generator = HttpGenerator(speaking(http), pool, config)
    watching = [
      asyncio.create_task(generator.watch(server), name=server.address)
      for server in pool.servers
    ]
    try:
      yield generator
    finally:
      for task in watching:
        task.cancel()
      await asyncio.gather(*watching, return_exceptions=True)


class Differs(GeneratorFault):
  """The rest of an answer was lost with its server."""


class Chunks:
  """From whoever draws to whoever reads, in one event loop."""

  def __init__(self) -> None:
    self._queue: asyncio.Queue[Answer | None] = asyncio.Queue()
    self._known: list[tuple[int, int]] = []  # ids and versions handed out
    self._place = 0  # tokens that the server of now has given

  def begin(self) -> None:
    """Another server gives the answer, from its first token on."""
    self._place = 0

  def put(self, piece: Answer) -> None:
    """Hands out what is new. Raises `Differs` if the rest is not the same."""
    tokens = list(
      zip(piece.sampled.tolist(), piece.version.tolist(), strict=True)
    )
    old = self._known[self._place : self._place + len(tokens)]
    if tokens[: len(old)] != old:
      raise Differs(
        f"{len(self._known)} tokens of an answer had been handed out when its "
        "server was lost, and the server asked next answers in other words or "
        "with other weights, so that the rest would not follow; ask again"
      )
    self._place += len(tokens)
    if len(old) == len(tokens):
      return
    self._known += tokens[len(old) :]
    self._queue.put_nowait(piece.span(len(old)))

  def end(self) -> None:
    """Nothing comes any more."""
    self._queue.put_nowait(None)

  async def get(self) -> Answer | None:
    """Waits for the next piece; None at the end."""
    return await self._queue.get()
