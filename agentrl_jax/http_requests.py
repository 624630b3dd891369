"""Reads HTTP requests within limits, for all servers of this framework.

No request can block a server: heads and bodies have a deadline, a body has a
maximum size after decompression, and JSON has a maximum depth and number of
values. Violations raise `RequestRefused` with an HTTP status. Needs no jax.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import resource
from collections.abc import Iterable
from typing import Any

from aiohttp import ClientPayloadError, ClientResponse, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from agentrl_jax.errors import AgentRLError, ConfigError, refuse_constant
from agentrl_jax.keys import Section, key, seconds

MAX_DEPTH = 100  # of nested lists and objects in JSON
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
class HttpLimits(Section, section="http"):
  """Limits of requests before they are processed."""

  head_timeout_s: float = seconds(
    30.0, "wait for a head; then the connection is closed"
  )
  body_timeout_s: float = seconds(60.0, "wait for a body, after its head")
  max_body: int = key(
    8 << 20, "bytes of a body, decompressed", at_least=1, at_most=2**53
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
      "handle_signals": False,
    }


# Limits of servers that no config describes: workers and the controller. The
# longest bodies are heartbeats of workers, which list a task's indices.
SERVICE_LIMITS = HttpLimits()


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


async def read_body(
  message: web.BaseRequest | ClientResponse,
  limits: HttpLimits,
  *,
  max_body: int | None = None,
) -> bytes:
  """Returns the body of a request, or of the answer to one.

  aiohttp decompresses it piece by piece, as it is read. `max_body`, in bytes,
  replaces the maximum of the limits. Raises `RequestRefused` with status 408
  for a slow body, 413 for a large one, and 400 for one that is cut or cannot
  be decompressed.
  """
  max_body = max_body or limits.max_body
  too_large = RequestRefused(
    f"the body is larger than {max_body} bytes, which is the maximum "
    "(http.max_body): send less at once",
    status=413,
    code="request_too_large",
  )
  if (message.content_length or 0) > max_body:
    raise too_large
  content = bytearray()
  try:
    async with asyncio.timeout(limits.body_timeout_s):
      async for piece in message.content.iter_any():
        content += piece
        if len(content) > max_body:
          raise too_large
  except TimeoutError as error:
    raise RequestRefused(
      "the request is refused: its body was not complete after "
      f"http.body_timeout_s={limits.body_timeout_s:g} s; send it again",
      status=408,
      code="request_timeout",
    ) from error
  except (
    web.RequestPayloadError,
    ClientPayloadError,
    ConnectionError,  # of a client that hung up
  ) as error:
    raise RequestRefused(
      f"the body cannot be read: {' '.join(str(error).split())}. Send it as "
      "its Content-Encoding says, or without one",
      code="invalid_body",
    ) from error
  return bytes(content)


async def read_json(
  request: web.BaseRequest,
  limits: HttpLimits,
  *,
  max_values: int,
  may_be_empty: bool = False,
) -> Any:
  """Parses the JSON of a request, beside the event loop where it is long.

  Returns None for an empty body that `may_be_empty`. Raises `RequestRefused`.
  """
  body = await read_body(request, limits)
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
