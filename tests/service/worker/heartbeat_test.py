"""Tests of a worker's heartbeats and notices."""

import asyncio
import unittest

import aiohttp
from aiohttp import test_utils, web

from agentrl_jax.service.worker.main import WorkerConfig, serve
from tests.env.moody import Moody


class HeartbeatTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.heard = asyncio.Queue()
    self.answers_with = 200
    application = web.Application()
    application.router.add_post("/api/{path}", self.hear)
    server = await self.enterAsyncContext(test_utils.TestServer(application))
    self.controller = str(server.make_url("/api"))
    self.http = await self.enterAsyncContext(aiohttp.ClientSession())

  async def hear(self, request):
    body = await request.json() if request.can_read_body else None
    await self.heard.put(
      (request.match_info["path"], request.headers.get("session_id"), body)
    )
    return web.json_response(None, status=self.answers_with)

  async def next_heard(self):
    async with asyncio.timeout(60):
      return await self.heard.get()

  async def test_sends_heartbeats_and_notices(self):
    environment = Moody()
    config = WorkerConfig(port=0, num_indices=3, controller=self.controller)
    async with serve(environment, config) as url:
      body = {"name": "moody", "address": url, "concurrency": 32}
      body["indices"] = [0, 1, 2]
      heartbeat = ("receive_heartbeat", None, body)
      self.assertEqual(await self.next_heard(), heartbeat)
      for path, body in (
        ("start_sample", {"session_id": 7, "index": 0}),
        ("cancel_with_notice", {"session_id": 7}),
      ):
        async with self.http.post(f"{url}/{path}", json=body) as response:
          self.assertEqual(response.status, 200)
      self.assertEqual(await self.next_heard(), ("cancel_notice", "7", None))
      self.assertEqual(environment.num_open, 0)

  async def test_a_controller_that_refuses_does_not_stop_the_worker(self):
    self.answers_with = 500
    config = WorkerConfig(port=0, controller=self.controller)
    with self.assertLogs("agentrl_jax.service.worker.heartbeat", "WARNING"):
      async with serve(Moody(), config) as url:
        await self.next_heard()
        async with self.http.get(f"{url}/worker_status") as response:
          self.assertEqual(response.status, 200)
