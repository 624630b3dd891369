"""Any model behind OpenAI's chat API plays, and only its own faults count."""

import contextlib
import json
import re
import unittest

from aiohttp import web

from agentrl_jax.controller.episode import EpisodeWaits
from agentrl_jax.data.records import EpisodeSpec, Status, Task
from agentrl_jax.errors import ConfigError, GeneratorFault
from configs.base import defaults
from environments.arithmetic.environment import Arithmetic
from launch.serving.endpoint_player import ChatEndpoint, EndpointPlayer


def call(name, **arguments):
  function = {"name": name, "arguments": json.dumps(arguments)}
  return {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": function}],
  }


def solve(body):
  """A model that can add: it answers the question in one call."""
  text = " ".join(m["content"] or "" for m in body["messages"])
  a, b = map(int, re.search(r"What is (\d+) \+ (\d+)", text).groups())
  return call("answer", value=a + b)


class EndpointPlayerTest(unittest.IsolatedAsyncioTestCase):
  @contextlib.asynccontextmanager
  async def player(self, answer, *, timeout_s=5.0, **settings):
    """Serves `answer(body) -> message or response`; yields a player of it."""
    self.requests = []

    async def handle(request):
      body = await request.json()
      self.requests.append((body, dict(request.headers)))
      found = answer(body)
      if isinstance(found, web.Response):
        return found
      return web.json_response({"choices": [{"message": found}]})

    application = web.Application()
    application.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
      yield EndpointPlayer(
        environments={"sums": Arithmetic()},
        max_turns=4,
        waits=defaults(EpisodeWaits, "waits"),
        endpoint=ChatEndpoint(
          url=f"http://127.0.0.1:{port}/v1",
          model="adder",
          answer_timeout_s=timeout_s,
          **settings,
        ),
      )
    finally:
      await runner.cleanup()

  async def play(self, answer, **settings):
    spec = EpisodeSpec(
      task=Task("sums", "test", 3), group_id="g", attempt=0, seed=2**40
    )
    async with self.player(answer, **settings) as player:
      return await player.play(spec)

  async def test_a_model_that_can_wins(self):
    played = await self.play(solve, key="secret", temperature=0.5)
    self.assertTrue(played.is_success)
    self.assertEqual(played.status, Status.COMPLETED)
    ((body, headers),) = self.requests
    self.assertEqual(headers["Authorization"], "Bearer secret")
    self.assertEqual((body["model"], body["temperature"]), ("adder", 0.5))
    self.assertEqual(
      [tool["function"]["name"] for tool in body["tools"]], ["add", "answer"]
    )
    self.assertLess(body["seed"], 2**31)

  async def test_a_model_that_cannot_loses_and_sees_what_was_said(self):
    played = await self.play(lambda body: {"content": "hm"})
    self.assertFalse(played.is_success)
    roles = [[m["role"] for m in body["messages"]] for body, _ in self.requests]
    self.assertEqual(roles[1][-2], "assistant")
    self.assertEqual(len(roles), 4)

  async def test_a_busy_endpoint_is_asked_again(self):
    def answer(body):
      if len(self.requests) < 3:
        return web.Response(
          status=429 if len(self.requests) == 1 else 503,
          headers={"Retry-After": "0"},
        )
      return solve(body)

    played = await self.play(answer)
    self.assertTrue(played.is_success)
    self.assertEqual(len(self.requests), 3)

  async def test_one_that_stays_busy_is_a_fault(self):
    with self.assertRaisesRegex(GeneratorFault, "no answer within 1.2 s.*503"):
      await self.play(lambda body: web.Response(status=503), timeout_s=1.2)

  async def test_one_that_is_not_there_is_a_fault(self):
    async with self.player(solve, timeout_s=0.8) as player:
      pass
    with self.assertRaisesRegex(GeneratorFault, "HTTP none: Client"):
      await player.play(
        EpisodeSpec(
          task=Task("sums", "test", 3), group_id="g", attempt=0, seed=0
        )
      )

  async def test_a_conversation_that_is_too_long_ends_as_such(self):
    def answer(body):
      if len(self.requests) < 2:
        return {"content": "hm"}
      return web.json_response(
        {"error": {"code": "context_length_exceeded"}}, status=400
      )

    played = await self.play(answer)
    self.assertEqual(played.status, Status.AGENT_CONTEXT_LIMIT)
    self.assertEqual(len(played.turns), 1)

  async def test_a_refusal_is_told_and_not_repeated(self):
    with self.assertRaisesRegex(ConfigError, "'adder': HTTP 404 no such model"):
      await self.play(
        lambda body: web.Response(status=404, text="no such model")
      )
    self.assertEqual(len(self.requests), 1)

  async def test_other_formats_are_refused(self):
    for body in (
      "hello",
      "{}",
      '{"choices": []}',
      '{"choices": [{"message": 3}]}',
    ):
      with (
        self.subTest(body),
        self.assertRaisesRegex(ConfigError, "the form of"),
      ):
        await self.play(lambda _, body=body: web.Response(text=body))

  def test_an_address_needs_a_scheme(self):
    with self.assertRaisesRegex(ConfigError, "must be an address"):
      ChatEndpoint(url="host:8000", model="x")


if __name__ == "__main__":
  unittest.main()
