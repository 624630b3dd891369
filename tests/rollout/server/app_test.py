"""A server on a real engine: refusals, faults, draining."""

import asyncio
import contextlib
import socket
import unittest

import aiohttp
import pytest

from agentrl_jax.errors import ConfigError, DeadlineExceeded
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.server.app import RolloutApi, listening
from tests.clocks import until
from tests.rollout import small
from tests.rollout.drivers.contract import SHORT
from tests.rollout.serving import Served
from tests.settings import HTTP

LONG = SamplingParams(max_tokens=80)


class HttpServerTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.http = await self.enterAsyncContext(aiohttp.ClientSession())

  async def serve(self, **changes):
    self.served = await self.enterAsyncContext(Served(**changes))
    self.url = f"http://{self.served.address}"

  async def post(self, body):
    async with self.http.post(self.url + wire.GENERATE, data=body) as response:
      return response.status, response.headers, await response.read()

  async def ask(self, prompt, spec):
    return await self.post(wire.encode_request(prompt, spec))

  @pytest.mark.slow
  async def test_hundreds_of_connections_wait_while_the_loop_is_busy(self):
    await self.serve()
    with contextlib.ExitStack() as stack:
      for _ in range(400):  # the server's loop is this one, and stands still
        address = ("127.0.0.1", self.served.port)
        stack.enter_context(socket.create_connection(address, timeout=5.0))

  async def test_errors_are_statuses_and_sentences(self):
    await self.serve()
    for body, status, name in (
      (b"garbage", 400, "WireError"),
      (wire.encode_request([1] * 90, SHORT), 413, "PromptTooLong"),
      (b"\0" * 1_000_000, 413, "PromptTooLong"),
      (wire.encode_request([small.VOCAB], SHORT), 400, "ConfigError"),
    ):
      actual, headers, reply = await self.post(body)
      self.assertEqual((actual, headers[wire.ERROR_HEADER]), (status, name))
      self.assertGreater(len(reply), 20)

  async def test_a_full_server_says_when_to_come_again(self):
    await self.serve(driver_options=dict(max_waiting=0))
    asked = [
      asyncio.create_task(self.ask([1], SamplingParams(max_tokens=90, seed=i)))
      for i in range(12)
    ]
    statuses = []
    for answer in asyncio.as_completed(asked):
      status, headers, _ = await answer
      statuses.append(status)
      if status == 503:
        self.assertEqual(headers["Retry-After"], "1")
        self.assertEqual(headers[wire.ERROR_HEADER], "ServerFull")
    self.assertIn(503, statuses)
    self.assertIn(200, statuses)

  async def test_a_broken_engine_is_reported_to_its_server(self):
    await self.serve()

    def fail(*args):
      raise ZeroDivisionError("on purpose")

    self.served.driver.engine.versions.get = fail
    status, _, reply = await self.ask([1], SHORT)
    self.assertEqual(status, 500)
    self.assertIn(b"on purpose", reply)
    fault = await self.served.api.broken
    self.assertIn("on purpose", str(fault))
    status, headers, _ = await self.ask([1], SHORT)
    self.assertEqual(headers[wire.ERROR_HEADER], "Draining")

  async def test_a_failing_listener_fails_its_own_request_alone(self):
    await self.serve()
    driver = self.served.driver
    submit = driver.submit

    def fail(piece):
      raise ZeroDivisionError("on purpose")

    driver.submit = lambda prompt, spec: submit(prompt, spec, fail)
    status, _, reply = await self.ask([1], SHORT)
    self.assertEqual(status, 500)
    self.assertIn(b"its listener stopped", reply)
    driver.submit = submit
    self.assertFalse(self.served.api.broken.done())
    status, _, reply = await self.ask([1], SHORT)
    self.assertEqual(status, 200, reply)

  async def test_draining_finishes_what_it_has_and_takes_nothing_new(self):
    await self.serve()
    asked = asyncio.create_task(self.ask([1], LONG))
    await until(lambda: self.served.api.num_calls)
    drained = asyncio.create_task(self.served.api.drain(60))
    await asyncio.sleep(0)
    status, headers, _ = await self.ask([1], SHORT)
    self.assertEqual((status, headers[wire.ERROR_HEADER]), (503, "Draining"))
    await drained
    self.assertEqual((await asked)[0], 200)
    async with self.http.get(self.url + wire.HEALTH) as response:
      reply = wire.status_from_json(await response.read())
    self.assertTrue(reply.is_draining)

  async def test_a_drain_has_a_deadline(self):
    await self.serve()
    asked = asyncio.create_task(self.ask([1], LONG))
    await until(lambda: self.served.api.num_calls)
    with self.assertRaisesRegex(DeadlineExceeded, "1 answers.*grace_s"):
      await self.served.api.drain(0.0)
    await asked

  async def test_calls_before_the_first_weights_are_refused(self):
    nothing = wire.ServerStatus(
      policy_slots=(None,), num_inside=0, num_waiting=0
    )
    api = RolloutApi(None, lambda: nothing, context=small.CONTEXT, http=HTTP)
    port = await self.enterAsyncContext(listening(api, "127.0.0.1", 0))
    self.url = f"http://127.0.0.1:{port}"
    status, headers, reply = await self.ask([1], SHORT)
    self.assertEqual((status, headers[wire.ERROR_HEADER]), (503, "NotServing"))
    self.assertIn(b"first snapshot of policy slot 0", reply)

  async def test_a_port_that_is_taken_is_named(self):
    await self.serve()
    with self.assertRaisesRegex(ConfigError, f"{self.served.port}.*--port"):
      async with listening(self.served.api, "127.0.0.1", self.served.port):
        self.fail("two listen on one port")
