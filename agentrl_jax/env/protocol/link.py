"""Requests to a worker or a controller: one request, one deadline.

Every failure becomes an `EnvironmentFault` that names the peer and the request;
no request is repeated.
"""

import abc
import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp

from agentrl_jax.env.protocol import wire
from agentrl_jax.errors import EnvironmentFault

_JSON = {"Content-Type": "application/json"}


class WorkerFull(EnvironmentFault):
  """The worker takes no more sessions now; try again later."""


class WorkerRefusal(EnvironmentFault):
  """The worker refused the request: HTTP 4xx, with its reason."""


class WorkerLost(EnvironmentFault):
  """The worker cannot be reached: it or its connection has died."""


class Link(abc.ABC):
  """Connection to one worker."""

  @abc.abstractmethod
  async def ask(
    self, method: str, endpoint: str, body: Any, *, deadline_s: float
  ) -> Any:
    """Returns the JSON reply of `endpoint`; `method` is HTTP's, GET or POST.

    Raises `WorkerFull`, `WorkerRefusal`, `WorkerLost`, or for all else
    `EnvironmentFault`.
    """


class HttpLink(Link):
  """Connection to a worker's HTTP API, over the caller's pool."""

  def __init__(
    self, http: aiohttp.ClientSession, url: str, *, whom: str = "worker"
  ):
    self.url = url.rstrip("/")
    self._whom = f"{whom} {self.url}"
    self._http = http

  async def ask(
    self, method: str, endpoint: str, body: Any, *, deadline_s: float
  ) -> Any:
    """Asks as `Link.ask`; the body of a GET is its query."""
    request: dict[str, Any] = {"params": body}
    if method != "GET":
      request = {"data": json.dumps(body).encode(), "headers": _JSON}
    answer, _ = await self.request(
      method, endpoint, deadline_s=deadline_s, **request
    )
    return answer

  async def request(
    self, method: str, endpoint: str, *, deadline_s: float, **request: Any
  ) -> tuple[Any, Mapping[str, str]]:
    """Returns the JSON and headers; arguments are aiohttp's."""
    timeout = aiohttp.ClientTimeout(total=deadline_s)
    with self._asking(endpoint, deadline_s):
      async with self._http.request(
        method, f"{self.url}/{endpoint}", timeout=timeout, **request
      ) as response:
        if response.ok:
          content = (await response.read()).strip()
          return json.loads(content) if content else None, response.headers
        detail = (await response.text())[:1000]
    raise refusal(
      response.status,
      f"{self._whom} answers {endpoint} with HTTP {response.status}: {detail}",
    )

  @contextlib.contextmanager
  def _asking(self, endpoint: str, deadline_s: float) -> Iterator[None]:
    if self._http.closed:
      raise WorkerLost(f"{self._whom} has been given up")
    try:
      yield
    except TimeoutError as error:
      raise EnvironmentFault(
        f"{self._whom} has not answered {endpoint} within {deadline_s:g} s; "
        "see whether it is alive, and what its environment waits for"
      ) from error
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
      raise WorkerLost(
        f"{self._whom} cannot be asked for {endpoint}: {error!r}"
      ) from error
    except (aiohttp.ClientError, ValueError) as error:
      raise EnvironmentFault(
        f"{self._whom} cannot be asked for {endpoint}: {error!r}"
      ) from error


def refusal(code: int, reason: str) -> EnvironmentFault:
  """Makes the fault for an HTTP status that is not OK."""
  if code == wire.FULL:
    return WorkerFull(reason)
  return (WorkerRefusal if 400 <= code < 500 else EnvironmentFault)(reason)


@contextlib.contextmanager
def reading(whom: str, endpoint: str, body: Any) -> Iterator[None]:
  """Turns errors in reading a reply into a fault."""
  try:
    yield
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise EnvironmentFault(
      f"{whom} answers {endpoint} with {body!r:.300}, which is not AgentRL's "
      "protocol"
    ) from error
