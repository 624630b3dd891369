"""Scores of arms: levels, and differences on what both arms have."""

import pathlib
import tempfile

from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from launch.comparisons.finals import MEAN, finals
from launch.comparisons.runs import Arm, Run, read_finals
from launch.reports.summary import Evaluation, Score
from launch.sweeps.cells import CellState

HEAD = "arm,seed,state,stage,mode,task,n,success,low,high,reward"


def an_arm(name, scores, *, n=10_000):
  """Makes an arm of runs with these scores: of one task x, or by task."""
  runs = {}
  for seed, score in enumerate(scores):
    by_task = score if isinstance(score, dict) else {"x": score}
    tasks = {t: Score(n, x, x, x, x) for t, x in by_task.items()}
    runs[seed] = Run(
      name=f"{name}-s{seed}",
      seed=seed,
      state=CellState.FINISHED,
      evaluations=[Evaluation("rl", "greedy", tasks)],
    )
  return Arm(name, {}, runs)


class FinalsTest(absltest.TestCase):
  def test_levels_and_differences_of_tasks_and_their_mean(self):
    a = an_arm("a", [{"x": 0.5, "y": 0.1}, {"x": 0.6, "y": 0.3}])
    b = an_arm("b", [{"x": 0.7, "y": 0.2}, {"x": 0.9, "y": 0.3}])
    found = finals([a, b], "rl", "greedy", [("b", "a")])
    self.assertEqual(found.columns, ["x", "y", MEAN])
    self.assertAlmostEqual(found.levels[0].columns[MEAN].mean, 0.375)
    (change,) = found.changes
    means = [round(change.columns[c].mean, 3) for c in found.columns]
    self.assertEqual((change.label, means), ("b − a", [0.25, 0.05, 0.15]))
    self.assertIsNone(finals([a], "rl", "sampled", []))

  def test_a_task_that_one_arm_lacks_has_no_difference(self):
    first = an_arm("first", [{"x": 0.5}] * 3)
    other = an_arm("other", [{"x": 0.5, "y": 0.4}] * 3)
    found = finals([first, other], "rl", "greedy", [("other", "first")])
    self.assertEqual(set(found.changes[0].columns), {"x"})
    self.assertEqual(set(found.levels[0].columns), {"x"})
    self.assertEqual(set(found.levels[1].columns), {"x", "y", MEAN})

  def test_arms_are_paired_by_the_seeds_that_both_have(self):
    a, b = an_arm("a", [0.5, 0.6, 0.4]), an_arm("b", [0.6, 0.7, 0.5, 0.0])
    (change,) = finals([a, b], "rl", "greedy", [("b", "a")]).changes
    self.assertEqual(change.columns["x"].n, 3)
    self.assertAlmostEqual(change.columns["x"].mean, 0.1)

  def test_no_interval_is_narrower_than_its_episodes(self):
    a, b = an_arm("a", [0.5] * 3, n=48), an_arm("b", [0.6] * 3, n=48)
    found = finals([a, b], "rl", "greedy", [("b", "a")])
    level, test = found.levels[0].columns["x"], found.changes[0].columns["x"]
    self.assertAlmostEqual(level.high - level.mean, 0.0816, places=3)
    self.assertAlmostEqual(test.high - test.mean, 0.1146, places=3)
    self.assertFalse(test.is_different)


class FileTest(parameterized.TestCase):
  @parameterized.parameters(
    "a,0,finished,rl,greedy,x,8,nan,0,1,0",
    "a,0,finished,rl,greedy,x,8",
    "a,x,finished,rl,greedy,x,8,0.5,0,1,0",
  )
  def test_rows_that_are_no_scores_are_refused(self, row):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "finals.csv"
    path.write_text(f"{HEAD}\n{row}\n")
    with self.assertRaisesRegex(ConfigError, "finals.csv cannot be read"):
      read_finals(path)
