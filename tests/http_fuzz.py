"""Requests that no client should send, by a seed, against a server's routes.

Each field of a request that is answered is replaced by what JSON, HTTP or a
careless program can put there, at every depth.
"""

import copy
import dataclasses
import json
import logging
import random
import zlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

DEEP = 5000


class Raw(str):
  """JSON text that Python's writer would not write."""


# What may stand in place of any value. Raw ones go in as they are.
STRANGE: tuple[Any, ...] = (
  None,
  True,
  False,
  0,
  -1,
  2**31,
  2**63,
  -(2**64),
  0.5,
  -0.0,
  "",
  "x",
  "\x00",
  "\ufffd",
  "9" * 400,
  "nan",
  "٣",
  [],
  {},
  [None],
  {"": None},
  [[]],
  [{}],
  {"type": {}},
  ["a", 1],
  {"$ref": "#"},
  *map(Raw, ("1" * 400, "-" + "1" * 400, "1" * 5000, "1e400", "-1e400")),
  *map(Raw, ("NaN", "Infinity", "-Infinity", r'"\ud800"', r'["\udfff"]')),
  *map(Raw, ("[" * 90 + "]" * 90, '{"a":' * 60 + "1" + "}" * 60)),
  *map(Raw, ("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP)),
)
_MARK = "\ue000mark\ue000"
ODD_METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "BREW")
ODD_HEADERS = (
  *(("session_id", x) for x in ("", "-1", "\u0663", "9" * 400, "1 or 1=1")),
  *(("Authorization", x) for x in ("\xff", "-1", "9" * 400, "", "\u00b2")),
  ("Content-Type", "text/plain; charset=utf-16"),
  ("Content-Type", "multipart/form-data; boundary=x"),
  ("Cookie", "=;=" * 50),
)
# Headers that a client library writes itself, or does not write.
RAW_HEADERS = (
  ("session_id", "9" * 5000),
  ("session_id", "\udcff"),
  ("Authorization", "Bearer \udcff"),
  ("Content-Type", "\udcff/\udcff"),
  *(("Content-Encoding", x) for x in ("gzip", "br")),
  *(("Content-Length", x) for x in ("-1", "0", "many", "99999999999")),
  *(("Transfer-Encoding", x) for x in ("chunked", "gzip, chunked")),
  ("Expect", "200-ok"),
  ("Upgrade", "websocket"),
  *(("Host", x) for x in ("[", "")),
  *(("Origin", x) for x in ("http://[", "null")),
  ("Sec-Fetch-Site", "cross-site"),
  ("X-Long", "x" * 9000),
)
_BODIES: tuple[tuple[bytes, Mapping[str, str]], ...] = (
  (b"", {}),
  (b"\xff\xfe{}", {}),
  (b'{"a": "\xff"}', {}),
  (b"\xef\xbb\xbf[]", {}),
  (b"null", {}),
  (b'"text"', {}),
  (b"{" * 100, {}),
  (b"{}", {"Content-Encoding": "gzip"}),
  (b"\x1f\x8b\x08broken", {"Content-Encoding": "gzip"}),
  (zlib.compress(b"{}")[:-3], {"Content-Encoding": "deflate"}),
  (b"{}", {"Content-Encoding": "br"}),
  (b"{}", {"Content-Encoding": "zstd"}),
  (b"{}", {"Content-Encoding": "none of these"}),
  (b"{}", {"Content-Type": "application/json; charset=no-such"}),
  (b"{}", {"Content-Type": "\xff/\xff"}),
  (b"{}", {"Authorization": "Bearer \xff"}),
)


@dataclasses.dataclass(frozen=True)
class Request:
  """One HTTP request; `body` is JSON's value, or bytes as they are."""

  method: str
  path: str
  body: Any = None
  headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  others: tuple[str, ...] = ()  # fields that may be given, too
  may_wait: bool = False  # for as long as it is asked to
  query: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def target(self) -> str:
    """The path with its query."""
    query = "&".join(
      f"{key}={quote(str(value), errors='surrogatepass')}"
      for key, value in self.query.items()
    )
    return self.path + (f"?{query}" if query else "")

  @property
  def content(self) -> bytes:
    """The body as it is sent."""
    if self.body is None:
      return b""
    return self.body if isinstance(self.body, bytes) else dump(self.body)

  def encode(self) -> bytes:
    """The whole request; a client library would refuse to send most of them."""
    headers = {
      "Host": "127.0.0.1",
      "Connection": "close",
      "Content-Type": "application/json",
      "Content-Length": str(len(self.content)),
    } | self.headers
    lines = [f"{self.method} {self.target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""])
    return head.encode("utf-8", "surrogateescape") + self.content


def dump(value: Any) -> bytes:
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


class Listening(logging.Handler):
  """Keeps every record that has a traceback, or is an error."""

  def __init__(self):
    super().__init__(logging.DEBUG)
    self.troubles: list[str] = []

  def emit(self, record):
    if record.exc_info or record.levelno >= logging.ERROR:
      shown = logging.Formatter().format(record)
      self.troubles.append(f"{shown[:200]}... {shown[-400:]}")


def mutations(
  request: Request, generator: random.Random, number: int, raw: bool = False
) -> Iterator[Request]:
  """Requests with something changed, `number` of them.

  With `raw`, also methods and headers that a client library would not send.
  """
  odd = [*ODD_HEADERS, *RAW_HEADERS] if raw else ODD_HEADERS
  for _ in range(number):
    kinds = ["bytes", "header", *["field"] * 8, *["query"] * 4, "method"]
    changed = None
    while changed is None:  # a kind that this request has
      match generator.choice(kinds):
        case "bytes":
          whole = request.content
          bodies = [whole[: generator.randint(0, len(whole))], whole + b"}"]
          body, headers = generator.choice(
            [*_BODIES, *((body, {}) for body in bodies)]
          )
          changed = {"body": body, "headers": {**request.headers, **headers}}
        case "header":
          headers = {**request.headers, **dict([generator.choice(odd)])}
          changed = {"headers": headers}
        case "method" if raw:
          changed = {"method": generator.choice(ODD_METHODS)}
        case "query" if request.query:
          query = dict(request.query)
          query[generator.choice([*query])] = generator.choice(
            ("", "x", "\udcff", "-1", "9" * 400)
          )
          changed = {"query": query}
        case "field" if isinstance(request.body, dict | list):
          changed = {"body": _with_a_change(request, generator)}
    yield dataclasses.replace(request, **changed)


def _paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
  if here:
    yield here
  inner = ()
  if isinstance(value, dict):
    inner = value.items()
  elif isinstance(value, list):
    inner = enumerate(value)
  for key, x in inner:
    yield from _paths(x, (*here, key))


def _with_a_change(request: Request, generator: random.Random) -> Any:
  """The body with a value replaced or removed, at any depth, or as a whole."""
  paths = [*_paths(request.body), *((name,) for name in request.others), ()]
  *path, last = generator.choice(paths) or (None,)
  strange = generator.choice(STRANGE)
  if last is None:
    return strange
  changed = holder = copy.deepcopy(request.body)
  for key in path:
    holder = holder[key]
  if generator.random() < 0.2 and isinstance(holder, dict):
    holder.pop(last, None)
  else:
    holder[last] = strange
  return changed


async def faults(
  http: aiohttp.ClientSession,
  url: str,
  routes: list[Request],
  *,
  seed: int,
  each: int,
) -> list[str]:
  """Changed requests that got a 5xx, or a traceback in the log."""
  generator, found = random.Random(seed), []
  listening = Listening()
  logging.getLogger().addHandler(listening)
  try:
    for request in (
      changed
      for route in routes
      for changed in mutations(route, generator, each)
    ):
      content = request.content
      said = (
        f"{request.method} {request.path} {request.headers} {content[:999]!r}"
      )
      try:
        async with http.request(
          request.method,
          url + request.target,
          data=content or None,
          headers=request.headers,
          timeout=aiohttp.ClientTimeout(0.2 if request.may_wait else 120),
        ) as response:
          text = await response.text(errors="replace")
      except (aiohttp.ClientError, ValueError) as error:
        found.append(f"{said}: {error!r}")
        continue
      except TimeoutError:
        if not request.may_wait:
          found.append(f"{said}: no answer")
        continue
      if response.status >= 500:
        found.append(f"{said}: {response.status} {text[:300]}")
      if listening.troubles:
        found.append(f"{said} logged {listening.troubles[0]}")
        listening.troubles.clear()
  finally:
    logging.getLogger().removeHandler(listening)
  return found


def session() -> aiohttp.ClientSession:
  """A client with a connection for each request: refusals may end them."""
  return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
