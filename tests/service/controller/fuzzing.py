"""A controller with real workers for tests that send it anything at all.

`Rig` runs both on an event loop of its own, since hypothesis calls plain
functions. Requests are written to a socket byte by byte.
"""

import asyncio
import collections
import contextlib
import dataclasses
import json
import logging
from unittest import mock
from urllib.parse import urlsplit

from hypothesis import HealthCheck, settings

from agentrl_jax.bearer_token import bearer
from agentrl_jax.data.records import Message, Status
from agentrl_jax.env.interface import Environment, Session, Step
from agentrl_jax.errors import ConfigError
from agentrl_jax.http_requests import SERVICE_LIMITS
from agentrl_jax.service.controller import main as service
from agentrl_jax.service.controller.access import Access
from agentrl_jax.service.controller.main import ServiceConfig
from agentrl_jax.service.controller.registry import Timers
from agentrl_jax.service.worker import grpc as grpc_worker
from agentrl_jax.service.worker import heartbeat
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig, serve
from tests.clocks import turns_of_the_loop, until
from tests.env.moody import says
from tests.http_fuzz import Listening, Request

TOKENS = Access(
  client="the token of clients",
  worker="the token of workers",
  operator="the token of operators",
)
ANSWER_S = 20.0  # for an answer that waits for nothing

DEFAULTS = settings(
  deadline=None,
  database=None,
  derandomize=True,
  suppress_health_check=list(HealthCheck),
)


class Echo(Environment):
  """Repeats answers, counts them by seed, and breaks on what is no text."""

  def __init__(self, name):
    self.name = name
    self.plays = collections.defaultdict(list)
    self.num_open = 0

  def indices(self, split):
    if split != "test":
      raise ConfigError(f"{self.name} has no split {split!r}")
    return range(1000)

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    self.num_open += 1
    try:
      yield _Echoing(self.plays[seed])
    finally:
      self.num_open -= 1


class _Echoing(Session):
  tools = ()

  def __init__(self, plays):
    self._plays = plays

  async def reset(self):
    return Step((Message("user", "Well?"),))

  async def step(self, answer):
    self._plays.append(answer.content)
    if answer.content.strip() == "end":
      return Step((), 1.0, Status.COMPLETED)
    return Step((Message("user", f"{len(self._plays)}: {answer.content}"),))


@dataclasses.dataclass(frozen=True)
class Reply:
  """The answer to a request; no status if the connection was just closed."""

  status: int | None
  headers: dict[str, str]
  content: bytes

  @property
  def json(self):
    return json.loads(self.content, parse_constant=_refuse)


def _refuse(constant):
  raise ValueError(f"{constant} is no JSON")


class Rig:
  """A controller and workers, on a loop that runs while a call is made."""

  def __init__(self, access=None, timers=None, http=SERVICE_LIMITS):
    self.http = http
    self.access = access = access or Access()
    self.num_requests = 0
    self.log = Listening()
    self._runner = asyncio.Runner()
    self._stack = contextlib.AsyncExitStack()
    self._patches = contextlib.ExitStack()
    patch = self._patches.enter_context
    patch(mock.patch.object(grpc_worker, "PAUSE_S", 0.02))
    for module in (grpc_worker, heartbeat):
      patch(mock.patch.object(module, "PERIOD_S", 0.05))
    logging.getLogger().addHandler(self.log)
    self.addresses = self.run(
      self._stack.enter_async_context(
        service.serve(
          ServiceConfig(port=0, grpc_port=0, access=access, http=http),
          timers or Timers(queue_s=0.2),
        )
      )
    )

  def close(self):
    logging.getLogger().removeHandler(self.log)
    try:
      self.run(self._stack.aclose())
    finally:
      self._runner.close()
      self._patches.close()

  def run(self, work):
    return self._runner.run(work)

  def worker(self, name, *, grpc=False, concurrency=1000):
    """Starts a worker; returns its environment, URL and exit stack."""
    return self.run(self._worker(name, grpc, concurrency))

  async def _worker(self, name, grpc, concurrency):
    echo, stack = Echo(name), contextlib.AsyncExitStack()
    controller = self.addresses.grpc if grpc else self.addresses.http
    before = await self._alive()
    url = await stack.enter_async_context(
      serve(
        echo,
        WorkerConfig(
          port=0,
          controller=controller,
          num_indices=9,
          http=self.http,
          token=self.access.worker,
        ),
        HostLimits(concurrency=concurrency),
      )
    )
    self._stack.push_async_exit(stack)

    async def is_registered():
      return await self._alive() - before

    await until(is_registered)
    return echo, url, stack

  async def _alive(self):
    tasks = (await self.asend(Request("GET", "/api/list_workers"))).json
    return {
      (task, w["address"])
      for task, entry in tasks.items()
      for w in entry["workers"].values()
      if w["status"] == "ALIVE"
    }

  def send(self, request, *, url=None, role="operator"):
    return self.run(self.asend(request, url=url, role=role))

  def post(self, endpoint, body=None, *, session=None, role="operator", **more):
    headers = {} if session is None else {"session_id": str(session)}
    return self.send(
      Request("POST", f"/api/{endpoint}", body, headers, query=more), role=role
    )

  def get(self, endpoint, **query):
    return self.send(Request("GET", f"/api/{endpoint}", query=query)).json

  async def asend(self, request, *, url=None, role="operator") -> Reply:
    """Sends a request with a role's token; returns the answer."""
    if role and "Authorization" not in request.headers:
      token = bearer(getattr(self.access, role))
      request = dataclasses.replace(request, headers=token | request.headers)
    return await self.exchange(request.encode(), url=url)

  async def hang_up(self, content: bytes, *, url=None):
    """Writes bytes to a server, and reads nothing."""
    parts = urlsplit(url or self.addresses.http)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(content)
    await writer.drain()
    await turns_of_the_loop()  # so that the server begins to read
    writer.close()
    await writer.wait_closed()

  async def exchange(self, content: bytes, *, url=None) -> Reply:
    """Writes bytes to a server, and reads what it writes until it closes."""
    self.num_requests += 1
    parts = urlsplit(url or self.addresses.http)
    async with asyncio.timeout(ANSWER_S):
      reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
      try:
        writer.write(content)
        with contextlib.suppress(ConnectionError):
          await writer.drain()
        return _reply(await _read_all(reader))
      finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
          await writer.wait_closed()

  def start(self, name, role="operator", **more):
    """Starts a session; returns its id, or None with the answer."""
    reply = self.post(
      "start_sample", {"name": name, "index": 0, "wait_s": 0, **more}, role=role
    )
    if reply.status != 200:
      return None, reply
    return int(reply.headers["session_id"]), reply

  def say(self, session, words, role="operator", **more):
    body = {"messages": says(words), **more}
    return self.post("interact", body, session=session, role=role)

  def troubles(self):
    """Returns the errors and tracebacks in the log since the last call.

    Leaves out events that gRPC delivers late, to the closed loop of another
    test's controller.
    """
    troubles, self.log.troubles[:] = list(self.log.troubles), []
    return [t for t in troubles if "PollerCompletionQueue" not in t]


async def _read_all(reader):
  chunks = []
  with contextlib.suppress(ConnectionError):
    while chunk := await reader.read(1 << 16):
      chunks.append(chunk)
  return b"".join(chunks)


def _reply(content):
  head, _, body = content.partition(b"\r\n\r\n")
  first, *lines = head.decode("latin-1").split("\r\n")
  if not first.startswith("HTTP/1."):
    return Reply(None, {}, content)
  headers = dict(line.split(": ", 1) for line in lines)
  return Reply(int(first.split()[1]), headers, body)
