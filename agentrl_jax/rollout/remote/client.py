"""Clients of rollout servers: the interface, and the binary protocol.

`rollout.remote.generator` chooses servers, repeats requests and keeps
deadlines; a client sends one request to one server. The client for engines of
other projects is `rollout.external.client`. Needs no jax.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Protocol

import aiohttp
import numpy as np

from agentrl_jax.errors import AgentRLError, GeneratorFault
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.pool import Server

CONNECT_TIMEOUT_S = 5.0


class Unreachable(Exception):
  """The connection failed; its cause is chained."""


class RetryRequest(GeneratorFault):
  """The answer cannot be used, and the server works: repeat the request."""


class ServerClient(Protocol):
  """Client of servers of one kind."""

  def request(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Any:
    """Encodes a request. Raises `ConfigError` if no server can answer it."""

  async def answer(self, server: Server, request: Any) -> Completion:
    """Waits for the server's answer.

    Raises `Unreachable` if the connection fails, `ServerFull` if the server is
    full, `RetryRequest` if the request is to be repeated, `ConfigError`,
    `PromptTooLong` and `GrammarFault` where repeating cannot help, and
    `GeneratorFault` if the server broke.
    """

  def stream(
    self, server: Server, request: Any
  ) -> AsyncGenerator[Completion, None]:
    """Yields the answer in chunks; raises what `answer` raises.

    Closing hangs up.
    """

  async def status(self, server: Server, within_s: float) -> wire.ServerStatus:
    """Returns the health. Raises `ConfigError` if the run cannot use it."""


class BinaryClient:
  """Client of `launch.serve_rollouts`."""

  def __init__(self, http: aiohttp.ClientSession):
    self._http = http

  def request(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> bytes:
    """See `ServerClient.request`."""
    return wire.encode_request(prompt, sampling)

  async def answer(self, server: Server, request: bytes) -> Completion:
    """See `ServerClient.answer`."""
    async with self._post(server, wire.GENERATE, request) as response:
      return wire.decode_answer(await response.read())

  async def stream(
    self, server: Server, request: bytes
  ) -> AsyncGenerator[Completion, None]:
    """See `ServerClient.stream`."""
    async with self._post(server, wire.STREAM, request) as response:
      chunks = wire.read_chunks(response.content, server.address)
      async with contextlib.aclosing(chunks):
        async for chunk in chunks:
          yield chunk

  @contextlib.asynccontextmanager
  async def _post(
    self, server: Server, path: str, request: bytes
  ) -> AsyncIterator[aiohttp.ClientResponse]:
    """Yields the response; raises what `ServerClient.answer` raises."""
    try:
      async with self._http.post(
        f"http://{server.address}{path}",
        data=request,
        headers={"Content-Type": wire.CONTENT_TYPE},
        timeout=aiohttp.ClientTimeout(
          total=None, sock_connect=CONNECT_TIMEOUT_S
        ),
      ) as response:
        if not response.ok:
          raise await _error(response, server)
        yield response
    except AgentRLError:
      raise  # a deadline that a server reports is no timeout of the connection
    except (aiohttp.ClientError, TimeoutError, OSError, EOFError) as error:
      raise Unreachable(repr(error)) from error

  async def status(self, server: Server, within_s: float) -> wire.ServerStatus:
    """See `ServerClient.status`."""
    timeout = aiohttp.ClientTimeout(total=within_s)
    url = f"http://{server.address}{wire.HEALTH}"
    async with self._http.get(url, timeout=timeout) as response:
      content = await response.read()
      if not response.ok:
        raise wire.WireError(f"HTTP {response.status} came for its health")
    return wire.status_from_json(content)


async def _error(
  response: aiohttp.ClientResponse, server: Server
) -> AgentRLError:
  content = await response.read()
  return wire.error_of(
    response.headers.get(wire.ERROR_HEADER),
    response.status,
    f"{server.address}: {content.decode(errors='replace')[:1000]}",
  )
