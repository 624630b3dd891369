"""Scores of arms: which test a difference has, and what cannot be compared."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from configs.experiment import plain_side
from launch.comparisons.finals import MEAN, contrasts, finals
from launch.comparisons.page import compare, render, verdicts
from launch.comparisons.runs import Arm, Run, read_finals
from launch.comparisons.statistics import max_t_p
from launch.experiments.markdown import markdown
from launch.reports.summary import Evaluation, Score
from launch.sweeps.cells import CellState


def an_arm(name, scores, *, n=10_000, seeds=None, stage="rl"):
  """Makes an arm of runs with these scores: of one task x, or by task."""
  runs = {}
  for seed, score in zip(seeds or range(len(scores)), scores, strict=True):
    by_task = score if isinstance(score, dict) else {"x": score}
    tasks = {t: Score(n, x, x, x, x) for t, x in by_task.items()}
    runs[seed] = Run(
      name=f"{name}-s{seed}",
      seed=seed,
      state=CellState.FINISHED,
      evaluations=[Evaluation(stage, "greedy", tasks)],
    )
  return Arm(name, {}, runs)


def noisy(num_arms, num_seeds, *, spread=0.02):
  """Makes arms whose seeds differ by as much in each."""
  random = np.random.default_rng(0)
  of_seeds = random.normal(0.5, 0.1, num_seeds)
  noise = random.normal(size=(num_arms, num_seeds))
  noise /= noise.std(axis=1, keepdims=True)
  return [
    an_arm(f"arm{i}", (of_seeds + spread * each).tolist())
    for i, each in enumerate(noise)
  ]


def by_label(arms, pairs=None):
  found = finals(arms, "rl", "greedy", pairs)
  return {change.label: change.tasks["x"] for change in found.changes}


class FirstTest(parameterized.TestCase):
  def test_two_arms_have_the_paired_t_alone(self):
    (of,) = by_label(noisy(2, 5)).values()
    self.assertEqual(of.first, of.paired)
    self.assertFalse(of.is_pooled)
    text = markdown(finals(noisy(2, 5), "rl", "greedy"))
    self.assertNotIn("paired t", text)

  def test_many_arms_are_pooled_and_the_paired_t_stands_beside(self):
    arms = noisy(6, 3)
    for of in by_label(arms).values():
      self.assertTrue(of.is_pooled)
      self.assertEqual(of.first.mean, of.paired.mean)
    widths = [
      (of.first.high - of.first.low, of.paired.high - of.paired.low)
      for of in by_label(arms).values()
    ]
    first, paired = np.array(widths).T
    self.assertLess(np.ptp(first), 1e-9)
    self.assertLess(first[0], np.median(paired))  # ten degrees, not two
    text = markdown(finals(arms, "rl", "greedy"))
    self.assertEqual(text.count(", paired t |"), 5)

  def test_with_more_comparisons_each_must_be_larger(self):
    of = {n: by_label(noisy(20, 5)[:n])["arm1 − arm0"] for n in (3, 20)}
    x = np.array(
      [
        [r.evaluations[0].tasks["x"].success for r in a.runs.values()]
        for a in noisy(20, 5)
      ]
    )
    rest = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()
    error = np.sqrt(2 * (rest**2).sum() / (19 * 4) / 5)
    reach = (of[20].first.high - of[20].first.mean) / error
    self.assertAlmostEqual(max_t_p(reach, 19, 76, 0.5), 0.05)
    self.assertEqual(of[3].paired, of[20].paired)

  def test_an_unstable_arm_is_tested_by_itself_and_spoils_no_other(self):
    stable = noisy(4, 5, spread=0.01)
    wild = an_arm("wild", [0.9, 0.0, 0.7, 0.1, 0.8])
    alone, beside = by_label(stable), by_label([*stable, wild])
    of = beside.pop("wild − arm0")
    self.assertFalse(of.is_pooled)
    self.assertAlmostEqual(of.first.p, min(4 * of.paired.p, 1))
    for label, each in beside.items():
      self.assertTrue(each.is_pooled)
      ratio = (each.first.high - each.first.low) / (
        alone[label].first.high - alone[label].first.low
      )
      self.assertBetween(ratio, 1.0, 1.1)  # one comparison more
    text = markdown(finals([*stable, wild], "rl", "greedy"))
    self.assertEqual(text.count(", not pooled"), 1)

  def test_an_unstable_first_arm_leaves_nothing_to_pool(self):
    wild = an_arm("wild", [0.9, 0.0, 0.7, 0.1, 0.8])
    for of in by_label([wild, *noisy(4, 5, spread=0.01)]).values():
      self.assertFalse(of.is_pooled)

  def test_no_interval_is_narrower_than_its_episodes(self):
    """Levels and differences of 1 to 20 arms, whatever their seeds did."""
    random = np.random.default_rng(1)
    for num_arms in (1, 2, 3, 20):
      for scores in (
        [0.094] * 3,
        [0.0] * 3,
        [1.0] * 8,
        [0.5, 0.51, 0.49],
        [0.3],
      ):
        n = int(random.integers(8, 300))
        arms = [an_arm(f"a{i}", scores, n=n) for i in range(num_arms)]
        found = finals(arms, "rl", "greedy")
        share, each = np.mean(scores), np.array(scores)
        spread = 1.9599 * np.sqrt(np.mean(each * (1 - each)) / n / len(each))
        for level in found.levels:
          of = level.tasks["x"]
          self.assertLessEqual(of.low, max(share - spread, 0))
          self.assertGreaterEqual(of.high, min(share + spread, 1))
          self.assertGreater(of.high - of.low, 0)
        for change in found.changes:
          for of in (change.tasks["x"].first, change.tasks["x"].paired):
            self.assertEqual(of.mean, 0)
            if len(scores) > 1:
              self.assertGreaterEqual(of.high - of.low, 2 * spread * 2**0.5)
              self.assertEqual(of.p, 1)
            else:
              self.assertTrue(np.isnan(of.p))

  def test_arms_of_unequal_numbers_of_episodes(self):
    arms = [
      an_arm("few", [0.5] * 3, n=16),
      an_arm("many", [0.6] * 3, n=4096),
      an_arm("more", [0.6] * 3, n=4096),
    ]
    found = by_label(arms)
    self.assertFalse(found["many − few"].first.is_different)
    found = by_label(arms, [("few", "many"), ("more", "many")])
    self.assertLess(
      found["more − many"].first.high, found["few − many"].first.high
    )
    self.assertIn("n = 16 to 4096 a seed", render(compare("t", arms)))

  def test_seeds_that_only_some_arms_have(self):
    arms = noisy(4, 8)
    some = Arm("some", {}, {s: arms[3].runs[s] for s in (5, 6, 7)})
    found = by_label([*arms[:3], some])
    of = found["some − arm0"]
    self.assertEqual((of.paired.n, of.first.n, of.is_pooled), (3, 3, True))
    self.assertEqual(found["arm1 − arm0"].first.n, 8)
    self.assertLess(
      of.first.high - of.first.low, of.paired.high - of.paired.low
    )
    other = Arm("other", {}, {100: arms[3].runs[0]})
    self.assertNotIn("other − arm0", by_label([*arms[:3], other]))

  def test_a_task_that_the_first_arm_lacks_has_no_difference(self):
    arms = [
      an_arm("first", [{"x": 0.5}] * 3),
      *(an_arm(name, [{"x": 0.5, "y": 0.4}] * 3) for name in "ab"),
    ]
    found = finals(arms, "rl", "greedy")
    self.assertEqual([set(each.tasks) for each in found.changes], [{"x"}] * 2)
    self.assertNotIn(MEAN, found.levels[0].tasks)
    self.assertIn("a − first", render(compare("t", arms)))

  def test_a_shared_warm_start_is_not_pooled(self):
    arms = [
      an_arm(name, scores, stage="warm_start")
      for name, scores in (
        ("a", [0.5, 0.6, 0.4]),
        ("b", [0.5, 0.6, 0.4]),
        ("own", [0.7, 0.6, 0.5]),
      )
    ]
    found = finals(arms, "warm_start", "greedy")
    self.assertEqual([each.label for each in found.changes], ["own − a"])
    self.assertFalse(found.changes[0].tasks["x"].is_pooled)

  def test_contrasts_of_arms_are_tested_together(self):
    arms = noisy(4, 5)
    pairs = [("arm1", "arm2"), ("arm3", "arm2"), ("arm0", "arm1")]
    for change in contrasts(arms, "rl", "greedy", pairs):
      self.assertTrue(change.tasks["x"].is_pooled)
    with self.assertRaisesRegex(ConfigError, "no arm 'none'"):
      contrasts(arms, "rl", "greedy", [("none", "arm1")])

  def test_a_side_at_the_stage_of_all_is_the_arm(self):
    for side, plain in (
      (" a\N{NO-BREAK SPACE}", "a"),
      ("a@rl", "a"),
      ("a@rl/x  + b@rl_2/y", "a/x + b@rl_2/y"),
      ("a@warm_start ", "a@warm_start"),
    ):
      self.assertEqual(plain_side(side, "rl"), plain)

  def test_a_sum_has_each_task_of_one_arm(self):
    arms = [an_arm(name, [{"x": 0.5, "y": 0.4}] * 3) for name in "abc"]
    for side in ("a + b", "b + a", "a/x + b"):
      with self.assertRaisesRegex(ConfigError, "have x"):
        contrasts(arms, "rl", "greedy", [(side, "c")])

  def test_a_mean_is_of_the_tasks_of_both_sides(self):
    arms = [an_arm(name, [{"x": 0.5, "y": 0.4}] * 3) for name in "ab"]
    arms.append(an_arm("all", [{"x": 0.5, "y": 0.4, "z": 0.9}] * 3))
    for pair in (("a/x + b/y", "all"), ("all", "a/x + b/y")):
      (change,) = contrasts(arms, "rl", "greedy", [pair])
      self.assertSameElements(change.tasks, ["x", "y"])

  def test_rises_from_one_start_differ_as_their_ends_do(self):
    def of(name, start, ends):
      runs = {}
      for seed, (before, end) in enumerate(zip(start, ends, strict=True)):
        runs[seed] = Run(
          name=f"{name}-s{seed}",
          seed=seed,
          state=CellState.FINISHED,
          evaluations=[
            Evaluation(stage, "greedy", {"x": Score(256, x, x, x, x)})
            for stage, x in (("warm_start", before), ("rl", end))
          ],
        )
      return Arm(name, {}, runs)

    ends = [0.5, 0.51, 0.49], [0.54, 0.56, 0.53]
    for start, is_one in ((0.3, True), (0.31, False)):
      arms = [of("a", [0.3] * 3, ends[0]), of("b", [start] * 3, ends[1])]
      rise, end = (
        contrasts(arms, stage, "greedy", [("b", "a")])[0].tasks["x"].paired
        for stage in ("rise", "rl")
      )
      widths = (rise.high - rise.low, end.high - end.low)
      self.assertEqual(np.isclose(*widths), is_one, widths)

  def test_runs_that_all_failed_are_no_row(self):
    failed = Arm(
      "failed",
      {},
      {s: Run(name="f", seed=s, state=CellState.FAILED) for s in range(3)},
    )
    found = finals([*noisy(2, 3), failed], "rl", "greedy")
    self.assertEqual([level.arm for level in found.levels], ["arm0", "arm1"])
    for arms in ([failed], [failed, *noisy(2, 3)]):
      render(compare("t", arms))
      self.assertTrue(verdicts(compare("t", arms)))

  def test_nan_is_refused(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "finals.csv"
    path.write_text(
      "arm,seed,state,stage,mode,task,n,success,low,high,reward\n"
      "a,0,finished,rl,greedy,x,8,nan,0,1,0\n"
    )
    with self.assertRaisesRegex(ConfigError, "a score must be of numbers"):
      read_finals(path)

  @parameterized.parameters(
    [[]],
    [["a,0,finished,rl,greedy,x,8,50,0,1,0"]],
    [["a,0,finished,rl,greedy,x,0,0.5,0,1,0"]],
    [["a,0,finished,rl,greedy,x,8"]],
    [["a,0,finished,rl,greedy,x,8,0.5,0,1,0"] * 2],
    [[f"a,0,finished,rl,greedy,{'x' * (1 << 18)},8,0.5,0,1,0"]],
  )
  def test_rows_that_are_no_scores_are_refused(self, rows):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "finals.csv"
    head = "arm,seed,state,stage,mode,task,n,success,low,high,reward"
    path.write_text("\n".join([head, *rows]) + "\n")
    with self.assertRaisesRegex(ConfigError, "cannot be read as the finals"):
      read_finals(path)


if __name__ == "__main__":
  absltest.main()
