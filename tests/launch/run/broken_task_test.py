"""A task whose environment breaks in the middle of a run, and comes back."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from absl.testing import absltest

from agentrl_jax.data.records import Task
from agentrl_jax.env.loading import load_environment
from agentrl_jax.errors import EnvironmentFault
from launch.config.settings import read_settings
from launch.reports.metrics_file import read_metrics
from tests import programs
from tests.launch.run import broken_task
from tests.launch.run.broken_task import SWITCH

DEADLINE_S = 240


def test_a_switch_says_how_the_environment_breaks(tmp_path, monkeypatch):
  switch = tmp_path / "switch"
  monkeypatch.setenv(SWITCH, str(switch))
  settings = read_settings(broken_task.get_config()).environments["breakable"]
  environment = load_environment(settings.target, settings.options)

  async def open_session():
    async with environment.open(Task("breakable", "train", 0), seed=0):
      pass

  asyncio.run(open_session())
  switch.write_text("fails")
  with pytest.raises(EnvironmentFault, match="as told"):
    asyncio.run(open_session())


@pytest.mark.full
@pytest.mark.timeout(900)
class BrokenTaskTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.metrics = folder / "broken" / "metrics.jsonl"
    self.switch = folder / "switch"
    self.log = self.enter_context((folder / "log").open("w+"))
    self.run_ = subprocess.Popen(
      [
        sys.executable,
        "-m",
        "launch.train",
        "--config=tests/launch/run/broken_task.py",
        f"--config.workdir={folder}",
      ],
      cwd=programs.ROOT,
      env=os.environ | {SWITCH: str(self.switch)},
      stdout=self.log,
      stderr=subprocess.STDOUT,
    )
    self.addCleanup(self.run_.wait)
    self.addCleanup(self.run_.kill)

  def values(self):
    """The metrics of all updates so far."""
    if not self.metrics.exists():
      return []
    rows = read_metrics(self.metrics)
    return [row.values for row in rows if row.stage == "rl"]

  def until(self, holds, what):
    """Waits until the metrics say so; returns those of the last update."""
    ends_at = time.monotonic() + DEADLINE_S
    while True:
      values = self.values()
      if values and holds(values):
        return values[-1]
      if self.run_.poll() is not None or time.monotonic() > ends_at:
        self.log.seek(0)
        self.fail(f"{what}\n{self.log.read()[-3000:]}")
      time.sleep(0.3)

  def test_the_other_goes_on_and_it_comes_back(self):
    is_open = "groups/breaker_open/breakable"
    trained = "groups/finished/breakable"
    self.until(lambda v: len(v) >= 5, "no updates")
    for how in ("fails", "hangs"):
      self.switch.write_text(how)
      self.until(lambda v: v[-1].get(is_open), f"{how}: no breaker opened")
      before, first = len(self.values()), self.values()[-1]
      last = self.until(
        lambda v, before=before: len(v) >= before + 20, f"{how}: no updates"
      )
      self.assertEqual(last[trained], first[trained])
      self.assertTrue(last[is_open])
      self.assertIn("success/arithmetic", last)
      self.assertGreater(last["groups/dropped/breaker_open/breakable"], 0)
      self.switch.unlink()
      self.until(
        lambda v, last=last: (
          not v[-1][is_open] and v[-1][trained] >= last[trained] + 10
        ),
        f"{how}: it did not come back",
      )
    self.run_.send_signal(signal.SIGINT)
    self.run_.wait(DEADLINE_S)
    self.log.seek(0)
    log = self.log.read()
    self.assertIn("no groups of breakable start", log)
    self.assertIn("groups of breakable finish again", log)
