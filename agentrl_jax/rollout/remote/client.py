"""How one speaks with rollout servers: of this framework in binary, or others.

`rollout.remote.generator` chooses servers, repeats what was lost and keeps
deadlines; what a request looks like on the way to a server is said here, for
the binary endpoint, and in `rollout.external.client` for engines of other
projects. Needs no jax.
"""

import contextlib
from collections.abc import (
  AsyncGenerator,
  AsyncIterator,
  Mapping,
  Sequence,
)
from typing import Any, Protocol

import aiohttp
import numpy as np

from agentrl_jax.errors import AgentRLError, GeneratorFault
from agentrl_jax.rollout.api import Answer, SamplingSpec
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.pool import Server

CONNECT_S = 5.0


class Unreachable(Exception):
  """The connection failed on the way; its cause is chained."""


class AskAgain(GeneratorFault):
  """This answer is of no use, and the server is well."""


class ServerClient(Protocol):
  """Speaks with servers of one kind."""

  def request(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Any:
    """What `answer` sends. Raises `ConfigError` for what no server takes."""
    ...

  async def answer(self, server: Server, request: Any) -> Answer:
    """What the server says to it.

    Raises `Unreachable` if it is lost on the way, `ServerFull` if it has no
    room, `AskAgain` if the same is to be asked once more, `ConfigError` and
    `PromptTooLong` and `GrammarFault` for what no repetition mends, and
    `GeneratorFault` if the server broke.
    """
    ...

  def stream(
    self, server: Server, request: Any
  ) -> AsyncGenerator[Answer, None]:
    """The same in pieces, where the server gives them; raises the same.

    Closing it hangs up.
    """
    ...

  async def status(self, server: Server, within_s: float) -> wire.ServerStatus:
    """How the server is. Raises `ConfigError` if it is of no use to the run."""
    ...


class BinaryClient:
  """Speaks with `launch.serve_rollouts`."""

  def __init__(self, http: aiohttp.ClientSession):
    self._http = http

  def request(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> bytes:
    """The bytes that the server reads."""
    return wire.encode_request(prompt, spec)

  async def answer(self, server: Server, request: bytes) -> Answer:
    """See `ServerClient.answer`."""
    async with self._posted(server, wire.GENERATE, request) as response:
      return wire.decode_answer(await response.read())

  async def stream(
    self, server: Server, request: bytes
  ) -> AsyncGenerator[Answer, None]:
    """See `ServerClient.stream`."""
    async with self._posted(server, wire.STREAM, request) as response:
      pieces = wire.read_chunks(response.content, server.address)
      async with contextlib.aclosing(pieces):
        async for piece in pieces:
          yield piece

  @contextlib.asynccontextmanager
  async def _posted(
    self, server: Server, path: str, request: bytes
  ) -> AsyncIterator[aiohttp.ClientResponse]:
    """A response to be read within; its errors are `ServerClient.answer`'s."""
    try:
      async with self._http.post(
        f"http://{server.address}{path}",
        data=request,
        headers={"Content-Type": wire.CONTENT_TYPE},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
      ) as response:
        if not response.ok:
          raise await _error(response, server)
        yield response
    except AgentRLError:
      raise  # a server's deadline is no timeout of the connection
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


def bearer(token: str) -> Mapping[str, str]:
  """The header that a server with a token wants; none without."""
  return {"Authorization": f"Bearer {token}"} if token else {}
