"""A whole run whose answers come from other processes, some of them killed.

Two learner processes of two devices each write snapshots together; two rollout
servers follow them. One server is killed outright and started again; the other
is stopped for a while, as if its host hung.
"""

import collections
import os
import pathlib
import signal
import tempfile
from unittest import mock

import pytest
from absl.testing import absltest

from agentrl_jax.data.record_file import read_groups
from launch.config.settings import read_settings
from tests.launch import tiny
from tests.launch.processes import learners as processes
from tests.launch.processes.learners import Learners, ledger_of, metrics_of
from tests.launch.serving.rollout_servers import Server

STEPS = 12
CHANGES = {
  "train.steps": STEPS,
  "mesh.data": 2,
  "mesh.fsdp": 2,
  "train.micro_batch": 4,
  "report.keep_groups": 100,
  "rollouts.server_timeout_s": 3.0,
}


def test_a_server_is_lost_long_before_an_answer_is():
  config = tiny.get_config()
  config.update_from_flattened_dict(CHANGES | {"rollouts.servers": "a:1,b:2"})
  rollouts = read_settings(config).rollouts
  assert rollouts.server_timeout_s < rollouts.answer_timeout_s / 10


@pytest.mark.timeout(1800)
@pytest.mark.full
class RemoteRunTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    patience = mock.patch.object(processes, "DEADLINE_S", 600.0)
    patience.start()  # four processes compile at once
    cls.addClassCleanup(patience.stop)
    cls.workdir = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.servers = [Server(cls.workdir), Server(cls.workdir)]
    addresses = ",".join(server.address for server in cls.servers)
    learners = Learners(cls.workdir, CHANGES | {"rollouts.servers": addresses})
    for server in cls.servers:
      cls.addClassCleanup(server.kill)
    learners.wait_for_update(3)
    cls.servers[0].kill()
    learners.wait_for_update(5)
    # The other hangs: the run goes on with the first alone, once that is back.
    cls.servers.append(Server(cls.workdir, port=cls.servers[0].port))
    cls.addClassCleanup(cls.servers[2].kill)
    os.kill(cls.servers[1].process.pid, signal.SIGSTOP)
    learners.wait_for_update(10)
    os.kill(cls.servers[1].process.pid, signal.SIGCONT)
    cls.statuses, cls.said = learners.end(), learners.said()
    cls.ended = [server.end(signal.SIGTERM) for server in cls.servers[1:]]
    cls.root = learners.root

  def test_everybody_ends_as_they_should(self):
    self.assertEqual(self.statuses, [0, 0], self.said)
    self.assertEqual(self.ended, [0, 0], [s.said for s in self.servers])
    for server in self.servers:
      self.assertIn("rollout server on", server.said)

  def test_no_group_is_lost_or_trained_on_twice(self):
    entries = ledger_of(self.root)
    self.assertEqual([e["version"] for e in entries], list(range(STEPS)))
    counts = collections.Counter(g for e in entries for g in e["groups"])
    self.assertLen(counts, 2 * STEPS)
    self.assertEqual(set(counts.values()), {1})
    self.assertLess(max(map(int, counts)), 2 * STEPS + 6)

  def test_tokens_carry_versions_that_grow_and_are_not_too_old(self):
    newest = []
    for version in range(STEPS):
      groups = read_groups(
        self.root / "trajectories" / f"{version:06d}.jsonl.gz"
      )
      turns = [t for g in groups for a in g.trajectories for t in a.turns]
      fresh = [t for t in turns if t.policy_slot == 0]
      for turn in fresh:  # a swap in the middle of an answer goes forward
        self.assertEqual(sorted(turn.version), list(turn.version))
      newest.append(max((max(t.version) for t in fresh), default=-1))
      self.assertLessEqual(newest[-1], version)
      # Staleness of one by admission, and two by rollouts.max_lag.
      self.assertGreaterEqual(min(min(t.version) for t in fresh), version - 3)
    self.assertGreater(newest[-1], newest[0])

  def test_metrics_tell_of_the_loss(self):
    rows = metrics_of(self.root)
    self.assertGreaterEqual(rows[-1]["rollouts/lost"], 2)
    self.assertIn(1, [row["rollouts/servers"] for row in rows])
    self.assertEqual(rows[0]["rollouts/servers"], 2)
    self.assertLessEqual(max(row["snapshots/lag"] for row in rows), 2)
