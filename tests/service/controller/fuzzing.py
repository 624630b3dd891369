"""A controller with real workers for tests that send it anything at all.

`Rig` runs both on an event loop of its own, since hypothesis calls plain
functions. Requests are written to a socket byte by byte: a client library
would refuse to send most of them.
"""

import asyncio
import collections
import contextlib
import copy
import dataclasses
import json
import logging
from typing import Any
from unittest import mock
from urllib.parse import quote, urlsplit

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

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
from tests.http_fuzz import STRANGE, Listening, Raw

TOKENS = Access(
  client="the token of clients",
  worker="the token of workers",
  operator="the token of operators",
)
ANSWER_S = 20.0  # for an answer that waits for nothing
_MARK = "\ue000mark\ue000"

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
class Request:
  """One HTTP request; `body` is JSON's value, or bytes as they are."""

  method: str
  path: str
  query: dict[str, Any] = dataclasses.field(default_factory=dict)
  headers: dict[str, str] = dataclasses.field(default_factory=dict)
  body: Any = None

  def encode(self) -> bytes:
    body = b"" if self.body is None else self.body
    if not isinstance(body, bytes):
      body = dump(body)
    query = "&".join(
      f"{key}={quote(str(value), errors='surrogatepass')}"
      for key, value in self.query.items()
    )
    target = self.path + (f"?{query}" if query else "")
    headers = {
      "Host": "127.0.0.1",
      "Connection": "close",
      "Content-Type": "application/json",
      "Content-Length": str(len(body)),
    } | self.headers
    lines = [f"{self.method} {target} HTTP/1.1"]
    lines += [f"{k}: {v}" for k, v in headers.items() if v is not None]
    head = "\r\n".join([*lines, "", ""])
    return head.encode("utf-8", "surrogateescape") + body


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


def dump(value) -> bytes:
  """Writes JSON, with each `Raw` text as it stands."""
  raws = []

  def marked(x):
    if isinstance(x, Raw):
      raws.append(x)
      return f"{_MARK}{len(raws) - 1}{_MARK}"
    if isinstance(x, dict):
      return {k: marked(v) for k, v in x.items()}
    return [marked(v) for v in x] if isinstance(x, list) else x

  text = json.dumps(marked(value))
  for n, raw in enumerate(raws):
    text = text.replace(json.dumps(f"{_MARK}{n}{_MARK}"), raw)
  return text.encode()


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
      Request("POST", f"/api/{endpoint}", more, headers, body), role=role
    )

  def get(self, endpoint, **query):
    return self.send(Request("GET", f"/api/{endpoint}", query)).json

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


TEXTS = st.text(max_size=8) | st.sampled_from(
  ["", "end", "-1", "0", "NaN", "\ud800", "x" * 70_000, "../", "\r\n", "%00"]
)
LEAVES = (
  st.none()
  | st.booleans()
  | st.integers()
  | st.floats()
  | TEXTS
  | st.sampled_from(STRANGE)
)
JUNK = st.recursive(
  LEAVES,
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3)
  ),
  max_leaves=6,
)
ODD_METHODS = ("PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW")
ODD_HEADERS = st.sampled_from(
  [
    ("session_id", ""),
    ("session_id", "-1"),
    ("session_id", "\u0663"),
    ("session_id", "9" * 400),
    ("session_id", "9" * 5000),
    ("session_id", "1 or 1=1"),
    ("session_id", "\udcff"),
    ("Authorization", "Bearer \udcff"),
    ("Authorization", "Basic eDp5"),
    ("Content-Type", "text/plain; charset=utf-16"),
    ("Content-Type", "multipart/form-data; boundary=x"),
    ("Content-Type", "\udcff/\udcff"),
    ("Content-Encoding", "gzip"),
    ("Content-Encoding", "br"),
    ("Content-Length", "-1"),
    ("Content-Length", "0"),
    ("Content-Length", "many"),
    ("Content-Length", "99999999999"),
    ("Transfer-Encoding", "chunked"),
    ("Transfer-Encoding", "gzip, chunked"),
    ("Expect", "200-ok"),
    ("Upgrade", "websocket"),
    ("Host", "["),
    ("Host", ""),
    ("Origin", "http://["),
    ("Origin", "null"),
    ("Sec-Fetch-Site", "cross-site"),
    ("Cookie", "=;=" * 50),
    ("X-Long", "x" * 9000),
  ]
)


@st.composite
def mutated(draw, sample: Request, keys=()):
  """Returns a valid request with one thing changed, or two."""
  request = sample
  for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
    kinds = ["header", "method", "body", "body bytes"]
    kinds += ["query"] * 2 if sample.query else []
    kinds += ["field"] * 8 if isinstance(sample.body, dict) else []
    match draw(st.sampled_from(kinds)):
      case "header":
        name, value = draw(ODD_HEADERS)
        headers = request.headers | {name: value}
        request = dataclasses.replace(request, headers=headers)
      case "method":
        method = draw(st.sampled_from(["GET", "POST", *ODD_METHODS]))
        request = dataclasses.replace(request, method=method)
      case "query":
        query = _changed_query(draw, request.query, sample.query)
        request = dataclasses.replace(request, query=query)
      case "body":
        request = dataclasses.replace(request, body=draw(JUNK))
      case "body bytes":
        whole = dump(sample.body)
        cut = whole[: draw(st.integers(0, len(whole)))]
        body = draw(st.sampled_from([cut, whole + b"}", b"\xff" + whole, b""]))
        request = dataclasses.replace(request, body=body)
      case "field" if isinstance(request.body, dict):
        body = copy.deepcopy(request.body)
        _change(draw, body, keys)
        request = dataclasses.replace(request, body=body)
  return request


def _changed_query(draw, query, valid):
  """Returns a query with a value replaced or left out."""
  key = draw(st.sampled_from(sorted(valid)))
  changed = {k: value for k, value in query.items() if k != key}
  if draw(st.booleans()):
    changed[key] = draw(st.text(max_size=6) | st.just("9" * 400))
  return changed


def _change(draw, body, keys):
  """Replaces, removes or adds a value of a body, at any depth."""
  places = [(body, key) for key in keys]
  level = [body]
  while level:
    holder = level.pop()
    items = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for key, value in items:
      places.append((holder, key))
      if isinstance(value, dict | list):
        level.append(value)
  if not places:
    return
  holder, key = draw(
    st.sampled_from(range(len(places))).map(places.__getitem__)
  )
  if draw(st.integers(0, 4)) or isinstance(holder, list):
    holder[key] = draw(JUNK)
  else:
    holder.pop(key, None)
