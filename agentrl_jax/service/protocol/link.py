"""Requests to a worker or a controller: one request, one deadline.

Every failure becomes an `EnvironmentFault` that names the peer and the request;
no request is repeated. Answers have the limits of a server's requests: their
size after decompression, their depth and number of values.
"""

import abc
import asyncio
import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp

from agentrl_jax.errors import EnvironmentFault, refuse_constant
from agentrl_jax.http_requests import (
  SERVICE_LIMITS,
  SHORT,
  HttpLimits,
  RequestRefused,
  read_body,
  require_few_values,
  require_shallow,
)
from agentrl_jax.service.protocol import wire

MAX_VALUES = 1 << 20  # of an answer: a worker lists the indices of a task
_JSON = {"Content-Type": "application/json"}


class WorkerFull(EnvironmentFault):
  """The worker takes no more sessions now; try again later."""


class WorkerRefusal(EnvironmentFault):
  """The worker refused the request: HTTP 4xx, with its reason."""


class WorkerLost(EnvironmentFault):
  """The worker cannot be reached: it or its connection has died."""


class WorkerLink(abc.ABC):
  """Connection to one worker."""

  @abc.abstractmethod
  async def ask(
    self, method: str, endpoint: str, body: Any, *, deadline_s: float
  ) -> Any:
    """Returns the JSON reply of `endpoint`; `method` is HTTP's, GET or POST.

    Raises `WorkerFull`, `WorkerRefusal`, `WorkerLost`, or for all else
    `EnvironmentFault`.
    """


class HttpLink(WorkerLink):
  """Connection to a worker's HTTP API, over the caller's pool."""

  def __init__(
    self,
    http: aiohttp.ClientSession,
    url: str,
    *,
    whom: str = "worker",
    follows_redirects: bool = True,
    limits: HttpLimits = SERVICE_LIMITS,
  ):
    """`limits` are those of answers."""
    self._limits = limits
    self.url = url.rstrip("/")
    self._whom = f"{whom} {self.url}"
    self._http = http
    self._follows_redirects = follows_redirects

  async def ask(
    self, method: str, endpoint: str, body: Any, *, deadline_s: float
  ) -> Any:
    """Asks as `WorkerLink.ask`; the body of a GET is its query."""
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
        method,
        f"{self.url}/{endpoint}",
        timeout=timeout,
        allow_redirects=self._follows_redirects,
        **request,
      ) as response:
        content = (await read_body(response, self._limits)).strip()
        if response.status < 300:
          answer = await parse_beside(content) if content else None
          return answer, response.headers
        detail = content[:1000].decode(errors="replace")
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
    except RequestRefused as error:
      is_cut = isinstance(
        error.__cause__, aiohttp.ClientPayloadError | ConnectionError
      )
      raise (WorkerLost if is_cut else EnvironmentFault)(
        f"{self._whom} answers {endpoint} with what cannot be taken: {error}"
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


async def parse_beside(content: bytes) -> Any:
  """Returns `parse_answer`, of a long answer beside the event loop."""
  if len(content) <= SHORT:
    return parse_answer(content)
  return await asyncio.to_thread(parse_answer, content)


def parse_answer(content: bytes) -> Any:
  """Parses a peer's JSON.

  It is sent on, so that what can be read and not be written is refused: values
  nested deeply, and numbers that are not finite. Raises ValueError.
  """
  require_few_values(content, MAX_VALUES)
  try:
    answer = json.loads(
      content, parse_constant=refuse_constant, parse_float=_finite
    )
  except RecursionError as error:
    raise ValueError("its JSON is nested too deeply to be read") from error
  require_shallow(answer, content)
  return answer


def _finite(text: str) -> float:
  value = float(text)
  if not math.isfinite(value):
    raise ValueError(f"{text:.40} is a number that is too large")
  return value


@contextlib.contextmanager
def reading(whom: str, endpoint: str, body: Any) -> Iterator[None]:
  """Turns errors in reading a reply into a fault that names the peer."""
  try:
    yield
  except EnvironmentFault as fault:
    raise EnvironmentFault(f"{whom} answers {endpoint}: {fault}") from fault
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise EnvironmentFault(
      f"{whom} answers {endpoint} with {body!r:.300}, which is not AgentRL's "
      "protocol"
    ) from error
