"""Tests of the connection to the engine, and of calls in threads."""

import asyncio
import os
import tempfile
import threading
import unittest
from unittest import mock

from agentrl_jax.errors import ConfigError
from agentrl_jax.service.docker import engine
from tests.clocks import turns_of_the_loop


class ConnectTest(unittest.TestCase):
  def test_an_absent_engine_is_reported(self):
    with tempfile.TemporaryDirectory() as folder:
      for host in (f"unix://{folder}/docker.sock", "tcp://127.0.0.1:1"):
        with (
          self.subTest(host=host),
          mock.patch.dict(os.environ, {"DOCKER_HOST": host}),
          self.assertRaisesRegex(ConfigError, f"at {host}.*DOCKER_HOST"),
          engine.connect(),
        ):
          self.fail("connected")


class ToTheEndTest(unittest.IsolatedAsyncioTestCase):
  async def test_returns_and_raises_what_the_call_does(self):
    self.assertEqual(await engine.to_the_end(divmod, 7, 2), (3, 1))
    with self.assertRaises(ZeroDivisionError):
      await engine.to_the_end(divmod, 7, 0)

  async def test_cancellation_waits_for_the_call(self):
    for fails in (False, True):
      may_end, log = threading.Event(), []

      def call(may_end=may_end, log=log, fails=fails):
        may_end.wait(60)
        log.append("ended")
        if fails:
          raise ZeroDivisionError

      calling = asyncio.create_task(engine.to_the_end(call))
      await asyncio.sleep(0)
      calling.cancel()
      await turns_of_the_loop()
      self.assertFalse(calling.done())
      may_end.set()
      with self.assertRaises(asyncio.CancelledError):
        await calling
      self.assertEqual(log, ["ended"])
