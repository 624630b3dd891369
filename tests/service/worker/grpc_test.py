"""Tests of our worker under AgentRL's controller, over real gRPC."""

import asyncio
import unittest
import uuid
from unittest import mock

from agentrl_jax.service.worker import grpc
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig, serve
from tests.clocks import until
from tests.env.moody import END_JSON, Moody, says
from tests.service.worker.agentrl_controller import ServedController

LOG = "agentrl_jax.service.worker.grpc"


class GrpcWorkerTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.enterContext(mock.patch.object(grpc, "PAUSE_S", 0.02))
    self.served = ServedController()
    self.controller = await self.served.start()
    self.addAsyncCleanup(self.served.stop)
    self.moody = Moody()

  async def serve(self, *, concurrency=4, **config):
    config = WorkerConfig(
      port=0, controller=f"grpc://127.0.0.1:{self.served.port}", **config
    )
    await self.enterAsyncContext(
      serve(self.moody, config, HostLimits(concurrency=concurrency))
    )
    return await self.next(self.controller.heartbeats)

  async def next(self, queue):
    async with asyncio.timeout(60):
      return await queue.get()

  async def ask(self, method, endpoint, body=None):
    async with asyncio.timeout(60):
      return await self.controller.ask(method, endpoint, body)

  async def start(self, id=7, index=0):
    return await self.ask(
      "POST", "start_sample", {"index": index, "session_id": id}
    )

  async def interact(self, words, id=7):
    return await self.ask(
      "POST", "interact", {"messages": says(words), "session_id": id}
    )

  async def test_an_episode_word_for_word(self):
    heartbeat = await self.serve(num_indices=2, name="moody-std")
    indices = [i.int_value for i in heartbeat.indices]
    self.assertEqual(
      (heartbeat.name, heartbeat.concurrency, indices), ("moody-std", 4, [0, 1])
    )
    self.assertEqual(await self.ask("GET", "get_sessions"), (200, {}))
    code, body = await self.start()
    self.assertEqual((code, body["status"]), (200, "running"))
    self.assertEqual(body["messages"], [{"role": "user", "content": "Well?"}])
    self.assertEqual(body["tools"][0]["function"]["name"], "say")
    self.assertEqual(await self.ask("GET", "get_sessions"), (200, {"7": 0}))
    code, body = await self.interact("hm")
    self.assertEqual(
      body["env_out"]["messages"], [{"role": "user", "content": "You say hm."}]
    )
    code, body = await self.interact("end")
    self.assertEqual(code, 200)
    self.assertEqual(body, {"session_id": 7, "env_out": END_JSON})

  async def test_errors_have_https_codes_and_a_message(self):
    await self.serve(concurrency=2)
    await self.start(id=1)
    for endpoint, body, code, words in (
      ("start_sample", {"index": 0, "session_id": 1}, 400, "already there"),
      ("start_sample", {"index": 99, "session_id": 2}, 400, "no index 99"),
      ("interact", {"session_id": 9, "messages": says("a")}, 400, "session 9"),
      ("interact", None, 400, "must be a JSON object"),
      ("cancel", {"session_id": 9}, 400, "no session 9"),
      ("no_such_endpoint", {}, 404, "no endpoint"),
    ):
      with self.subTest(endpoint=endpoint, body=body):
        response = await (await self.controller.send("POST", endpoint, body))
        self.assertEqual(response.code, code)
        self.assertIn(words, response.message)
    await self.start(id=2)
    self.assertEqual((await self.start(id=3))[0], 406)
    with self.assertLogs("agentrl_jax.service.worker.hosting", "ERROR"):
      code, body = await self.interact("break", id=1)
    self.assertEqual((code, body["env_out"]["status"]), (200, "task error"))

  async def test_a_bug_costs_its_request_alone(self):
    await self.serve()
    with (
      mock.patch.object(self.moody, "indices", side_effect=RuntimeError("oh")),
      self.assertLogs(LOG, "ERROR") as log,
    ):
      response = await (await self.controller.send("GET", "describe"))
    self.assertEqual(response.code, 500)
    self.assertIn("see the worker's log", response.message)
    self.assertIn("RuntimeError: oh", log.output[0])
    self.assertEqual((await self.start())[0], 200)

  async def test_a_request_that_comes_twice_is_played_once(self):
    await self.serve()
    await self.start()
    with mock.patch.object(uuid, "uuid4", return_value="the same"):
      first = await self.interact("hm")
      again = await self.controller.send(
        "POST", "interact", {"messages": says("end"), "session_id": 7}
      )
    self.assertEqual(first[0], 200)
    self.assertEqual(await self.ask("GET", "get_sessions"), (200, {"7": 0}))
    self.assertFalse(again.done())

  async def test_a_slow_request_holds_up_no_other(self):
    await self.serve()
    await self.start(id=1)
    await self.start(id=2)
    slow = await self.controller.send(
      "POST", "interact", {"session_id": 1, "messages": says("hang")}
    )
    self.assertEqual((await self.interact("hm", id=2))[0], 200)
    self.assertFalse(slow.done())
    self.assertEqual((await self.interact("hm", id=1))[0], 400)
    await self.ask("POST", "cancel", {"session_id": 1})
    code, body = self.controller.read(await slow)
    self.assertEqual((code, body["env_out"]["status"]), (200, "task error"))

  async def test_cancelling_with_notice(self):
    await self.serve()
    await self.start(id=1)
    await self.start(id=2)
    code, _ = await self.ask("POST", "cancel_with_notice", {"session_id": 1})
    self.assertEqual(code, 200)
    self.assertEqual(await self.next(self.controller.notices), 1)
    self.assertEqual(self.moody.num_open, 1)
    await self.ask("POST", "cancel_all_with_notice")
    self.assertEqual(await self.next(self.controller.notices), 2)
    self.assertEqual(self.moody.num_open, 0)

  async def test_sessions_outlive_the_stream(self):
    await self.serve()
    await self.start()
    worker = (await self.broken_stream()).id
    self.assertEqual(await self.ask("GET", "get_sessions"), (200, {"7": 0}))
    self.assertEqual((await self.interact("hm"))[0], 200)
    self.assertEqual((await self.broken_stream()).id, worker)

  async def broken_stream(self):
    """Hangs up, and waits for the worker to dial again."""
    while not self.controller.heartbeats.empty():
      self.controller.heartbeats.get_nowait()
    with self.assertLogs(LOG, "WARNING"):
      self.controller.hang_up()
      return await self.next(self.controller.heartbeats)

  async def test_a_response_that_was_lost_with_the_stream_is_sent_again(self):
    await self.serve()
    self.controller.loses_responses = True
    waiting = await self.controller.send(
      "POST", "start_sample", {"index": 0, "session_id": 7}
    )
    await until(lambda: self.controller.num_lost)
    self.controller.loses_responses = False
    await self.broken_stream()
    async with asyncio.timeout(60):
      code, body = self.controller.read(await waiting)
    self.assertEqual((code, body["status"]), (200, "running"))
    self.assertEqual(self.moody.num_open, 1)

  async def test_responses_that_must_have_arrived_are_dropped(self):
    self.enterContext(mock.patch.object(grpc, "RESEND_BYTES", 2000))
    await self.serve()
    for _ in range(100):
      await self.ask("GET", "worker_status")
    await self.broken_stream()
    await self.ask("GET", "worker_status")
    self.assertGreater(len(self.controller.stray_ids), 0)
    self.assertLess(len(self.controller.stray_ids), 40)  # of some 60 bytes each

  async def test_a_notice_that_was_not_acknowledged_is_sent_again(self):
    await self.serve()
    self.controller.acknowledges = False
    await self.start(id=1)
    await self.ask("POST", "cancel_with_notice", {"session_id": 1})
    self.assertEqual(await self.next(self.controller.notices), 1)
    self.controller.acknowledges = True
    await self.broken_stream()
    self.assertEqual(await self.next(self.controller.notices), 1)
    await self.broken_stream()
    await self.ask("GET", "get_sessions")
    self.assertTrue(self.controller.notices.empty())

  async def test_waits_for_a_controller_that_cannot_be_reached(self):
    await self.served.stop()
    with self.assertLogs(LOG, "WARNING") as logs:
      async with serve(
        self.moody,
        WorkerConfig(port=0, controller=f"grpc://127.0.0.1:{self.served.port}"),
      ):
        await until(lambda: logs.output)
        self.controller = await self.served.start()
        await self.next(self.controller.heartbeats)
        self.assertEqual((await self.start())[0], 200)
