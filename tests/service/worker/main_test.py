"""Tests of the worker: start, stop, command line, malformed requests."""

import asyncio
import os
import pathlib
import signal
import sys
import unittest

import aiohttp

from agentrl_jax.errors import ConfigError
from agentrl_jax.service.worker.main import WorkerConfig, serve
from tests.env.moody import Moody

ROOT = pathlib.Path(__file__).parents[3]
MESSAGES = [{"role": "assistant", "content": "5", "tool_calls": []}]


class ServeTest(unittest.IsolatedAsyncioTestCase):
  async def test_leaving_frees_every_session(self):
    environment = Moody()
    http = await self.enterAsyncContext(aiohttp.ClientSession())
    async with serve(environment, WorkerConfig(port=0)) as url:
      for id in (1, 2):
        body = {"session_id": id, "index": 0}
        async with http.post(f"{url}/start_sample", json=body) as response:
          self.assertEqual(response.status, 200)
      self.assertEqual(environment.num_open, 2)
    self.assertEqual(environment.num_open, 0)
    with self.assertRaises(aiohttp.ClientConnectionError):
      await http.get(f"{url}/worker_status")

  def test_settings_are_checked(self):
    for setting in ({"port": -1}, {"port": 1 << 16}):
      with self.subTest(setting=setting), self.assertRaises(ConfigError):
        WorkerConfig(**setting)


class CommandLineTest(unittest.IsolatedAsyncioTestCase):
  def start(self, *arguments):
    return asyncio.create_subprocess_exec(
      sys.executable,
      "-m",
      "agentrl_jax.service.worker",
      *arguments,
      cwd=ROOT,
      env=os.environ | {"PYTHONPATH": str(ROOT)},
      stderr=asyncio.subprocess.PIPE,
    )

  async def test_serves_until_a_signal(self):
    process = await self.start(
      "--environment=environments.arithmetic.environment:Arithmetic",
      "--default=num_tasks=7",
      "--default=max_turns=3",
      "--option=num_tasks=2",
      "--port=0",
    )
    self.addCleanup(lambda: process.returncode is None and process.kill())
    async with asyncio.timeout(60):
      line = (await process.stderr.readline()).decode()
      self.assertIn("serving arithmetic", line)
      url = line.split()[-1]
      async with aiohttp.ClientSession() as http:
        body = {"session_id": 1, "index": 0}
        async with http.post(f"{url}/start_sample", json=body) as response:
          self.assertEqual(response.status, 200)
        async with http.get(f"{url}/get_indices") as response:
          self.assertEqual(await response.json(), [0, 1])
      process.send_signal(signal.SIGTERM)
      _, rest = await process.communicate()
    self.assertEqual(process.returncode, 0, rest)
    self.assertIn(b"every open session is freed", rest)

  async def drained(self, *signs):
    """Signals a worker with a session; yields how it is asked and ended."""
    process = await self.start(
      "--environment=environments.arithmetic.environment:Arithmetic",
      "--port=0",
      "--drain-s=50",
    )
    self.addCleanup(lambda: process.returncode is None and process.kill())
    url = (await process.stderr.readline()).decode().split()[-1]
    http = await self.enterAsyncContext(aiohttp.ClientSession())

    async def ask(endpoint, **body):
      async with http.post(f"{url}/{endpoint}", json=body) as response:
        return response.status, await response.json()

    status, _ = await ask("start_sample", session_id=1, index=0)
    self.assertEqual(status, 200)
    for sign in signs:
      process.send_signal(sign)
    line = (await process.stderr.readline()).decode()
    self.assertIn("1 sessions may end within 50 s", line)
    return process, ask

  async def test_an_open_session_ends_by_itself_if_it_may(self):
    async with asyncio.timeout(60):
      # As Ctrl-C reaches a worker and its parent, which signals it, too.
      process, ask = await self.drained(signal.SIGINT, signal.SIGTERM)
      status, body = await ask("start_sample", session_id=2, index=1)
      self.assertEqual(status, 406)
      self.assertIn("will end soon", body["detail"])
      await asyncio.sleep(1.5)
      for turn in range(4):
        status, body = await ask(
          "interact", session_id=1, messages=MESSAGES, turn=turn + 1
        )
        self.assertEqual(status, 200)
      self.assertTrue(body["env_out"]["finish"], body)
      self.assertEqual(await process.wait(), 0)

  async def test_a_second_signal_frees_it(self):
    async with asyncio.timeout(30):
      process, ask = await self.drained(signal.SIGTERM)
      await asyncio.sleep(1.5)
      process.send_signal(signal.SIGTERM)
      self.assertEqual(await process.wait(), 0)

  async def test_dialling_without_grpc_names_the_package(self):
    program = (
      "import sys; sys.modules['grpc'] = None\n"
      "from agentrl_jax.service.worker.main import main\n"
      "main(['--environment=environments.arithmetic.environment"
      ":Arithmetic', '--port=0', '--controller=grpc://127.0.0.1:1'])"
    )
    process = await asyncio.create_subprocess_exec(
      sys.executable, "-c", program, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
      _, errors = await process.communicate()
    self.assertEqual(process.returncode, 2)
    self.assertIn(b"pip install 'agentrl_jax[grpc]'", errors)

  async def test_errors_end_the_command(self):
    process = await self.start("--environment=environments.nowhere:Nowhere")
    async with asyncio.timeout(60):
      _, errors = await process.communicate()
    self.assertEqual(process.returncode, 2)
    self.assertIn(b"no module 'environments.nowhere'", errors)
