"""Sessions go on unharmed over a connection that breaks again and again."""

import asyncio
import contextlib
import unittest
from unittest import mock

import aiohttp
import pytest

from agentrl_jax.service.controller import main as service
from agentrl_jax.service.controller.main import ServiceConfig
from agentrl_jax.service.controller.registry import Timers
from agentrl_jax.service.worker import grpc
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig, serve
from tests.clocks import until
from tests.env.moody import Moody

NUM_STEPS = 4
REQUESTS_PER_CUT = 25  # whatever the others are waiting for


class Line:
  """A line between a worker and its controller, which can be cut."""

  def __init__(self, port):
    self._port = port
    self._ends = set()
    self.num_cuts = 0

  async def __aenter__(self):
    self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
    self.port = self._server.sockets[0].getsockname()[1]
    return self

  async def __aexit__(self, *_):
    self._server.close()
    self.cut()
    await self._server.wait_closed()

  def cut(self):
    """Drops what is on the line; a new call may come at once."""
    self.num_cuts += bool(self._ends)
    for end in self._ends:
      end.transport.abort()

  async def _carry(self, reader, writer):
    there = await asyncio.open_connection("127.0.0.1", self._port)
    self._ends |= {writer, there[1]}
    try:
      await asyncio.gather(
        self._pump(reader, there[1]), self._pump(there[0], writer)
      )
    finally:
      self._ends -= {writer, there[1]}

  async def _pump(self, reader, writer):
    with contextlib.suppress(ConnectionError):
      while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


class BadLineTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.enterContext(mock.patch.object(grpc, "PAUSE_S", 0.02))
    self.http = await self.enterAsyncContext(aiohttp.ClientSession())
    addresses = await self.enterAsyncContext(
      service.serve(
        ServiceConfig(port=0, grpc_port=0),
        Timers(reconnect_s=20.0, interaction_s=40.0, sync_s=0.5),
      )
    )
    self.url = addresses.http
    self.num_requests = 0
    port = int(addresses.grpc.rpartition(":")[2])
    self.line = await self.enterAsyncContext(Line(port))
    self.moody = Moody()
    config = WorkerConfig(
      port=0, controller=f"grpc://127.0.0.1:{self.line.port}"
    )
    await self.enterAsyncContext(
      serve(self.moody, config, HostLimits(concurrency=16))
    )

  async def post(self, path, body, session=None):
    headers = {} if session is None else {"session_id": session}
    self.num_requests += 1
    if self.num_requests % REQUESTS_PER_CUT == 0:
      self.line.cut()
    async with self.http.post(
      f"{self.url}/{path}", json=body, headers=headers
    ) as response:
      return response, await response.json()

  async def play(self, number):
    """Plays an episode, checks each reply, and returns whether it ended."""
    request = {"name": "moody", "index": 0, "wait_s": 60}
    response, _ = await self.post("start_sample", request)
    if not response.ok:
      return False
    session = response.headers["session_id"]
    for step in range(NUM_STEPS):
      words = f"{number}/{step}"
      said = {"messages": [{"role": "assistant", "content": words}]}
      response, body = await self.post("interact", said, session)
      if not response.ok:
        return False
      self.assertEqual(body["messages"][0]["content"], f"You say {words}.")
    await self.post("cancel", None, session)
    return True

  async def test_a_few_sessions_end_and_are_free(self):
    await self.check_sessions(10, num_cuts=1)

  @pytest.mark.slow
  async def test_many_sessions_end_and_are_free(self):
    await self.check_sessions(40, num_cuts=5)

  async def check_sessions(self, number, *, num_cuts):
    played = await asyncio.gather(*map(self.play, range(number)))
    self.assertEqual(played, [True] * number)
    self.assertGreaterEqual(self.line.num_cuts, num_cuts)

    async def are_free():
      return not (self.moody.num_open or await self.sessions())

    await until(are_free)

  async def sessions(self):
    async with self.http.get(f"{self.url}/list_sessions") as response:
      return await response.json()
