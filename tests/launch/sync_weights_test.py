"""Weights on their way from a learner to engines of other projects."""

import asyncio
import contextlib
import functools
import pathlib
import tempfile
import unittest

import jax
import numpy as np
import pytest

from agentrl_jax.errors import ConfigError, DeadlineExceeded
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.external.client import DIALECTS
from agentrl_jax.rollout.external.weight_loader import EngineLoader
from agentrl_jax.rollout.remote.generator import connected
from launch.config.settings import read_settings
from launch.serving.remote import publisher, snapshots, snapshots_of, speaking
from launch.sync_weights import EngineWeights, follow
from tests.launch import tiny
from tests.rollout.external.peers import SglangPeer, VllmPeer
from tests.settings import engine_config

SPEC = SamplingParams(max_tokens=20, seed=4)


class EngineWeightsTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.stack = contextlib.ExitStack()
    self.addCleanup(self.stack.close)
    folder = self.stack.enter_context(tempfile.TemporaryDirectory())
    self.config = tiny.get_config()
    self.config.workdir = folder
    self.config.engine.slots = (2,)
    self.config.cross_policy.update(weights=(1.0,), policy_slots=("fresh",))
    self.config.sampling.temperature = 1.0
    self.place = pathlib.Path(folder) / "loading"

  async def open(self, protocol, peer):
    """A learner's sink, an engine, its follower and a generator."""
    self.config.rollouts.protocol = protocol
    self.settings = read_settings(self.config)
    self.policy = Policy(self.settings.model, self.settings.compute)
    self.sink = self.stack.enter_context(snapshots(self.config, self.settings))
    self.publisher = publisher(self.settings, self.policy, self.sink)
    self.peer = await self.enterAsyncContext(peer(engine=self.engine(0)))
    self.weights = EngineWeights(
      snapshots_of(self.config),
      self.settings,
      EngineLoader(
        self.peer.address, DIALECTS[protocol], token="", load_s=60.0
      ),
      self.place,
    )
    self.weights._clock = lambda: self.now
    self.now = 0.0
    config = self.config.rollouts
    config.servers = self.peer.address
    self.generator = await self.enterAsyncContext(
      connected(
        read_settings(self.config).rollouts,
        num_policy_slots=1,
        acceptable=self.sink.acceptable,
        client=speaking(self.settings, 1.0),
      )
    )

  @functools.cache  # noqa: B019 - one test's params
  def params(self, step):
    return self.policy.init(jax.random.key(step))

  def engine(self, step):
    store = ServedWeights(1)
    store.publish(self.policy.unstacked(self.params(step)), step)
    config = engine_config(
      slots=(2,), context=64, num_slot_sizes=1, prefill_chunks=(16,)
    )
    return RolloutEngine(self.policy, config, store)

  async def publish(self, step):
    self.publisher.publish(self.params(step), step)
    await asyncio.to_thread(self.sink.flush)

  async def look(self):
    return await asyncio.to_thread(self.weights.look)

  async def check_serves(self, step):
    fresh = {0: self.sink.publications()[0]}
    await self.generator.serving(fresh, 60)
    answer = await self.generator.generate([1, 2, 3], SPEC)
    self.assertEqual(set(answer.version), {step})
    expected = LocalDriver(self.engine(step))
    future = expected.submit([1, 2, 3], SPEC)
    expected.run_until_idle()
    expected.close()
    np.testing.assert_array_equal(answer.sampled, future.result(0).sampled)

  async def follow(self, protocol, peer):
    await self.open(protocol, peer)
    self.assertFalse(await self.look())
    for step in (1, 2):
      await self.publish(step)
      self.assertTrue(await self.look(), self.weights.trouble)
      await self.check_serves(step)
    self.assertFalse(await self.look())
    self.assertEqual(list(self.place.iterdir()), [])
    # Started anew, the engine has other weights under another label.
    self.peer.label = "default"
    self.assertTrue(await self.look(), self.weights.trouble)
    await self.check_serves(2)
    await self.check_a_load_that_fails()

  async def check_a_load_that_fails(self):
    self.peer.lacks.add("load")
    await self.publish(3)
    self.assertFalse(await self.look())
    self.assertRegex(self.weights.trouble, "did not take.*out of memory")
    self.assertIsNone(await self.waited())
    self.peer.lacks.clear()
    self.now += 60
    self.assertTrue(await self.look(), self.weights.trouble)
    await self.check_serves(3)

  async def waited(self):
    """Nothing is sampled from weights that are not those published."""
    fresh = {0: self.sink.publications()[0]}
    try:
      await self.generator.serving(fresh, 0.3)
    except DeadlineExceeded:
      return None
    return self.peer.label

  def test_servers_of_this_framework_need_no_weights_from_here(self):
    with self.assertRaisesRegex(ConfigError, "'agentrl' needs no weights"):
      follow(self.config, "127.0.0.1:1", str(self.place))

  @pytest.mark.slow
  async def test_vllm_is_given_what_the_learner_writes(self):
    await self.follow("openai", VllmPeer)
    loads = [c for c in self.peer.calls if not c.startswith("/v1/")]
    self.assertEqual(
      loads[:6],
      [
        "/pause?mode=wait",
        "/update_weight_version",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/resume",
      ],
    )
    self.assertEqual(loads.count("/pause?mode=wait"), loads.count("/resume"))

  @pytest.mark.full
  async def test_sglang_is_given_what_the_learner_writes(self):
    await self.follow("sglang", SglangPeer)
