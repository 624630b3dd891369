"""One generator over real servers: load, lost servers, deadlines."""

import asyncio
import contextlib
import unittest

import numpy as np
from aiohttp import web

from agentrl_jax.errors import ConfigError, DeadlineExceeded, PromptTooLong
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.client import BinaryClient
from agentrl_jax.rollout.remote.generator import connected
from tests.clocks import Clock, turns_of_the_loop, until
from tests.rollout import small
from tests.rollout.drivers.contract import SHORT, mixed_requests
from tests.rollout.serving import Served, hold
from tests.service.processes import free_port
from tests.settings import rollouts_config

LONG = SamplingParams(max_tokens=80)
QUICK = dict(
  health_interval_s=0.05, server_timeout_s=30.0, answer_timeout_s=60.0
)


class HttpGeneratorTest(unittest.IsolatedAsyncioTestCase):
  async def serve(self, **changes) -> Served:
    return await self.enterAsyncContext(Served(**changes))

  async def connect(
    self, *addresses, acceptable=dict, num_policy_slots=2, **changes
  ):
    config = rollouts_config(servers=",".join(addresses), **(QUICK | changes))
    return await self.enterAsyncContext(
      connected(
        config, num_policy_slots=num_policy_slots, acceptable=acceptable
      )
    )

  async def serve_one(self, **changes):
    served = await self.serve(**changes)
    return served, await self.connect(served.address)

  async def serve_two(self):
    servers = [await self.serve() for _ in range(2)]
    return servers, await self.connect(*(s.address for s in servers))

  async def test_answers_are_those_of_one_engine(self):
    servers, generator = await self.serve_two()
    requests = list(mixed_requests(16))
    answers = await asyncio.gather(
      *(generator.generate(*request) for request in requests)
    )
    for answer, expected in zip(
      answers, small.answers_of(requests), strict=True
    ):
      np.testing.assert_array_equal(answer.sampled, expected.sampled)
      self.assertEqual(answer.policy_slot, expected.policy_slot)
    for served in servers:
      self.assertGreater(sum(served.driver.engine.stats().num_sampled), 0)

  async def test_an_unexpected_error_of_a_health_check_reaches_every_caller(
    self,
  ):
    class Broken(BinaryClient):
      async def status(self, server, within_s):
        raise AttributeError("no such field")

    generator = await self.enterAsyncContext(
      connected(
        rollouts_config(servers="127.0.0.1:1", **QUICK),
        num_policy_slots=1,
        acceptable=dict,
        client=Broken,
      )
    )
    for call in (generator.serving({}, 60), generator.generate([1], LONG)):
      with self.assertRaisesRegex(AttributeError, "no such field"):
        await call

  async def test_a_conversation_is_answered_from_its_keys_and_values(self):
    servers, generator = await self.serve_two()
    prompts = {c: small.prompt_of(c, 30) for c in (1, 2)}
    spec = dict(max_tokens=10, temperature=0.9)

    async def turn(conversation):
      prompt = prompts[conversation]
      answer = await generator.generate(
        prompt, SamplingParams(conversation=conversation, **spec)
      )
      prompts[conversation] = small.conversation(
        prompt, answer, small.prompt_of(9, 4)
      )
      return answer.num_reused

    first = await asyncio.gather(turn(1), turn(2))
    self.assertEqual(first, [0, 0])
    for _ in range(2):
      lengths = [len(prompts[c]) - 4 - 1 for c in (1, 2)]
      self.assertEqual(await asyncio.gather(turn(1), turn(2)), lengths)
    for served in servers:
      self.assertGreater(sum(served.driver.engine.stats().num_sampled), 0)

  async def test_requests_of_a_lost_server_are_asked_again(self):
    stack = contextlib.AsyncExitStack()
    leaving = await stack.enter_async_context(Served())
    self.addAsyncCleanup(stack.aclose)
    held = hold(self, leaving)
    # Not heard again before it is gone: it would say that it takes no more.
    generator = await self.connect(
      leaving.address, health_interval_s=60.0, answer_timeout_s=600.0
    )
    requests = [
      ([1, 2], SamplingParams(max_tokens=9, seed=seed)) for seed in range(4)
    ]
    asked = [
      asyncio.create_task(generator.generate(*request)) for request in requests
    ]
    await until(lambda: sum(leaving.driver.num_inside) == 4)
    port = leaving.port
    held.set()
    leaving.driver.close()  # the engine breaks, with four requests in it
    await until(lambda: generator.pool.servers[0].num_lost)
    await stack.aclose()
    again = await self.serve(port=port)  # the same address comes back
    await Clock().forward(61.0)
    answers = await asyncio.gather(*asked)
    for answer, expected in zip(
      answers, small.answers_of(requests), strict=True
    ):
      np.testing.assert_array_equal(answer.sampled, expected.sampled)
    self.assertGreaterEqual(generator.num_repeated, 4)
    self.assertEqual(generator.pool.servers[0].num_lost, 1)
    self.assertGreater(sum(again.driver.engine.stats().num_sampled), 0)

  async def test_a_server_that_hangs_is_lost_and_another_answers(self):
    hanging = await self.enterAsyncContext(_Hanging())
    port = free_port()
    generator = await self.connect(
      hanging.address, f"127.0.0.1:{port}", answer_timeout_s=1e9
    )
    clock, server = Clock(), generator.pool.servers[0]

    async def is_lost():
      await clock.forward(QUICK["server_timeout_s"] + 1)
      return not server.is_reachable

    asked = asyncio.create_task(generator.generate([1], SHORT))
    await until(lambda: hanging.num_asked)
    hanging.hangs = True
    await until(is_lost)
    self.assertIn("has not reported its health", generator.describe())
    self.assertFalse(asked.done())
    await self.serve(port=port)
    self.assertEqual(len((await asked).sampled), SHORT.max_tokens)
    self.assertEqual((hanging.num_asked, generator.num_repeated), (1, 1))

  async def test_a_full_server_is_asked_again(self):
    _, generator = await self.serve_one(driver_options=dict(max_waiting=0))
    answers = await asyncio.gather(
      *(
        generator.generate([1], SamplingParams(max_tokens=60, seed=seed))
        for seed in range(14)  # eight fit in
      )
    )
    self.assertEqual(len(answers), 14)
    self.assertEqual(generator.num_repeated, 0)

  async def test_cancelling_frees_the_slot(self):
    served = await self.serve()
    held = hold(self, served)
    generator = await self.connect(served.address)
    asked = asyncio.create_task(generator.generate([1], LONG))
    await until(lambda: sum(served.driver.num_inside))
    asked.cancel()
    with self.assertRaises(asyncio.CancelledError):
      await asked
    self.assertEqual(generator.pool.servers[0].num_requests, 0)
    await until(lambda: served.driver.engine._cancelled)
    held.set()
    await until(lambda: not sum(served.driver.num_inside))
    self.assertEqual(served.driver.engine.stats().num_cancelled, 1)

  async def test_refused_requests_are_not_repeated(self):
    served, generator = await self.serve_one()
    with self.assertRaisesRegex(PromptTooLong, "context=96"):
      await generator.generate([1] * 90, SHORT)
    with self.assertRaisesRegex(ConfigError, f"{small.VOCAB}"):
      await generator.generate([small.VOCAB], SHORT)
    with self.assertRaises(ConfigError):
      await generator.generate([0.5], SHORT)
    self.assertEqual(generator.num_repeated, 0)
    self.assertTrue(generator.pool.servers[0].is_reachable)

  async def test_unreachable_servers_are_named_at_the_deadline(self):
    generator = await self.connect("127.0.0.1:1")
    asked = asyncio.create_task(generator.generate([1], SHORT))
    await until(lambda: "cannot be reached" in generator.describe())
    self.assertFalse(asked.done())
    await Clock().forward(61.0)
    with self.assertRaisesRegex(DeadlineExceeded, "127.0.0.1:1 cannot be rea"):
      await asked

  async def test_a_server_of_another_config_ends_it(self):
    served = await self.serve()
    generator = await self.connect(served.address, num_policy_slots=3)
    with self.assertRaisesRegex(ConfigError, "2 policy slots and this run 3"):
      await generator.generate([1], SHORT)

  async def test_old_weights_are_not_sampled_from(self):
    served = await self.serve()  # policy slot 0 serves publication 10
    oldest = {0: 11}
    generator = await self.connect(served.address, acceptable=lambda: oldest)
    stale = asyncio.create_task(generator.generate([1], SHORT))
    other = SamplingParams(max_tokens=5, policy_slot=1)
    self.assertEqual(set((await generator.generate([1], other)).version), {20})
    self.assertFalse(stale.done())
    served.driver.engine.versions.publish(small.params(11), 11)
    self.assertEqual(set((await stale).version), {11})

  async def test_waiting_for_what_was_published(self):
    servers, generator = await self.serve_two()
    waiting = asyncio.create_task(generator.serving({0: 11}, 60))
    # One server with the publication is not enough while another is behind.
    await until(lambda: all(s.is_reachable for s in generator.pool.servers))
    for served, known in zip(servers, generator.pool.servers, strict=True):
      self.assertFalse(waiting.done())
      served.driver.engine.versions.publish(small.params(11), 11)
      await until(lambda: known.publication(0) == 11)  # noqa: B023
      await turns_of_the_loop()
    self.assertTrue(waiting.done())
    await waiting
    servers[0].trouble = "the disk is gone"
    await until(lambda: "disk is gone" in generator.describe())
    late = asyncio.create_task(generator.serving({0: 12}, 60.0))
    await turns_of_the_loop()
    self.assertFalse(late.done())
    await Clock().forward(61.0)
    with self.assertRaisesRegex(
      DeadlineExceeded, "sync_timeout_s=60 .*disk is gone"
    ):
      await late


class _Hanging:
  """A server that takes requests and, once told to, says nothing any more."""

  def __init__(self):
    self.hangs, self.num_asked = False, 0
    self._forever = asyncio.Event()

  async def __aenter__(self):
    application = web.Application()
    application.router.add_post(wire.GENERATE, self._generate)
    application.router.add_get(wire.HEALTH, self._health)
    self._runner = web.AppRunner(
      application, handler_cancellation=True, shutdown_timeout=0.1
    )
    await self._runner.setup()
    await web.TCPSite(self._runner, "127.0.0.1", 0).start()
    self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
    return self

  async def __aexit__(self, *error):
    self._forever.set()
    await self._runner.cleanup()

  async def _generate(self, request):
    self.num_asked += 1
    await self._forever.wait()
    return web.Response()

  async def _health(self, request):
    if self.hangs:
      await self._forever.wait()
    policy_slot = wire.ServedPolicySlot(version=10, publication=10)
    status = wire.ServerStatus(
      policy_slots=(policy_slot,) * 2, num_inside=0, num_waiting=0
    )
    return web.json_response(status.to_json())
