"""A rollout server that is killed while it decodes costs retries alone."""

import asyncio
import dataclasses
import pathlib
import tempfile
import unittest

import aiohttp
import jax
import pytest

from agentrl_jax.controller.episode import EpisodeLimits
from agentrl_jax.controller.groups.group import GroupLimits
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.generator import connected
from launch.config.settings import read_settings
from launch.serving.remote import publisher, snapshots
from tests.clocks import until
from tests.controller.pipeline import STEP, Pipeline, ids, played_by
from tests.controller.stage import a_player
from tests.launch import tiny
from tests.launch.serving.rollout_servers import DEADLINE_S, Server

NUM_STEPS = 6  # of the learner
EPISODE = EpisodeLimits(max_turns=2, max_tokens=320, max_answer_tokens=100)
GROUP = GroupLimits(size=4, deadline_s=DEADLINE_S)


@pytest.mark.slow
class KilledServerTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    config = tiny.get_config()
    config.workdir = folder
    settings = read_settings(config)
    sink = self.enterContext(snapshots(config, settings))
    policy = Policy(settings.model, settings.compute)
    params = policy.init(jax.random.key(1))
    for policy_slot in (0, 1):
      publisher(settings, policy, sink).publish(
        params, 1, policy_slot=policy_slot
      )
    self.servers = [Server(pathlib.Path(folder)) for _ in range(2)]
    for server in self.servers:
      self.addCleanup(server.kill)
    addresses = ",".join(server.address for server in self.servers)
    self.generator = await self.enterAsyncContext(
      connected(
        dataclasses.replace(
          settings.rollouts, servers=addresses, answer_timeout_s=DEADLINE_S
        ),
        num_policy_slots=2,
      )
    )
    self.http = await self.enterAsyncContext(aiohttp.ClientSession())

  @pytest.mark.slow
  async def test_no_episode_is_lost_or_played_twice(self):
    async with asyncio.timeout(DEADLINE_S):
      servers = self.generator.pool.servers
      await until(
        lambda: all(s.is_reachable for s in servers), within_s=DEADLINE_S
      )
      pipeline = Pipeline(
        played_by(a_player(engine=self.generator, limits=EPISODE), GROUP),
        order="started",
      )
      async with pipeline.running() as collector:
        killing = asyncio.create_task(self.kill_while_it_decodes())
        groups = [
          group
          for version in range(NUM_STEPS)
          for group in await collector.take(STEP, version=version)
        ]
        await killing
    self.assertEqual(ids(groups), list(range(STEP * NUM_STEPS)))
    for group in groups:
      self.assertEqual(group.task, pipeline.stream.at(int(group.id)))
      attempts = [trajectory.attempt for trajectory in group.trajectories]
      self.assertEqual(attempts, list(range(GROUP.size)))
    self.assertGreater(self.generator.num_repeated, 0)
    self.assertEqual(self.generator.pool.servers[0].num_lost, 1)
    # Requests were made once more; no attempt was.
    found = pipeline.monitor.snapshot()
    for name in ("retried", "masked", "faults"):
      self.assertEqual(found[f"rollout/{name}/arithmetic"], 0)
    self.assertEqual(found["rollout/token_identity/arithmetic"], 1)

  async def kill_while_it_decodes(self):
    killed = self.servers[0]
    await until(lambda: self.num_inside(killed), within_s=DEADLINE_S)
    await asyncio.to_thread(killed.kill)

  async def num_inside(self, server):
    url = f"http://{server.address}{wire.HEALTH}"
    async with self.http.get(url) as response:
      return wire.status_from_json(await response.read()).num_inside
