"""A response that hands an answer out while it is sampled, frame by frame."""

import asyncio

from aiohttp import web

from agentrl_jax.errors import AgentRLError
from agentrl_jax.rollout.api import Answer
from agentrl_jax.rollout.remote import wire, wire_stream

WRITE_S = 60.0  # a client that takes nothing for so long is given up


class StreamingResponse:
  """Of one call. Nothing is sent before the first piece is there.

  So what is refused, or breaks before, is told by a status like any other.
  """

  def __init__(self, request: web.Request):
    self._request = request
    self.response = web.StreamResponse()
    self.response.content_type = wire.CONTENT_TYPE
    self.num_sampled = self.num_reused = 0

  @property
  def has_begun(self) -> bool:
    """Whether the status has been sent."""
    return self.response.prepared

  async def send(self, piece: Answer) -> None:
    """Waits until the client can take more; `ConnectionError` if it is gone."""
    self.num_sampled += len(piece.sampled)
    self.num_reused = piece.num_reused
    await self._write(wire_stream.encode_chunk(piece))

  async def end(self) -> web.StreamResponse:
    """After the last piece."""
    return await self._finish(wire_stream.encode_end())

  async def fail(self, error: AgentRLError) -> web.StreamResponse:
    """Tells of an error instead of the rest."""
    return await self._finish(wire_stream.encode_fault(error))

  async def _finish(self, frame: bytes) -> web.StreamResponse:
    await self._write(frame)
    await self.response.write_eof()
    return self.response

  async def _write(self, frame: bytes) -> None:
    try:
      async with asyncio.timeout(WRITE_S):
        if not self.has_begun:
          await self.response.prepare(self._request)
        await self.response.write(frame)
    except TimeoutError as error:
      if self._request.transport is not None:
        self._request.transport.abort()  # it would be waited for again
      raise ConnectionAbortedError(
        f"a client took nothing of its answer for {WRITE_S:g} s"
      ) from error
