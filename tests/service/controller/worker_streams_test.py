"""Requests over streams that break: lost ones fail in time, others arrive."""

import asyncio
import unittest
from unittest import mock

from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.controller.registry import Refused
from agentrl_jax.service.controller.worker_streams import WorkerStreams
from agentrl_jax.service.protocol import grpc_wire
from agentrl_jax.service.protocol.link import (
  WorkerFull,
  WorkerLost,
  WorkerRefusal,
)
from agentrl_jax.service.worker import grpc
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig, serve
from tests.clocks import Clock
from tests.env.moody import Moody

START = {"index": 0, "session_id": 7}
HANG = {"session_id": 7, "messages": [{"role": "assistant", "content": "hang"}]}


class WorkerStreamsTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.enterContext(mock.patch.object(grpc, "PAUSE_S", 0.02))
    self.enterContext(mock.patch.object(grpc, "PERIOD_S", 0.05))
    self.heard, self.freed = asyncio.Queue(), asyncio.Queue()
    self.lost = []
    self.port = 0
    self.moody = Moody()
    self.refuses = False

  def hear(self, announcement):
    self.heard.put_nowait(announcement)
    if self.refuses:
      raise Refused("no such worker")

  def streams(self, *, reconnect_s=60.0):
    return WorkerStreams(
      on_heartbeat=self.hear,
      on_lost=self.lost.append,
      on_freed=lambda session, _: self.freed.put_nowait(session),
      reconnect_s=reconnect_s,
    )

  async def worker(self, port, **limits):
    """Starts a worker, and waits for its first heartbeat."""
    config = WorkerConfig(port=0, controller=f"grpc://127.0.0.1:{port}")
    await self.enterAsyncContext(
      serve(self.moody, config, HostLimits(**limits))
    )
    return await self.next_heard()

  async def next_heard(self):
    while not self.heard.empty():
      self.heard.get_nowait()
    async with asyncio.timeout(60):
      return await self.heard.get()

  def ask(self, link, endpoint, body=None, *, deadline_s=60.0):
    method = "POST" if body is not None else "GET"
    return link.ask(method, endpoint, body, deadline_s=deadline_s)

  async def test_errors_are_told_apart(self):
    streams = self.streams()
    async with streams.listening("127.0.0.1", 0) as port:
      link = streams.link((await self.worker(port, concurrency=1))["address"])
      self.assertEqual(await self.ask(link, "get_sessions"), {})
      await self.ask(link, "start_sample", START)
      for endpoint, body, kind, words in (
        ("start_sample", START, WorkerRefusal, "already there"),
        ("start_sample", START | {"session_id": 8}, WorkerFull, "are taken"),
        ("cancel", {"session_id": 8}, WorkerRefusal, "no session 8"),
        ("nothing", {}, WorkerRefusal, "no endpoint"),
      ):
        with self.subTest(endpoint=endpoint, body=body):
          with self.assertRaisesRegex(EnvironmentFault, words) as caught:
            await self.ask(link, endpoint, body)
          self.assertIs(type(caught.exception), kind)
      with self.assertRaisesRegex(EnvironmentFault, "within 0.05 s"):
        await self.ask(link, "interact", HANG, deadline_s=0.05)

  async def test_an_answer_comes_on_the_next_stream(self):
    streams = self.streams()
    async with streams.listening("127.0.0.1", 0) as port:
      address = (await self.worker(port))["address"]
      link = streams.link(address)
      await self.ask(link, "start_sample", START)
      playing = asyncio.create_task(self.ask(link, "interact", HANG))
      await asyncio.sleep(0)
      await self.ask(link, "get_sessions")  # the request before has arrived
    self.moody.release.set()
    asking = asyncio.create_task(self.ask(link, "get_sessions"))
    async with streams.listening("127.0.0.1", port):
      self.assertEqual((await self.next_heard())["address"], address)
      body = await playing
      self.assertEqual(
        body["env_out"]["messages"][0]["content"], "You say hang."
      )
      self.assertEqual(await asking, {"7": 0})
    self.assertIn(address, self.lost)

  async def test_a_worker_that_does_not_dial_again_is_lost(self):
    streams = self.streams(reconnect_s=0.2)
    async with streams.listening("127.0.0.1", 0) as port:
      link = streams.link((await self.worker(port))["address"])
      await self.ask(link, "start_sample", START)
      playing = asyncio.create_task(self.ask(link, "interact", HANG))
      await asyncio.sleep(0)
      await self.ask(link, "get_sessions")
    with self.assertRaisesRegex(WorkerLost, "not dialled again within 0.2 s"):
      await playing
    with self.assertRaises(WorkerLost):
      await self.ask(link, "get_sessions")
    self.assertEqual(self.moody.num_open, 1)  # it may be back one day

  async def test_a_request_without_a_waiter_is_not_sent(self):
    streams = self.streams()
    async with streams.listening("127.0.0.1", 0) as port:
      link = streams.link((await self.worker(port))["address"])
    with self.assertRaisesRegex(EnvironmentFault, "within 0.05 s"):
      await self.ask(link, "start_sample", START, deadline_s=0.05)
    async with streams.listening("127.0.0.1", port):
      self.assertEqual(await self.ask(link, "get_sessions"), {})
    self.assertEqual(self.moody.seeds, [])

  async def test_an_answer_may_come_before_the_heartbeat(self):
    """AgentRL's workers send what has waited first, on a new stream."""
    streams = self.streams()
    async with streams.listening("127.0.0.1", 0) as port:
      me = {"name": "moody", "concurrency": 1, "indices": [0]}
      async with grpc_wire.channel(f"127.0.0.1:{port}") as channel:
        stream = grpc_wire.dial(channel)
        await stream.write(grpc_wire.heartbeat("me", me))
        asking = asyncio.create_task(
          self.ask(streams.link("grpc://me"), "get_sessions")
        )
        request = await stream.read()
      async with grpc_wire.channel(f"127.0.0.1:{port}") as channel:
        stream = grpc_wire.dial(channel)
        await stream.write(grpc_wire.response(request.id, 200, {"3": 0}))
        self.assertEqual(await asking, {"3": 0})

  async def test_a_worker_that_has_dialled_again_is_not_given_up(self):
    streams = self.streams(reconnect_s=100.0)
    async with streams.listening("127.0.0.1", 0) as port:
      link = streams.link((await self.worker(port))["address"])
    async with streams.listening("127.0.0.1", port):
      await self.next_heard()
      await Clock().forward(101.0)
      self.assertEqual(await self.ask(link, "get_sessions"), {})

  async def test_a_worker_that_never_dialled_is_lost(self):
    link = self.streams(reconnect_s=0.02).link("grpc://nobody")
    with self.assertRaises(WorkerLost):
      await self.ask(link, "get_sessions")

  async def test_notices_come_through_and_are_acknowledged(self):
    streams = self.streams()
    async with streams.listening("127.0.0.1", 0) as port:
      link = streams.link((await self.worker(port))["address"])
      await self.ask(link, "start_sample", START)
      await self.ask(link, "cancel_with_notice", {"session_id": 7})
      async with asyncio.timeout(60):
        self.assertEqual(await self.freed.get(), 7)
      await self.ask(link, "get_sessions")  # so the acknowledgement has, too
    async with streams.listening("127.0.0.1", port):
      await self.next_heard()
      await self.ask(link, "get_sessions")
      self.assertTrue(self.freed.empty())

  async def test_a_heartbeat_that_is_refused_does_not_end_the_stream(self):
    self.refuses = True
    streams = self.streams()
    with self.assertLogs(
      "agentrl_jax.service.controller.worker_streams", "WARNING"
    ):
      async with streams.listening("127.0.0.1", 0) as port:
        await self.worker(port)
        await self.next_heard()
    self.assertEqual(len(self.lost), 1)
