"""Streams of real servers: equal tokens, early chunks, ends, lost servers."""

import asyncio
import contextlib
import threading
import unittest

import aiohttp

from agentrl_jax.errors import DeadlineExceeded, GeneratorFault, PromptTooLong
from agentrl_jax.rollout.api import SamplingParams, StreamingGenerator
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.generator import connected
from tests.clocks import until
from tests.rollout import small, talking
from tests.rollout.drivers.contract import mixed_requests
from tests.rollout.serving import Served, hold
from tests.settings import rollouts_config

LONG = SamplingParams(max_tokens=80, seed=3)


class Meter:
  """Lets a server's engine take only so many steps, and break at will."""

  def __init__(self, test, served):
    self._steps, self._breaks = threading.Semaphore(0), False
    self._step = served.driver.engine.step
    served.driver.engine.step = self._metered
    test.addCleanup(self.allow)

  def allow(self, number=10_000):
    self._steps.release(number)

  def break_it(self):
    self._breaks = True
    self.allow()

  def _metered(self):
    assert self._steps.acquire(timeout=60)
    if self._breaks:
      raise ZeroDivisionError("on purpose")
    return self._step()


class HttpStreamTest(unittest.IsolatedAsyncioTestCase):
  async def serve(self, **changes) -> Served:
    return await self.enterAsyncContext(Served(**changes))

  async def connect(self, *servers, **changes):
    config = rollouts_config(
      servers=",".join(s.address for s in servers),
      **(
        dict(
          health_interval_s=0.05, server_timeout_s=30.0, answer_timeout_s=60.0
        )
        | changes
      ),
    )
    return await self.enterAsyncContext(connected(config, num_policy_slots=2))

  def check(self, pieces, *request):
    (expected,) = small.answers_of([request])
    small.assert_joined(pieces, expected)

  async def test_pieces_joined_are_the_answer(self):
    servers = [await self.serve() for _ in range(2)]
    generator = await self.connect(*servers)
    self.assertIsInstance(generator, StreamingGenerator)
    requests = list(mixed_requests(8))

    async def streamed(prompt, spec):
      return [piece async for piece in generator.stream(prompt, spec)]

    streams = await asyncio.gather(*(streamed(*r) for r in requests))
    for pieces, request in zip(streams, requests, strict=True):
      self.check(pieces, *request)
    self.assertGreater(max(map(len, streams)), 3)
    for server in servers:
      self.assertEqual(server.api.num_calls, 0)

  async def test_the_first_is_there_before_the_last_is_sampled(self):
    served = await self.serve()
    generator, meter = await self.connect(served), Meter(self, served)
    pieces = generator.stream([1], LONG)
    meter.allow(2)
    first = await anext(pieces)
    self.assertLess(len(first.sampled), 80)
    self.assertEqual(sum(served.driver.num_inside), 1)
    meter.allow()
    self.check([first, *[piece async for piece in pieces]], [1], LONG)

  async def test_closing_frees_the_slot(self):
    served = await self.serve()
    generator, meter = await self.connect(served), Meter(self, served)
    pieces = generator.stream([1], LONG)
    meter.allow(2)
    await anext(pieces)
    await pieces.aclose()
    await until(lambda: not served.api.num_calls)
    meter.allow()
    await until(lambda: not sum(served.driver.num_inside))
    self.assertEqual(served.driver.engine.stats().num_cancelled, 1)
    self.assertEqual(generator.pool.servers[0].num_requests, 0)

  async def test_refusals_come_before_the_first_chunk(self):
    served = await self.serve()
    generator = await self.connect(served)
    with self.assertRaises(PromptTooLong):
      await anext(generator.stream([1] * 90, LONG))
    body = wire.encode_request([1] * 90, LONG)
    async with (
      aiohttp.ClientSession() as http,
      http.post(f"http://{served.address}{wire.STREAM}", data=body) as response,
    ):
      self.assertEqual(response.status, 413)
      self.assertEqual(response.headers[wire.ERROR_HEADER], "PromptTooLong")

  async def test_an_engine_that_breaks_tells_so_in_its_stream(self):
    served = await self.serve()
    meter = Meter(self, served)
    body = wire.encode_request([1], LONG)
    async with aiohttp.ClientSession() as http:
      meter.allow(2)
      async with http.post(
        f"http://{served.address}{wire.STREAM}", data=body
      ) as response:
        self.assertEqual(response.status, 200)
        pieces = wire.read_chunks(response.content, "it")
        await anext(pieces)
        meter.break_it()
        with self.assertRaisesRegex(GeneratorFault, "it: .*on purpose"):
          while True:
            await anext(pieces)

  async def lose_the_first(self, steps):
    """Breaks a stream's server; returns the first chunk and the stream."""
    leaving = await self.serve()
    generator = await self.connect(leaving, health_interval_s=1.0)
    meter = Meter(self, leaving)
    pieces = generator.stream([1, 2], LONG)
    meter.allow(2)
    first = await anext(pieces)
    meter.break_it()
    port = leaving.port
    await leaving._stack.aclose()
    await self.serve(port=port, steps=steps)
    return first, pieces, generator

  async def test_a_server_with_the_same_weights_goes_on(self):
    first, pieces, generator = await self.lose_the_first((10, 20))
    async with contextlib.aclosing(pieces):
      rest = [piece async for piece in pieces]
    self.check([first, *rest], [1, 2], LONG)
    self.assertGreaterEqual(generator.num_repeated, 1)

  async def test_a_server_with_other_weights_does_not(self):
    _, pieces, _ = await self.lose_the_first((11, 20))
    with self.assertRaisesRegex(GeneratorFault, "had been handed out"):
      async for _ in pieces:
        pass

  async def test_an_agent_hears_of_tokens_as_they_are_sampled(self):
    """Streams through OpenAI's endpoint of a server before a pool."""
    behind = await self.enterAsyncContext(talking.Talking())
    config = rollouts_config(servers=behind.url.removeprefix("http://"))
    generator = await self.enterAsyncContext(
      connected(config, num_policy_slots=2)
    )
    front = await self.enterAsyncContext(talking.Talking(generator=generator))

    async def streamed(served):
      async with served.client() as client:
        stream = await client.completions.create(
          model="tiny", prompt=[5, 6], max_tokens=30, seed=1, stream=True
        )
        return [chunk.choices[0].text async for chunk in stream]

    pieces = await streamed(front)
    self.assertGreater(len(pieces), 4)
    self.assertEqual("".join(pieces), "".join(await streamed(behind)))
    self.assertIsNone(front.driver)  # it only passes on

  async def test_nobody_waits_for_ever(self):
    served = await self.serve()
    hold(self, served)
    generator = await self.connect(served, answer_timeout_s=0.3)
    with self.assertRaisesRegex(
      DeadlineExceeded, "rollouts.answer_timeout_s=0.3"
    ):
      await anext(generator.stream([1], LONG))
