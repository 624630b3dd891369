"""A run that trains on servers as it would on another project's engines.

They are rollout servers of this framework, asked through OpenAI's endpoint with
a token; one of them is killed while it answers, and never comes back.
"""

import collections
import pathlib
import signal
import tempfile

import pytest
from absl.testing import absltest

from agentrl_jax.data.record_file import read_groups
from agentrl_jax.rollout.external.client import DIALECTS
from launch.config.settings import read_settings
from tests.launch import tiny
from tests.launch.processes.learners import Learners, ledger_of, metrics_of
from tests.launch.serving.rollout_servers import Server

STEPS = 6


def test_other_engines_are_asked_with_a_token(tmp_path):
  (tmp_path / "token").write_text("a secret of this run\n")
  config = tiny.get_config()
  config.rollouts.update(
    servers="a:1,b:2", protocol="openai", token_file=str(tmp_path / "token")
  )
  rollouts = read_settings(config).rollouts
  assert rollouts.read_token() == "a secret of this run"
  assert rollouts.protocol in DIALECTS


@pytest.mark.timeout(900)
@pytest.mark.full
class EngineRunTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.workdir = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    token_file = cls.workdir / "token"
    token_file.write_text("a secret of this run\n")
    changes = {"rollouts.token_file": str(token_file)}
    cls.servers = [Server(cls.workdir, changes=changes) for _ in range(2)]
    for server in cls.servers:
      cls.addClassCleanup(server.kill)
    changes |= {
      "train.steps": STEPS,
      "report.keep_groups": 100,
      "rollouts.protocol": "openai",
      "rollouts.servers": ",".join(s.address for s in cls.servers),
    }
    learners = Learners(cls.workdir, changes, num_processes=1, num_devices=1)
    learners.wait_for_update(2)
    cls.servers[0].kill()
    cls.statuses, cls.said = learners.end(), learners.said()
    cls.ended = cls.servers[1].end(signal.SIGTERM)
    cls.root = learners.root

  def test_the_run_ends_well(self):
    self.assertEqual(self.statuses, [0], self.said)
    self.assertEqual(self.ended, 0, self.servers[1].said)
    counts = collections.Counter(
      group for entry in ledger_of(self.root) for group in entry["groups"]
    )
    self.assertLen(counts, 2 * STEPS)
    self.assertEqual(set(counts.values()), {1})

  def test_every_token_has_its_version(self):
    newest = -1
    for version in range(STEPS):
      path = self.root / "trajectories" / f"{version:06d}.jsonl.gz"
      turns = [
        turn
        for group in read_groups(path)
        for attempt in group.trajectories
        for turn in attempt.turns
      ]
      self.assertNotEmpty(turns)
      for turn in turns:
        self.assertGreaterEqual(min(turn.version), 0)
        self.assertLessEqual(max(turn.version), version)
        self.assertLessEqual(max(turn.behavior_logprob), 0)
      newest = max(
        newest, *(max(t.version) for t in turns if t.policy_slot == 0)
      )
    self.assertGreater(newest, 0)

  def test_the_kill_is_told_and_costs_no_episode(self):
    rows = metrics_of(self.root)
    self.assertEqual(rows[-1]["rollouts/lost"], 1)
    self.assertEqual(rows[-1]["rollouts/servers"], 1)
