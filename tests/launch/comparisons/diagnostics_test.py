"""Diagnostics of runs: what was not measured is not shown as a number."""

from absl.testing import absltest

from agentrl_jax.metrics import Row
from launch.comparisons.diagnostics import (
  ALARM,
  TO_SUCCESS,
  columns,
  diagnostics,
  table,
)
from launch.comparisons.runs import Arm, Run
from launch.sweeps.cells import CellState

OLDER = "/policy_slot1"


def a_run(share, sample_size):
  values = {
    "policy/entropy": 0.5,
    f"policy/share_of_tokens{OLDER}": share,
    f"policy/effective_sample_size{OLDER}": sample_size,
  }
  return a_run_of([values, values])


def a_learning_run(percents):
  """Takes an hour for its first update, and a minute for each of the others."""
  return a_run_of(
    [
      {
        "success/a": each / 100 + 0.1,
        "success/b": each / 100 - 0.1,
        "seconds/train": 60.0 if i else 3600.0,
      }
      for i, each in enumerate(percents)
    ]
  )


def a_run_of(updates):
  return Run(
    name="a",
    seed=0,
    state=CellState.FINISHED,
    rows=[Row("rl", n + 1, 0.0, each) for n, each in enumerate(updates)],
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

  def test_means_of_what_few_updates_have(self):
    updates = [
      {"policy/mutual_information": 1.0, "reward/group_std": 0.4},
      {"reward/group_std": 0.2},
    ]
    arms = [Arm("a", {}, {0: a_run_of(updates)})]
    found = diagnostics(arms)["a"][0]
    self.assertEqual(found["policy/mutual_information"], 1.0)
    self.assertAlmostEqual(found["reward/group_std"], 0.3)

  def test_staleness_is_of_the_groups_of_all_starts(self):
    ages = ((4, 0), (6, 2), (1, 1))  # of 0 and of 3 updates; resumed once
    updates = [
      {"staleness/groups/0": float(fresh), "staleness/groups/3": float(old)}
      for fresh, old in ages
    ]
    arms = [Arm("a", {}, {0: a_run_of(updates)})]
    self.assertAlmostEqual(
      diagnostics(arms)["a"][0]["staleness/mean"], 3 * 3 / 10
    )

  def test_an_alarm_that_was_never_raised_is_later_than_the_last_update(self):
    def run(*collapsed):
      return a_run_of([{"reward/collapsed": float(x)} for x in collapsed])

    arms = [
      Arm("one", {}, {0: run(0, 0, 1, 0), 1: run(0, 0, 0, 0)}),
      Arm("other", {}, {0: a_run(0.0, 0.0)}),  # with the alarm off
    ]
    found = diagnostics(arms)
    alarms = {
      (arm, seed): each.get(ALARM)
      for arm, seeds in found.items()
      for seed, each in seeds.items()
    }
    self.assertEqual(
      alarms, {("one", 0): 2.0, ("one", 1): 4.0, ("other", 0): None}
    )
    self.assertIn(ALARM, columns(found))
    calm = diagnostics([Arm("one", {}, {0: run(0, 0)})])
    self.assertNotIn(ALARM, columns(calm))

  def test_turns_are_those_of_all_tasks(self):
    def updates(last):
      return [
        {"batch/turns": 300.0, "rollout/turns/a": 9.0, "rollout/turns/b": 9.0},
        {"batch/turns": 200.0, "rollout/turns/a": last, "rollout/turns/b": 2.0},
      ]

    arms = [
      Arm("long", {}, {0: a_run_of(updates(4.0))}),
      Arm("unknown", {}, {0: a_run(0.0, 0.0)}),
    ]
    found = diagnostics(arms)
    self.assertEqual(found["long"][0]["trained turns"], 0.5)
    self.assertEqual(found["long"][0]["turns at the end"], 3.0)
    self.assertNotIn("trained turns", found["unknown"][0])
    self.assertNotIn("turns at the end", found["unknown"][0])

  def test_advantages_of_each_task(self):
    updates = [
      {"advantage/spread/a": 1.0, "advantage/mean/a": 0.0},
      {"advantage/spread/a": 3.0, "advantage/mean/a": 0.5},
      {},  # no group of the batch was kept
    ]
    found = diagnostics([Arm("full", {}, {0: a_run_of(updates)})])
    titles = {each.title: name for name, each in columns(found).items()}
    self.assertEqual(found["full"][0][titles["advantage σ, a"]], 2.0)
    self.assertEqual(found["full"][0][titles["advantage μ, a"]], 0.25)

  def test_times_to_the_success_that_all_runs_reach(self):
    slow = [20] * 10 + [42] * 10 + [58] * 10
    fast = [20] * 5 + [99] * 25
    arms = [
      Arm("slow", {}, {0: a_learning_run(slow)}),
      Arm("fast", {}, {3: a_learning_run(fast)}),
    ]
    found = diagnostics(arms)
    times = {
      arm: {k: v for k, v in found[arm][seed].items() if TO_SUCCESS in k}
      for arm, seed in (("slow", 0), ("fast", 3))
    }
    # A change takes five updates, since success is smoothed over as many.
    self.assertEqual(
      times,
      {
        "slow": {f"{TO_SUCCESS}50": 20.0, f"{TO_SUCCESS}55": 22.0},
        "fast": {f"{TO_SUCCESS}50": 4.0, f"{TO_SUCCESS}55": 5.0},
      },
    )

  def test_a_success_that_rounds_up_to_a_level_is_no_error(self):
    """The mean of the last five is just below 0.4, 100 times it is not."""
    curve = [0.025, 0.275, 0.2, 0.375, 0.4, 0.425]
    updates = [{"success/a": x, "seconds/train": 60.0} for x in curve]
    runs = {0: a_run_of(updates), 1: a_run_of(updates), 2: a_run_of(updates)}
    for found in diagnostics([Arm("a", {}, runs)])["a"].values():
      self.assertContainsSubset([f"{TO_SUCCESS}30"], found)

  def test_a_success_that_a_run_begins_at_has_no_time(self):
    arms = [
      Arm("a", {}, {0: a_learning_run([57] * 9), 1: a_learning_run([51, 61])})
    ]
    self.assertNotIn(TO_SUCCESS, str(diagnostics(arms)))


if __name__ == "__main__":
  absltest.main()
