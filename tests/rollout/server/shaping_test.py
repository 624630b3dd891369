"""Penalties, biases and alternatives through servers, and other drivers."""

import contextlib
import dataclasses
import unittest

import numpy as np
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.drivers.jetstream import JetStreamDriver
from agentrl_jax.rollout.remote.generator import connected
from tests.rollout import small
from tests.rollout.engine.shaping_test import SPECS, STEPS
from tests.rollout.serving import Served
from tests.settings import rollouts_config

PROMPT = small.prompt_of(1, 12)
WAIT_S = 300.0
_ARRAYS = ("sampled", "behavior_logprob", "top_token", "top_logprob")


class ShapingHttpTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_a_server_gives_what_its_engine_gives(self):
    served = await self.enterAsyncContext(Served(steps=STEPS))
    config = rollouts_config(servers=served.address, answer_timeout_s=WAIT_S)
    generator = await self.enterAsyncContext(
      connected(config, num_policy_slots=2)
    )
    with contextlib.closing(JetStreamDriver(small.engine_of(STEPS))) as driver:
      asked = [driver.submit(PROMPT, spec) for spec in SPECS.values()]
      expected = [answer.result(WAIT_S) for answer in asked]
    for (name, spec), answer in zip(SPECS.items(), expected, strict=True):
      whole = await generator.generate(PROMPT, spec)
      pieces = [piece async for piece in generator.stream(PROMPT, spec)]
      for actual in (whole, pieces[0].joined(pieces)):
        for array in _ARRAYS:
          with self.subTest(name, array=array):
            self.same(getattr(actual, array), getattr(answer, array))
    beyond = dataclasses.replace(
      SPECS["bias"], logit_bias=((small.VOCAB, 1.0),)
    )
    with self.assertRaisesRegex(ConfigError, "logit_bias has 1.0 for token 61"):
      await generator.generate(PROMPT, beyond)

  def same(self, actual, expected):
    self.assertEqual(actual is None, expected is None)
    if expected is not None and expected.dtype == np.int32:
      np.testing.assert_array_equal(actual, expected)
    elif expected is not None:
      np.testing.assert_allclose(actual, expected, atol=1e-4)
