"""Reads HTTP requests within limits, for all servers of this framework.

No request can block a server: heads and bodies have a deadline, each body and
all bodies together have a maximum size, and JSON has a maximum depth and number
of values. Violations raise `RequestRefused` with an HTTP status. Needs no jax.

Invariants of `BodyReader`:

- a body is counted by none of a server's other limits before it is complete;
- its bytes count from their arrival until the body has been parsed;
- it is decompressed beside the event loop, and never beyond the maximum size;
- where memory is short, the incomplete body that began first is dropped, so
  slow senders cannot exclude others.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import resource
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from aiohttp import ClientPayloadError, ClientResponse, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from agentrl_jax.errors import AgentRLError, ConfigError, refuse_constant

MAX_DEPTH = 100  # of nested lists and objects in JSON
MIB = 1 << 20
_MOST_MIB = 1 << 20  # which are a TiB
MOST_FILES = 1 << 20  # open ones, where there is no limit
FEW_FILES = 4096
_OTHER_FILES = 64  # that a server has open besides its connections
SHORT = 1 << 16  # bytes, which are parsed in a millisecond


class RequestRefused(AgentRLError, ValueError):
  """A refused request, with an HTTP status and a code of one word."""

  def __init__(self, message: str, *, status: int = 400, code: str = ""):
    super().__init__(message)
    self.status, self.code = status, code or "invalid_request"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpLimits:
  """Limits of requests before they are processed."""

  head_timeout_s: float  # for a request's head, and of idle connections
  body_timeout_s: float  # for a request's body
  max_body: int  # bytes of a body, decompressed
  max_bodies: int  # bytes of all bodies that are being read

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if not value > 0:
        raise ConfigError(f"http.{name}={value} must be more than 0")
    if self.max_bodies < self.max_body:
      raise ConfigError(
        f"http.max_bodies={self.max_bodies} bytes are less than one body of "
        f"http.max_body={self.max_body}: raise the former"
      )

  def runner_options(self) -> dict[str, Any]:
    """Returns options of `aiohttp.web.AppRunner`.

    Its keep-alive timer also starts with a new connection and closes it if no
    head arrives, which is the deadline of heads.
    """
    return {
      "keepalive_timeout": self.head_timeout_s,
      "lingering_time": min(5.0, self.head_timeout_s),
      "logger": LOG,
      "access_log": None,
      # aiohttp would decompress on the event loop, without a limit.
      "auto_decompress": False,
      "handle_signals": False,
    }


# Limits of servers that no config describes: workers and the controller. The
# longest bodies are heartbeats of workers, which list a task's indices.
SERVICE_LIMITS = HttpLimits(
  head_timeout_s=30.0,
  body_timeout_s=60.0,
  max_body=8 * MIB,
  max_bodies=256 * MIB,
)


def add_limits(parser: argparse.ArgumentParser) -> None:
  """Adds --head-timeout-s, --body-timeout-s and --max-body-mib."""
  for name, text in (
    ("head_timeout_s", "seconds for a request's head"),
    ("body_timeout_s", "seconds for a request's body"),
  ):
    parser.add_argument(
      f"--{name.replace('_', '-')}",
      type=float,
      default=getattr(SERVICE_LIMITS, name),
      help=text,
    )
  parser.add_argument(
    "--max-body-mib",
    type=float,
    default=SERVICE_LIMITS.max_body / MIB,
    help="MiB of a request's body",
  )


def read_limits(given: Mapping[str, Any]) -> HttpLimits:
  """Returns the limits that a command line gives. Raises `ConfigError`."""
  if not 0 < given["max_body_mib"] <= _MOST_MIB:
    raise ConfigError(
      f"--max-body-mib={given['max_body_mib']} must be above 0 and at most "
      f"{_MOST_MIB}"
    )
  return dataclasses.replace(
    SERVICE_LIMITS,
    head_timeout_s=given["head_timeout_s"],
    body_timeout_s=given["body_timeout_s"],
    max_body=round(given["max_body_mib"] * MIB),
    max_bodies=max(
      SERVICE_LIMITS.max_bodies, round(given["max_body_mib"] * MIB)
    ),
  )


def raise_file_limit() -> int:
  """Lets this process open as many files as it may; returns how many.

  Each connection is a file, and many systems begin with 1,024 where they allow
  a million. Few files are reported: a server without any left accepts nobody.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  wanted = MOST_FILES if hard == resource.RLIM_INFINITY else hard
  if soft != resource.RLIM_INFINITY and soft < wanted:
    with contextlib.suppress(OSError, ValueError):  # a kernel that allows less
      resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
      soft = wanted
  if 0 <= soft < FEW_FILES:
    LOG.warning(
      "this process may open %d files, of which each connection is one: with "
      "more sessions than that at once it is stuck. Raise the limit, as with "
      "`ulimit -Hn %d`",
      soft,
      FEW_FILES,
    )
  return soft


def connection_limit() -> int:
  """Returns how many connections to others leave as many files for clients.

  A server that gives each request on needs two files for it. Without files it
  fails requests; at this limit they wait. 0, as aiohttp has it, is no limit.
  """
  soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  if soft == resource.RLIM_INFINITY:
    return 0
  return max(soft // 2 - _OTHER_FILES, _OTHER_FILES)


async def listen(
  runner: web.AppRunner, host: str, port: int, *, flags: str, backlog: int = 128
) -> int:
  """Opens a server's port; returns its number, for port 0 that of a free one.

  Raises `ConfigError`, which names the `flags` to change, if it cannot.
  """
  try:
    await web.TCPSite(runner, host, port, backlog=backlog).start()
  except (OSError, OverflowError) as error:  # a port is of 16 bits
    raise cannot_listen(host, port, flags, error) from error
  return int(runner.addresses[0][1])


def cannot_listen(
  host: str, port: int, flags: str, error: Exception
) -> ConfigError:
  """Returns the error of a port that cannot be opened."""
  why = error.strerror if isinstance(error, OSError) else error
  return ConfigError(
    f"cannot listen on {host}:{port} ({why}); choose another {flags}"
  )


def explaining(key: str) -> Middleware:
  """Returns a middleware for paths and methods that a server does not have.

  It answers them in JSON, as `{key: sentence}`; aiohttp would write plain text.
  """

  @web.middleware
  async def explain(
    request: web.Request, handler: Handler
  ) -> web.StreamResponse:
    try:
      return await handler(request)
    except web.HTTPClientError as error:
      reason = f"the request is refused: {error.reason}"
      headers = {}
      if isinstance(error, web.HTTPNotFound):
        reason = f"there is no path {request.path!r:.200} on this server"
      elif isinstance(error, web.HTTPMethodNotAllowed):
        methods = ", ".join(sorted(error.allowed_methods))
        reason = f"{request.path:.200} takes {methods}, not {error.method:.20}"
        headers["Allow"] = methods
      return web.json_response(
        {key: reason}, status=error.status, headers=headers
      )

  return explain


@dataclasses.dataclass(eq=False)
class _Arriving:
  """A body that is being received or parsed."""

  deadline: asyncio.Timeout
  size: int = 0  # bytes so far
  is_complete: bool = False
  was_dropped: bool = False


class BodyReader:
  """Reads the bodies of one server's requests, or of answers to one client.

  Belongs to one event loop.
  """

  def __init__(self, limits: HttpLimits):
    self.limits = limits
    self._arriving: dict[int, _Arriving] = {}  # oldest first
    self._serial = 0

  @property
  def num_bytes(self) -> int:
    """Bytes of all bodies that are held now."""
    return sum(body.size for body in self._arriving.values())

  @contextlib.asynccontextmanager
  async def body(
    self,
    request: web.BaseRequest | ClientResponse,
    *,
    max_body: int | None = None,
  ) -> AsyncIterator[bytes]:
    """Yields the complete body; its bytes count until the context ends.

    `request` may be the answer to one, too. `max_body`, in bytes, replaces the
    maximum of the limits.

    Raises `RequestRefused` with status 408 for a slow body, 413 for a large
    one, 400 for one that cannot be decompressed, 415 for an unknown encoding,
    and 503 where all bodies together are too large.
    """
    max_body = max_body or self.limits.max_body
    announced = request.content_length
    if announced is not None and announced > max_body:
      raise _too_large(max_body)
    self._serial += 1
    serial = self._serial
    try:
      async with asyncio.timeout(self.limits.body_timeout_s) as deadline:
        arriving = self._arriving[serial] = _Arriving(deadline)
        content = await self._read(request, arriving, max_body)
        arriving.is_complete = True
    except TimeoutError as error:
      self._arriving.pop(serial, None)
      raise self._late(arriving) from error
    except BaseException:
      self._arriving.pop(serial, None)
      raise
    try:
      yield content
    finally:
      del self._arriving[serial]

  async def _read(
    self,
    request: web.BaseRequest | ClientResponse,
    arriving: _Arriving,
    max_body: int,
  ) -> bytes:
    content = bytearray()
    coding = _coding(request)
    try:
      while chunk := await request.content.readany():
        content += chunk
        if len(content) > max_body:
          raise _too_large(max_body)
        self._count(arriving, len(content))
    except (
      web.RequestPayloadError,
      ClientPayloadError,
      ConnectionError,  # of a client that hung up
    ) as error:
      raise _unreadable(" ".join(str(error).split())) from error
    body = bytes(content)
    if coding and body:
      body = await asyncio.to_thread(_decompress, body, coding, max_body)
      self._count(arriving, len(body))
    return body

  def _count(self, arriving: _Arriving, size: int) -> None:
    arriving.size = size
    self._make_room(arriving)

  def _make_room(self, new: _Arriving) -> None:
    """Drops the oldest incomplete bodies while there are too many bytes."""
    excess = self.num_bytes - self.limits.max_bodies
    for other in self._arriving.values():
      if excess <= 0:
        return
      if other is new or other.is_complete or other.was_dropped:
        continue
      excess -= other.size
      other.size, other.was_dropped = 0, True
      other.deadline.reschedule(asyncio.get_running_loop().time())
    if excess > 0:
      raise RequestRefused(
        f"bodies of {self.limits.max_bodies} bytes are being read, which is "
        "the maximum (http.max_bodies); try again later",
        status=503,
        code="server_busy",
      )

  def _late(self, arriving: _Arriving) -> RequestRefused:
    limit_s = self.limits.body_timeout_s
    reason = (
      f"its body was not complete after http.body_timeout_s={limit_s:g} s"
    )
    if arriving.was_dropped:
      reason = (
        "its body was slow, and others needed the memory (http.max_bodies)"
      )
    return RequestRefused(
      f"the request is refused: {reason}; send it again",
      status=408,
      code="request_timeout",
    )


def _too_large(max_body: int) -> RequestRefused:
  return RequestRefused(
    f"the body is larger than {max_body} bytes, which is the maximum "
    "(http.max_body): send less at once",
    status=413,
    code="request_too_large",
  )


def _unreadable(why: str) -> RequestRefused:
  return RequestRefused(
    f"the body cannot be read: {why}. Send it as its Content-Encoding says, or "
    "without one",
    code="invalid_body",
  )


def _coding(request: web.BaseRequest | ClientResponse) -> str:
  """Returns the body's encoding, gzip or deflate; "" for a plain body."""
  coding = request.headers.get("Content-Encoding", "").strip().lower()
  if coding in ("", "identity"):
    return ""
  if coding not in ("gzip", "deflate"):
    raise RequestRefused(
      f"the Content-Encoding {coding[:40]!r} is not supported: send gzip, "
      "deflate, or a body that is not compressed",
      status=415,
      code="unsupported_encoding",
    )
  return coding


def _decompress(body: bytes, coding: str, max_body: int) -> bytes:
  """Decompresses one stream of gzip, zlib, or raw deflate as some clients send.

  Concatenated streams are refused: decompressing many empty ones would take
  time that grows with the square of their number.
  """
  has_zlib_head = coding == "deflate" and body[0] & 15 == zlib.DEFLATED
  wbits = {"gzip": 31, "deflate": 15 if has_zlib_head else -15}[coding]
  decompressor = zlib.decompressobj(wbits)
  try:
    content = decompressor.decompress(body, max_body + 1)
  except zlib.error as error:
    raise _unreadable(f"it is no {coding} ({error})") from error
  if len(content) > max_body:
    raise _too_large(max_body)
  if not decompressor.eof or decompressor.unused_data:
    fault = "has bytes after its end" if decompressor.eof else "is cut"
    raise _unreadable(f"its {coding} {fault}")
  return content


async def read_json(
  bodies: BodyReader,
  request: web.BaseRequest,
  *,
  max_values: int,
  may_be_empty: bool = False,
) -> Any:
  """Parses the JSON of a request, beside the event loop where it is long.

  Returns None for an empty body that `may_be_empty`. Raises `RequestRefused`.
  """
  body = _arrived_body(request, min(SHORT, bodies.limits.max_body))
  if body is None:
    async with bodies.body(request) as body:
      return await _parse(body, max_values, may_be_empty)
  return await _parse(body, max_values, may_be_empty)


def _arrived_body(request: web.BaseRequest, max_body: int) -> bytes | None:
  """Returns a short body that came with its head; None for any other.

  Most bodies of most servers are such: they need no deadline, and are parsed
  before another one arrives, so that they need not be counted.
  """
  length = request.content_length
  if length is None or length > max_body or not request.content.is_eof():
    return None
  if request.content.exception() is not None or _coding(request):
    return None
  return request.content.read_nowait()


async def _parse(body: bytes, max_values: int, may_be_empty: bool) -> Any:
  if may_be_empty and not body:
    return None
  if len(body) <= SHORT:
    return parse_json(body, max_values=max_values)
  return await asyncio.to_thread(parse_json, body, max_values=max_values)


def parse_json(body: bytes, *, max_values: int) -> Any:
  """Parses strict JSON of Unicode text within the limits of depth and values.

  Counts separators first, since parsing cannot be interrupted and holds the
  interpreter: commas and brackets in texts count too. Raises `RequestRefused`.
  """
  require_few_values(body, max_values)
  try:
    text = body.decode("utf-8-sig")
    value = json.loads(text, parse_constant=refuse_constant)
    if "\\ud" in text.lower():
      # JSON may escape a lone surrogate, which UTF-8 cannot encode.
      json.dumps(value, ensure_ascii=False).encode()
  except ValueError as error:
    raise RequestRefused(
      f"the body is no JSON of Unicode text: {str(error)[:300]}",
      code="invalid_json",
    ) from error
  except RecursionError as error:
    raise _too_deep() from error
  require_shallow(value, body)
  return value


def require_few_values(body: bytes, max_values: int) -> None:
  """Raises `RequestRefused` for JSON of more values than `max_values`."""
  num_values = sum(body.count(mark) for mark in (b",", b"[", b"{"))
  if num_values > max_values:
    raise RequestRefused(
      f"the body has {num_values} commas and opening brackets, and "
      f"{max_values} are the maximum: send less at once",
      status=413,
      code="request_too_large",
    )


def require_shallow(value: Any, body: bytes) -> None:
  """Raises `RequestRefused` if the JSON of `body` is nested too deeply."""
  if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
    return
  level = [value]
  for _ in range(MAX_DEPTH + 1):
    level = [x for outer in level for x in _inner(outer)]
    if not level:
      return
  raise _too_deep()


def _inner(value: Any) -> Iterable[Any]:
  """Returns the lists and objects directly in a value."""
  if isinstance(value, dict):
    value = value.values()
  elif not isinstance(value, list):
    return ()
  return [x for x in value if isinstance(x, list | dict)]


def _too_deep() -> RequestRefused:
  return RequestRefused(
    f"the body is nested too deeply to be read, and {MAX_DEPTH} lists and "
    "objects within each other are the maximum: flatten it",
    code="invalid_json",
  )


class _WithoutTracebacks(logging.Filter):
  """Logs one line, without a traceback, for errors of clients."""

  def filter(self, record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, HttpProcessingError | web.RequestPayloadError):
      reason = " ".join(str(error).split())[:200]
      record.msg = f"refused a malformed HTTP request: {reason}"
      record.args, record.exc_info, record.exc_text = (), None, None
      record.levelno, record.levelname = logging.INFO, "INFO"
      return LOG.isEnabledFor(logging.INFO)
    return True


LOG = logging.getLogger(__name__)
LOG.addFilter(_WithoutTracebacks())
