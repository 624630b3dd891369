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
class Route:
  """A request that is answered well."""

  method: str
  path: str
  body: Any = None
  headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  others: tuple[str, ...] = ()  # fields that may be given, too
  may_wait: bool = False  # for as long as it is asked to


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
  route: Route, generator: random.Random, number: int
) -> Iterator[tuple[bytes, dict[str, str]]]:
  """Bodies and headers, `number` of them."""
  paths = list(_paths(route.body)) if route.body is not None else []
  paths += [(name,) for name in route.others]
  for _ in range(number):
    kind = generator.random()
    if not paths or kind < 0.1:
      body, headers = generator.choice(_BODIES)
      yield body, {**route.headers, **headers}
    elif kind < 0.15:
      name = generator.choice([*route.headers, "Authorization", "session_id"])
      odd = generator.choice(("\xff", "-1", "9" * 400, "", "\u00b2"))
      yield json.dumps(route.body).encode(), {**route.headers, name: odd}
    else:
      strange = generator.choice(STRANGE)
      body = _with(route.body, generator.choice(paths), strange)
      yield body, dict(route.headers)


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


def _with(body: Any, path: tuple[Any, ...], strange: Any) -> bytes:
  changed = holder = copy.deepcopy(body)
  for key in path[:-1]:
    holder = holder[key]
  raw = isinstance(strange, Raw)
  holder[path[-1]] = _MARK if raw else strange
  text = json.dumps(changed)
  if raw:
    text = text.replace(json.dumps(_MARK), strange)
  return text.encode()


async def faults(
  http: aiohttp.ClientSession,
  url: str,
  routes: list[Route],
  *,
  seed: int,
  each: int,
) -> list[str]:
  """Requests that got a 5xx, or a traceback in the log."""
  generator, found = random.Random(seed), []
  listening = Listening()
  logging.getLogger().addHandler(listening)
  try:
    for route in routes:
      for body, headers in mutations(route, generator, each):
        said = f"{route.method} {route.path} {headers} {body[:1000]!r}"
        try:
          async with http.request(
            route.method,
            url + route.path,
            data=body or None,
            headers=headers,
            timeout=aiohttp.ClientTimeout(0.2 if route.may_wait else 120),
          ) as response:
            text = await response.text(errors="replace")
        except (aiohttp.ClientError, ValueError) as error:
          found.append(f"{said}: {error!r}")
          continue
        except TimeoutError:
          if not route.may_wait:
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
