"""Grammars in requests to other processes, and the answers."""

import asyncio
import dataclasses
import unittest

import aiohttp
import numpy as np

from agentrl_jax.errors import ConfigError, GrammarFault
from agentrl_jax.rollout.remote.generator import connected
from agentrl_jax.rollout.server.metrics import METRICS
from tests.rollout import small, small_grammars
from tests.rollout.drivers.contract import SHORT
from tests.rollout.engine.grammar_test import mixed_requests, spec_of
from tests.rollout.serving import Served
from tests.settings import rollouts_config


class GrammarHttpTest(unittest.IsolatedAsyncioTestCase):
  async def serve(self, *, grammars):
    self.served = await self.enterAsyncContext(Served(grammars=grammars))
    config = rollouts_config(servers=self.served.address, answer_timeout_s=60.0)
    return await self.enterAsyncContext(connected(config, num_policy_slots=2))

  async def test_answers_are_those_of_the_engine(self):
    generator = await self.serve(grammars=small_grammars.grammars())
    requests = [one[:2] for one in mixed_requests(16)]
    expected = small.answers_of(requests, grammars=small_grammars.grammars())
    answers = await asyncio.gather(*(generator.generate(*r) for r in requests))
    for answer, target in zip(answers, expected, strict=True):
      np.testing.assert_array_equal(answer.sampled, target.sampled)
    bound = [
      len(answer.sampled)
      for answer, (_, spec) in zip(answers, requests, strict=True)
      if spec.grammar
    ]
    async with (
      aiohttp.ClientSession() as http,
      http.get(f"http://{self.served.address}{METRICS}") as response,
    ):
      page = await response.text()
    self.assertIn(f'kind="constrained"}} {float(sum(bound))}', page)

  async def test_a_grammars_dead_end_loses_no_server(self):
    generator = await self.serve(grammars=small_grammars.grammars())
    dead = dataclasses.replace(spec_of("json"), grammar=small_grammars.DEAD_END)
    good = asyncio.create_task(generator.generate([1], SHORT))
    with self.assertRaisesRegex(GrammarFault, "no token goes on"):
      await generator.generate([1], dead)
    self.assertEqual(len((await good).sampled), 20)
    self.assertEqual(generator.num_repeated, 0)
    self.assertFalse(self.served.api.broken.done())
    self.assertEqual(len((await generator.generate([2], SHORT)).sampled), 20)

  async def test_a_server_without_a_tokenizer_says_so(self):
    generator = await self.serve(grammars=None)
    with self.assertRaisesRegex(ConfigError, "knows no tokenizer"):
      await generator.generate([1], spec_of("json"))
