"""Runs on servers of MCP and OpenEnv, which a run starts and ends."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import pytest

from configs import environments, finetune
from launch.reports.metrics_file import read_metrics
from launch.run.training import train
from tests.env.adapters import mcp_test, openenv_test
from tests.launch.export_test import write_model
from tests.launch.run.finetune_test import SMALL

pytest.importorskip("mcp", reason="pip install 'agentrl_jax[mcp]'")


def is_odd(completion, num_calls):
  """A reward that tells the answers of random weights apart."""
  return float(len(completion) % 2), {"called": float(num_calls > 0)}


@pytest.mark.slow
@pytest.mark.timeout(900)
class ServersTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    write_model(cls.root / "model")
    rows = [{"question": f"{n} o'clock?", "answer": ""} for n in range(40)]
    cls.source = cls.root / "rows.jsonl"
    cls.source.write_text("".join(json.dumps(row) + "\n" for row in rows))

  def trained(self, name, target, options, changes=None):
    """Trains for two updates; returns the metrics of the last, and the run."""
    config = finetune.get_config(str(self.root / "model"))
    with config.unlocked():
      config.environments[name] = environments.entry(target, options=options)
      config.tasks.weights[name] = 1.0
    config.name, config.tasks.names = name, (name,)
    config.update_from_flattened_dict(
      SMALL
      | {"workdir": str(self.root / "runs"), "train.steps": 2}
      | {"loss.kl_coefficient": 0.0, "optimizer.learning_rate": 1e-3}
      | (changes or {})
    )
    before = running()
    train(config)
    self.assertEqual(running() - before, set())
    run = self.root / "runs" / name
    rows = read_metrics(run / "metrics.jsonl")
    rows = [row.values for row in rows if row.stage == "rl"]
    self.assertEqual(len(rows), 2)
    summary = json.loads((run / "summary.json").read_text())
    self.assertIn("rl", {e["stage"] for e in summary["evaluations"]})
    return rows

  def by_mcp(self, name, command, changes=None, **options):
    options = {
      "command": command,
      "source": str(self.source),
      "reward": "tests.launch.run.servers_test:is_odd",
      "call_limit_s": 120.0,
      "start_limit_s": 240.0,
      "num_warm": 1,
      **options,
    }
    target = "agentrl_jax.env.adapters.mcp:MCP"
    return self.trained(name, target, options, changes)

  def test_time(self):
    rows = self.by_mcp("clock", mcp_test.published("mcp-server-time"))
    self.assertIn("episode/called/clock", rows[-1])

  def test_sqlite_is_called(self):
    rows = self.by_mcp(
      "database",
      f"{mcp_test.published('mcp-server-sqlite')} --db-path {{folder}}/data.db",
      {"sampling.calls": "required", "episode.max_answer_tokens": 64},
      tools=("list_tables",),
      max_turns=2,
    )
    self.assertGreater(rows[-1]["episode/called/database"], 0.0)

  def test_openenv(self):
    rows = self.trained(
      "wish",
      "agentrl_jax.env.adapters.openenv:OpenEnv",
      {
        "command": f"{sys.executable} {openenv_test.SERVER} {{port}} echo",
        "max_rounds": 1,
        "truncated_is_completed": True,
        "state": ("step_count",),
      },
    )
    self.assertEqual(rows[-1]["episode/step_count/wish"], 1.0)


def running():
  """Returns the ids of servers' processes, and of what ends them."""
  listed = subprocess.run(
    ["ps", "-weo", "pid,ppid,args"], capture_output=True, text=True
  )
  lines = [line.split(None, 2) for line in listed.stdout.splitlines()[1:]]
  return {
    int(pid)
    for pid, parent, args in lines
    if int(parent) == os.getpid() and "bounded_process" in args
  }
