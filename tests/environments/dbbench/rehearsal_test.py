"""Rehearsing the expert."""

import subprocess
import sys
import unittest

from environments.dbbench import DBBench
from environments.dbbench.rehearsal import Rehearsal, rehearse
from tests.environments.dbbench.data import ROOT


class RehearseTest(unittest.IsolatedAsyncioTestCase):
  async def test_counts_by_type(self):
    environment = DBBench(kinds=("sum", "lookup"))
    done = await rehearse(
      environment, num_tasks=40, mistakes={"count_for_sum": 1.0}
    )
    self.assertEqual(done.num_sessions, 40)
    self.assertEqual(set(done.rewards), {"sum", "lookup"})
    self.assertEqual(sum(done.rewards["sum"]), 0.0)
    self.assertEqual(
      done.success, len(done.rewards["lookup"]) / done.num_sessions
    )

  def test_report(self):
    done = Rehearsal({"sum": [1.0, 0.0], "avg": [1.0]}, seconds=1.5)
    self.assertEqual(
      done.report(),
      "avg         100.0% of 1\n"
      "sum          50.0% of 2\n"
      "all          66.7% of 3\n"
      "2 sessions per second of processor time",
    )

  def test_command(self):
    done = subprocess.run(
      [
        *(sys.executable, "-m", "environments.dbbench.rehearsal"),
        *("--num_tasks", "5", "--split", "test"),
        *("--option", "kinds=('insert',)"),
        *("--mistake", "drop_last_value=1"),
      ],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=True,
      timeout=120,
    )
    self.assertIn("INSERT        0.0% of 5", done.stdout)


if __name__ == "__main__":
  unittest.main()
