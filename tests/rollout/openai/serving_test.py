"""Authentication, limits and metrics of the server."""

import asyncio
import pathlib
import tempfile
import unittest

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.server.auth import read_token
from tests.clocks import until
from tests.rollout import talking

TOKEN = "0123456789abcdef"
NO_JSON = (
  b"no json",
  b"",
  b"{",
  b"[]",
  b"\xff",
  b'"\xed\xa0\x80"',
  b"[" * 10**5,
)


class OpenAIServingTest(unittest.IsolatedAsyncioTestCase):
  async def serve(self, **options):
    self.served = await self.enterAsyncContext(talking.Talking(**options))
    self.http = await self.enterAsyncContext(
      aiohttp.ClientSession(self.served.url)
    )

  async def get(self, path):
    async with self.http.get(path) as response:
      return response.status, await response.text()

  async def measured(self):
    _, page = await self.get("/metrics")
    return {
      (s.name.removeprefix("agentrl_"), *s.labels.values()): s.value
      for family in text_string_to_metric_families(page)
      for s in family.samples
    }

  def ask(self, client=None, **fields):
    settings = dict(model="tiny", prompt=[5, 6, 7], max_tokens=4, seed=1)
    return (client or self.served.openai).completions.create(
      **(settings | fields)
    )

  async def test_calls_without_the_token_are_refused(self):
    await self.serve(token=TOKEN)
    await self.ask()
    for key in ("0123456789abcdeF", "0", TOKEN + "0"):
      stranger = await self.enterAsyncContext(self.served.client(api_key=key))
      with self.assertRaises(openai.AuthenticationError) as caught:
        await self.ask(stranger)
      self.assertEqual(caught.exception.code, "invalid_api_key")
      self.assertNotIn(TOKEN, str(caught.exception))
    body = wire.encode_request([1], SamplingParams(max_tokens=1))
    for headers, status in (
      ({}, 401),
      ({"Authorization": f"Basic {TOKEN}"}, 401),
      ({"Authorization": f"Bearer {TOKEN}"}, 200),
    ):
      async with self.http.post(
        wire.GENERATE, data=body, headers=headers
      ) as response:
        self.assertEqual(response.status, status)
    for path in ("/health", "/ready", "/metrics"):
      self.assertEqual((await self.get(path))[0], 200)

  def test_a_token_stands_in_a_file(self):
    self.assertIsNone(read_token(""))
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "token")
      with self.assertRaisesRegex(ConfigError, "token.*cannot be read"):
        read_token(str(path))
      path.write_text("short\n")
      with self.assertRaisesRegex(ConfigError, "5 characters.*openssl"):
        read_token(str(path))
      second = f"\n{TOKEN}\n".encode()
      for content in (b"", second, b"\xff" * 20, b"\xc3\xa9" * 20):
        path.write_bytes(content)
        with self.assertRaisesRegex(ConfigError, "first line of token_file="):
          read_token(str(path))
      path.write_text(f" {TOKEN}\t\nmore\n")
      self.assertEqual(read_token(str(path)), TOKEN)

  async def test_ready_needs_weights_and_no_draining(self):
    await self.serve()
    self.assertEqual((await self.get("/ready"))[0], 200)
    await self.served.api.drain(1.0)
    self.assertEqual((await self.get("/ready"))[0], 503)
    self.assertEqual((await self.get("/health"))[0], 200)

  async def test_metrics_count_what_was_done(self):
    await self.serve()
    await self.ask(prompt=[5] * 20, extra_body={"ignore_eos": True})
    async for _ in await self.ask(
      prompt=[5] * 20, stream=True, extra_body={"ignore_eos": True}
    ):
      pass
    with self.assertRaises(openai.NotFoundError):
      await self.ask(model="other")
    actual = await self.measured()
    path = "/v1/completions"
    expected = {
      ("calls_total", path, "200"): 2,
      ("calls_total", path, "404"): 1,
      ("tokens_total", "prompt"): 40,
      ("tokens_total", "sampled"): 8,
      ("tokens_total", "reused"): 19,
      ("call_seconds_count", path): 3,
      ("first_token_seconds_count",): 1,
      ("version_step", "1"): 20,
      ("slots_busy", "0"): 0,
      ("swaps_total", "0"): 0,
    }
    self.assertEqual({name: actual[name] for name in expected}, expected)
    self.served.driver.engine.versions.publish(talking.params(30), 30)
    actual = await self.measured()
    self.assertEqual(actual["swaps_total", "0"], 1)
    self.assertEqual(actual["version_step", "0"], 30)
    self.assertEqual(actual["swaps_total", "1"], 0)

  async def test_busy_slots_are_seen(self):
    await self.serve()
    stream = await self.ask(
      max_tokens=300, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = aiter(stream)
    await anext(chunks)
    actual = await self.measured()
    self.assertEqual(actual["slots_busy", "0"], 1)
    self.assertEqual(actual["requests_inside",], 1)
    await stream.close()

  async def test_more_calls_than_may_be_at_once_come_again_later(self):
    await self.serve(limits=dict(max_calls=1))
    with self.served.driver.paused():
      first = asyncio.create_task(self.ask())
      await until(lambda: self.served.api.num_calls)
      with self.assertRaisesRegex(openai.RateLimitError, "all that may"):
        await self.ask()
    await first

  async def test_bodies_choices_and_prompts_have_limits(self):
    await self.serve(http=dict(max_body=4000), limits=dict(max_choices=4))
    with self.assertRaises(openai.APIStatusError) as caught:
      await self.ask(prompt="a" * 600_000)
    self.assertEqual(caught.exception.status_code, 413)
    for fields in (dict(n=5), dict(n=2, prompt=[[5], [6], [7]])):
      with self.assertRaisesRegex(openai.BadRequestError, "4"):
        await self.ask(**fields)
    with self.assertRaises(openai.BadRequestError) as caught:
      await self.ask(prompt=[5] * 400)
    self.assertEqual(caught.exception.code, "context_length_exceeded")

  @pytest.mark.slow
  async def test_malformed_requests_get_the_same_error_object(self):
    await self.serve()
    chat = b'{"model": "tiny", "messages": [{"role": "user", "content": %b}]}'
    for method, path, body, status in (
      *(
        ("POST", f"/v1/{path}", body, 400)
        for path in ("completions", "chat/completions")
        for body in NO_JSON
      ),
      ("POST", "/v1/chat/completions", chat % rb'"half: \ud83d"', 400),
      ("POST", "/v1/chat/completions", chat % (b"[" * 900 + b"]" * 900), 400),
      ("POST", "/v1/embeddings", b"{}", 404),
      ("GET", "/v1/completions", None, 405),
    ):
      async with self.http.request(method, path, data=body) as response:
        reply = await response.json()
        self.assertEqual(response.status, status)
        self.assertEqual(
          set(reply["error"]), {"message", "type", "param", "code"}
        )
        self.assertTrue(
          status > 400 or reply["error"]["code"] == "invalid_json"
        )
