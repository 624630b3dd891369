"""Slow, large and many requests exclude no other client; real sockets."""

import asyncio
import contextlib
import gzip
import json
import subprocess
import sys
import unittest
import zlib

from aiohttp import web

from agentrl_jax import http_requests
from agentrl_jax.http_requests import (
  HttpLimits,
  RequestRefused,
  read_body,
  read_json,
)

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"


def _length(body):
  return b"Content-Length: %d\r\n\r\n" % len(body)


class HttpRequestsTest(unittest.IsolatedAsyncioTestCase):
  async def serve(self, **limits):
    self.limits = HttpLimits(**limits)

    async def handle(request):
      try:
        body = await read_body(request, self.limits)
        return web.Response(text=str(len(body)))
      except RequestRefused as error:
        return web.Response(status=error.status, text=str(error))

    async def parse(request):
      try:
        value = await read_json(request, self.limits, max_values=9)
        return web.json_response(value)
      except RequestRefused as error:
        return web.Response(status=error.status, text=str(error))

    application = web.Application()
    application.router.add_post("/", handle)
    application.router.add_post("/json", parse)
    options = self.limits.runner_options()
    runner = web.AppRunner(application, handler_cancellation=True, **options)
    await runner.setup()
    self.addAsyncCleanup(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    self.port = runner.addresses[0][1]

  async def open(self, said=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
    self.addCleanup(writer.close)
    writer.write(said)
    await writer.drain()
    return reader, writer

  async def status(self, reader):
    async with asyncio.timeout(60):
      return int((await reader.readline()).split()[1])

  async def post(self, body, head=b""):
    said = HEAD + head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    reader, _ = await self.open(said)
    return await self.status(reader)

  async def test_a_head_that_does_not_come_ends_its_connection(self):
    await self.serve(head_timeout_s=0.3)
    for begun in (b"", b"POST", HEAD, HEAD + b"X: "):
      reader, _ = await self.open(begun)
      async with asyncio.timeout(60):
        self.assertEqual(await reader.read(), b"")

  async def test_a_head_by_the_letter_has_no_more_time(self):
    await self.serve(head_timeout_s=0.3)
    reader, writer = await self.open()

    async def trickle():
      with contextlib.suppress(ConnectionError):
        while True:
          writer.write(b"P")
          await writer.drain()
          await asyncio.sleep(0.02)  # shorter than the deadline of the head

    trickling = asyncio.create_task(trickle())
    async with asyncio.timeout(60):
      with contextlib.suppress(ConnectionError):
        self.assertNotIn(b"200", await reader.read())
    trickling.cancel()
    await asyncio.wait([trickling])

  async def test_a_body_that_does_not_come_is_given_up(self):
    await self.serve(body_timeout_s=0.3)
    reader, _ = await self.open(HEAD + b"Content-Length: 9\r\n\r\n{")
    self.assertEqual(await self.status(reader), 408)

  async def test_a_large_body_is_refused_however_it_comes(self):
    await self.serve(max_body=1000)
    bomb = zlib.compress(b"x" * 10_000_000, 9)
    self.assertEqual(await self.post(b"x" * 1001), 413)
    self.assertEqual(
      await self.post(bomb[:900], b"Content-Encoding: deflate\r\n"), 413
    )
    chunk = b"%x\r\n%s\r\n" % (600, b"x" * 600)
    reader, _ = await self.open(
      HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 2
    )
    self.assertEqual(await self.status(reader), 413)

  async def test_a_body_that_cannot_be_decoded_is_the_senders_fault(self):
    await self.serve()
    whole = gzip.compress(b"{}")
    for coding, body, status in (
      (b"gzip", b"\x1f\x8bno", 400),
      (b"deflate", b"\x1f\x8bno", 400),
      (b"gzip", whole * 100_000, 400),
    ):
      coded = b"Content-Encoding: %s\r\n" % coding
      self.assertEqual(await self.post(body, coded), status, (coding, body[:9]))

  async def test_a_packed_body_is_unpacked(self):
    await self.serve(max_body=1000)
    body = b"x" * 1000
    raw = zlib.compressobj(wbits=-15)
    for coding, packed in (
      (b"gzip", gzip.compress(body)),
      (b"deflate", zlib.compress(body)),
      (b"Deflate", raw.compress(body) + raw.flush()),
      (b"identity", body),
    ):
      coded = b"Content-Encoding: %s\r\n" % coding
      coded += b"Connection: close\r\nContent-Length: %d\r\n" % len(packed)
      reader, _ = await self.open(HEAD + coded + b"\r\n" + packed)
      self.assertTrue((await reader.read()).endswith(b"\r\n\r\n1000"), coding)

  async def test_json_is_read_in_the_same_way_however_it_comes(self):
    await self.serve(max_body=1000, body_timeout_s=0.5)
    head = HEAD.replace(b"/ ", b"/json ", 1)
    whole, packed = b'{"a": [1]}', gzip.compress(b'{"a": [1]}')
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    gzipped = b"Content-Encoding: gzip\r\n"
    cases = {
      "at once": (head + _length(whole) + whole, 200),
      "in chunks": (head + chunked + b"a\r\n" + whole + b"\r\n0\r\n\r\n", 200),
      "packed": (head + gzipped + _length(packed) + packed, 200),
      "empty": (head + _length(b""), 400),
      "no gzip": (head + gzipped + _length(whole) + whole, 400),
      "too large": (head + _length(b"1" * 1001) + b"1" * 1001, 413),
      "too many values": (head + _length(b"[" * 10) + b"[" * 10, 413),
      "no JSON": (head + _length(b"{]") + b"{]", 400),
      "half": (head + b"Content-Length: 10\r\n\r\n{", 408),
    }
    for name, (said, status) in cases.items():
      with self.subTest(name):
        reader, _ = await self.open(said)
        self.assertEqual(await self.status(reader), status)

  async def test_json_that_comes_in_two_parts_is_whole(self):
    await self.serve()
    head = HEAD.replace(b"/ ", b"/json ", 1)
    reader, writer = await self.open(head + b"Content-Length: 4\r\n\r\n[1")
    writer.write(b"2]")
    self.assertEqual(await self.status(reader), 200)
    self.assertIn(b"[12]", await reader.read(2000))


class ParseTest(unittest.TestCase):
  def test_json_that_is_accepted(self):
    for value in (None, [], {"a": [1, "é", 1e300]}, "\U0001f600", 10**400):
      body = json.dumps(value).encode()
      self.assertEqual(http_requests.parse_json(body, max_values=9), value)

  def test_json_that_is_refused(self):
    deep = 10 * http_requests.MAX_DEPTH
    for body, status in (
      (b"", 400),
      (b"\xff", 400),
      (b"NaN", 400),
      (b"[-Infinity]", 400),
      (b'"\\ud800"', 400),
      (b"1" * 5000, 400),
      (b"[" * deep + b"]" * deep, 400),
      (b'{"a":' * deep + b"1" + b"}" * deep, 400),
      (b"[" * 100_000, 400),
      (b"[" + b"1," * 300_000 + b"1]", 413),
    ):
      with self.subTest(body=body[:20]):
        with self.assertRaises(RequestRefused) as caught:
          http_requests.parse_json(body, max_values=200_000)
        self.assertEqual(caught.exception.status, status)


class FileLimitTest(unittest.TestCase):
  def test_is_raised_and_few_files_are_said(self):
    program = (
      "import resource, sys\n"
      "limits = int(sys.argv[1]), int(sys.argv[2])\n"
      "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
      "from agentrl_jax import http_requests\n"
      "print(http_requests.raise_file_limit())\n"
      "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    for soft, hard, is_few in ((100, 8192, False), (100, 1000, True)):
      with self.subTest(hard=hard):
        done = subprocess.run(
          [sys.executable, "-c", program, str(soft), str(hard)],
          capture_output=True,
          text=True,
          check=True,
        )
        self.assertEqual(done.stdout.split(), [str(hard)] * 2)
        self.assertEqual("may open 1000 files" in done.stderr, is_few)
