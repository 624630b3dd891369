"""Diagnostics of runs: what was not measured is not shown as a number."""

from absl.testing import absltest

from agentrl_jax.metrics import Row
from launch.comparisons.diagnostics import columns, diagnostics, table
from launch.comparisons.runs import Arm, Run
from launch.sweeps.cells import State

OLDER = "/policy_slot1"


def a_run(share, sample_size):
  values = {
    "policy/entropy": 0.5,
    f"policy/share_of_tokens{OLDER}": share,
    f"policy/effective_sample_size{OLDER}": sample_size,
  }
  return Run(
    name="a",
    seed=0,
    state=State.FINISHED,
    why="",
    rows=[Row("rl", step, 0.0, values) for step in (1, 2)],
    evaluations=[],
    config={},
    commit="",
    hours=0.0,
  )


class DiagnosticsTest(absltest.TestCase):
  def test_an_older_version_that_never_played_has_no_sample_size(self):
    arms = [
      Arm("turn", {}, {0: a_run(0.25, 0.8)}),
      Arm("never", {}, {0: a_run(0.0, 0.0)}),
    ]
    found = diagnostics(arms)
    self.assertNotIn(f"policy/effective_sample_size{OLDER}", found["never"][0])
    place = list(columns(found)).index(f"policy/effective_sample_size{OLDER}")
    cells = {label: cells[place].text for label, cells in table(found)}
    self.assertEqual(cells, {"turn (1)": "0.8", "never (1)": ""})


if __name__ == "__main__":
  absltest.main()
