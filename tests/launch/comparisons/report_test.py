"""Comparisons of runs as files: what is shown, and what is refused."""

import contextlib
import csv
import io
import json
import pathlib
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest

from agentrl_jax.errors import ConfigError
from launch import report
from launch.comparisons.page import compare, render, verdicts, warnings, write
from launch.comparisons.runs import read_arms
from launch.sweeps.cells import CellState, progress_of
from launch.sweeps.plan import SweepPlan, write_record


def make_run(
  folder,
  *,
  seed,
  success,
  changes=None,
  servers="",
  is_finished=True,
  n=64,
  num_updates=6,
):
  """Writes the files of a run, as far as a comparison reads them."""
  config = {
    "seed": seed,
    "name": folder.name,
    "train": {"steps": num_updates},
    "loss": {"clip_low": 0.2, "clip_high": 0.2} | (changes or {}),
    "rollouts": {"servers": servers},
  }
  folder.mkdir(parents=True)
  (folder / "config.yaml").write_text(json.dumps(config) + "\n")
  random = np.random.default_rng(seed)
  rows = [
    {
      "stage": "rl",
      "step": step,
      "time_s": 0.0,
      "success/sums": random.random(),
      "batch/trajectories": 16.0,
      "batch/trained_tokens": 100.0,
      "seconds/wait": 1.0,
      "seconds/train": 2.0,
      "policy/entropy": 1.0,
    }
    for step in range(1, num_updates + 1)
  ] + [
    {
      **{"stage": f"validation_{mode}", "step": step, "time_s": 1.0},
      "eval/success/sums": success * step / num_updates,
    }
    for step in (0, num_updates)
    for mode in ("greedy", "sampled")
  ]
  (folder / "metrics.jsonl").write_text(
    "".join(json.dumps(row) + "\n" for row in rows)
  )
  (folder / "evaluations").mkdir()
  if not is_finished:
    return
  score = {"n": n, "success": success, "low": 0.0, "high": 1.0, "reward": 0.5}
  evaluation = {"stage": "rl", "mode": "greedy", "tasks": {"sums": score}}
  (folder / "evaluations" / "rl_greedy.json").write_text(json.dumps(evaluation))
  summary = {
    "name": folder.name,
    "evaluations": [evaluation],
    "wall_s": {"rl": 18.0},
    "facts": {"commit": "abc", "seed": seed, "versions": {}, "machine": {}},
    "config_changes": {},
    "is_finished": True,
  }
  (folder / "summary.json").write_text(json.dumps(summary))


def _write_attempts(run, *, wins):
  """Four attempts at each of two tasks of two environments."""
  path = run / "attempts" / "rl.attempts.jsonl"
  path.parent.mkdir()
  lines = [{}] + [
    {
      "name": name,
      "split": "test",
      "index": index,
      "attempt": attempt,
      "success": attempt < wins,
      "reward": float(attempt < wins),
      "status": "completed",
      "turns": 1,
      "tokens": 1,
    }
    for attempt in range(4)
    for name in ("sums", "shop")
    for index in range(2)
  ]
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class ComparisonTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def make(self, arm, scores, **keys):
    for seed, success in enumerate(scores):
      make_run(self.root / f"{arm}-s{seed}", seed=seed, success=success, **keys)

  def refused(self, *arguments) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as end:
      report.main([*arguments])
    self.assertEqual(end.exception.code, 2)
    return said.getvalue()

  def arms(self):
    return read_arms(sorted(self.root.iterdir()))

  def sweep(self, name, seeds, **changes):
    folder = self.root / name
    folder.mkdir()
    for seed in seeds:
      run = folder / "cells" / f"a-s{seed}"
      make_run(run, seed=seed, success=0.5, **changes)
    plan = SweepPlan(ablation="x.py", arms={"a": {}}, seeds=seeds, overrides=[])
    write_record(plan, folder)
    return folder

  def test_an_arm_may_have_its_seeds_in_several_sweeps(self):
    folders = [self.sweep("here", (0, 1)), self.sweep("there", (2,))]
    plan = SweepPlan(
      ablation="x.py", arms={"a": {}}, seeds=(0, 1, 2), overrides=[]
    )
    write_record(plan, folders[0])  # seed 2 was planned here, too
    for order in (folders, folders[::-1]):
      (arm,) = read_arms(order)
      self.assertEqual((arm.name, sorted(arm.runs)), ("a", [0, 1, 2]))
      for run in arm.runs.values():
        self.assertEqual(run.state, CellState.FINISHED)

  def test_arms_of_one_name_that_are_two_are_refused(self):
    here = self.sweep("here", (0, 1))
    for other, sentence in (
      (self.sweep("again", (1, 2)), "two runs of the seed 1: name each run"),
      (
        self.sweep("else", (5,), changes={"clip_low": 0.5}),
        "runs of the arm a have different settings",
      ),
    ):
      with self.assertRaisesRegex(ConfigError, sentence):
        read_arms([here, other])

  def test_runs_that_differ_in_their_seed_are_an_arm(self):
    self.make("a", [0.5, 0.6, 0.4])
    self.make("b", [0.7, 0.8, 0.6], changes={"clip_high": 0.3})
    a, b = self.arms()
    self.assertEqual((a.name, sorted(a.runs)), ("a", [0, 1, 2]))
    self.assertEqual(b.keys, {"loss.clip_high": 0.3})
    (verdict,) = verdicts(compare("t", [a, b]))
    self.assertIn(
      "b − a: +20.0 points of greedy success on sums, different", verdict
    )
    self.assertIn("3 seeds", verdict)

  def test_runs_with_servers_of_their_own_are_an_arm(self):
    for seed, servers in enumerate(("a:1", "b:2", "a:1,b:2")):
      folder = self.root / f"{servers.count(',')}-s{seed}"
      make_run(folder, seed=seed, success=0.5, servers=servers)
    one, two = self.arms()
    self.assertEqual((sorted(one.runs), sorted(two.runs)), ([0, 1], [2]))

  def test_a_difference_within_the_noise_is_called_that(self):
    self.make("a", [0.5, 0.6, 0.4])
    self.make("b", [0.9, 0.3, 0.5], changes={"clip_high": 0.3})
    (verdict,) = verdicts(compare("t", self.arms()))
    self.assertIn("not different", verdict)

  def test_seeds_that_only_one_arm_has_are_not_paired(self):
    self.make("a", [0.5, 0.6])
    self.make("b", [0.7, 0.8, 0.0], changes={"clip_high": 0.3})
    (verdict,) = verdicts(compare("t", self.arms()))
    self.assertIn("+20.0 points", verdict)
    self.assertIn("with 2 seeds, too few for a verdict", verdict)

  def test_unfinished_runs_are_marked(self):
    self.make("a", [0.5, 0.6, 0.4])
    make_run(
      self.root / "b-s0",
      seed=0,
      success=1.0,
      changes={"clip_high": 0.3},
      is_finished=False,
    )
    arms = self.arms()
    self.assertEqual(arms[1].runs[0].state, CellState.STOPPED)
    found = " ".join(warnings(arms))
    self.assertIn("1 of 4 runs are not finished: 1 stopped", found)
    self.assertIn("Finished seeds are few: b has 0; with", found)
    page = render(compare("t", arms))
    self.assertIn("<td>stopped</td><td>RL 6</td>", page)
    self.assertEqual(progress_of(self.root / "b-s0"), "RL 6")

  def test_unequal_numbers_of_updates_are_said(self):
    self.make("a", [0.5, 0.6, 0.4], num_updates=60)
    self.make("b", [0.4, 0.5, 0.4], changes={"clip_high": 0.3})
    self.assertIn("of 6, 60 updates of RL", " ".join(warnings(self.arms())))

  def test_a_page_loads_nothing_and_lets_no_name_through(self):
    self.make("a", [0.5, 0.6])
    self.make("<script>", [0.7, 0.8], changes={"clip_high": 0.3})
    page = render(compare("<b>", self.arms()))
    self.assertNotIn("<script>", page)
    self.assertNotIn("<b></h1>", page)
    self.assertNotRegex(page, r'(src|href)="(?!#|data:,")')

  def test_cells_of_a_sweep_that_stopped_have_their_last_sentence(self):
    plan = SweepPlan(
      ablation="x.py", arms={"a": {}, "b": {}}, seeds=[0, 1], overrides=[]
    )
    write_record(plan, self.root)
    make_run(self.root / "cells" / "a-s0", seed=0, success=0.5)
    run = self.root / "cells" / "b-s0"
    make_run(
      run, seed=0, success=0, changes={"clip_high": 0.3}, is_finished=False
    )
    (self.root / "logs").mkdir()
    (self.root / "logs" / "b-s0.log").write_text("one\nConfigError: no\n")
    a, b = read_arms([self.root])
    self.assertEqual(a.runs[0].state, CellState.FINISHED)
    self.assertEqual(a.runs[1].state, CellState.WAITING)
    self.assertEqual(b.keys, {"loss.clip_high": 0.3})
    self.assertIn("stopped: ConfigError: no", render(compare("t", [a, b])))

  def test_the_command_writes_the_numbers(self):
    self.make("a", [0.5, 0.6])
    output = self.root / "out"
    with contextlib.redirect_stdout(io.StringIO()):
      report.main(
        [str(self.root / "a-s0"), str(self.root / "a-s1"), f"--output={output}"]
      )
    with (output / "finals.csv").open() as file:
      rows = list(csv.DictReader(file))
    greedy = [row["success"] for row in rows if row["mode"] == "greedy"]
    self.assertEqual(greedy, ["0.5", "0.6"])
    for name in ("success_by_updates", "success_during_rl_greedy"):
      self.assertTrue((output / f"{name}.png").stat().st_size)

  def test_the_baseline_and_the_contrasts_can_be_named(self):
    self.make("a", [0.5, 0.6, 0.4])
    self.make("b", [0.7, 0.8, 0.6], changes={"clip_high": 0.3})
    self.make("c", [0.5, 0.7, 0.6], changes={"clip_high": 0.4})
    runs = [str(run) for run in sorted(self.root.iterdir())]

    def compared(*arguments):
      said = io.StringIO()
      with (
        contextlib.redirect_stdout(said),
        mock.patch.object(report, "write"),  # drawing takes seconds
      ):
        report.main([*runs, f"--output={self.root / 'out'}", *arguments])
      return [
        line.partition(":")[0]
        for line in said.getvalue().splitlines()
        if " − " in line
      ]

    self.assertEqual(compared(), ["b − a", "c − a"])
    self.assertEqual(compared("--baseline=b"), ["a − b", "c − b"])
    self.assertEqual(compared("--contrast=a,c"), ["a − c"])
    self.assertEqual(
      compared("--contrast=a,c", "--contrast=b,c", "--baseline=c"),
      ["a − c", "b − c"],
    )
    self.assertEqual(
      compared("--contrast=a,c", "--baseline=a"), ["a − c", "b − a", "c − a"]
    )
    for arguments, sentence in (
      (["--baseline=d"], "--baseline names 'd', which is no arm.*a, b, c"),
      (["--contrast=a,d"], "--contrast names 'd', which is no arm.*a, b, c"),
      (["--contrast=a"], "--contrast=a must name two arms"),
      (["--contrast=a,a"], "--contrast=a,a must name two arms"),
      (["--contrast=a,b,c"], "--contrast=a,b,c must name two arms"),
      (["--contrast=,b"], "--contrast=,b must name two arms"),
    ):
      self.assertRegex(self.refused(*runs, *arguments), sentence)

  def test_what_cannot_be_compared_is_said(self):
    self.make("a", [0.5, 0.6, 0.4])
    make_run(
      self.root / "b-s9", seed=9, success=1.0, changes={"clip_high": 0.3}
    )
    (sentence,) = verdicts(compare("t", self.arms()))
    self.assertRegex(sentence, "Not compared, since no seed of both .* b − a")

  def test_many_attempts_are_shown_as_pass_at_k(self):
    self.make("a", [0.5, 0.6, 0.4])
    self.make("b", [0.5, 0.6, 0.4], changes={"clip_high": 0.3})
    for name, wins in (("a", 1), ("b", 2)):  # of 4 attempts at each task
      for seed in range(3):
        _write_attempts(self.root / f"{name}-s{seed}", wins=wins)
    whole = compare("t", self.arms())
    (found,) = [each for each in whole.finals if each.mode == "pass@k"]
    self.assertEqual(found.columns, ["pass@1", "pass@2", "pass@4"])
    rates = [
      [level.columns[k].mean for k in found.columns] for level in found.levels
    ]
    np.testing.assert_allclose(rates, [[0.25, 0.5, 1], [0.5, 5 / 6, 1]])
    self.assertAlmostEqual(found.changes[0].columns["pass@2"].mean, 1 / 3)
    self.assertIn("pass@k", [plot.name for plot in whole.plots])
    page = render(whole)
    self.assertIn("pass@4", page)
    write(whole, self.root / "out")
    kept = compare("t", read_arms([self.root / "out" / "finals.csv"]))
    self.assertEqual(kept.finals, whole.finals)

  def test_attempts_that_are_being_written_are_read_and_left_alone(self):
    self.make("a", [0.5])
    _write_attempts(self.root / "a-s0", wins=1)
    path = self.root / "a-s0" / "attempts" / "rl.attempts.jsonl"
    text = path.read_text() + '{"name": "su'
    path.write_text(text)
    found = compare("t", self.arms()).finals
    self.assertIn("pass@k", {each.mode for each in found})
    self.assertEqual(path.read_text(), text)

  def test_attempts_at_some_tasks_only_are_no_pass_at_k(self):
    self.make("a", [0.5])
    path = self.root / "a-s0" / "attempts" / "rl.attempts.jsonl"
    path.parent.mkdir()
    path.write_text("{}\n")
    found = compare("t", self.arms()).finals
    self.assertEqual({each.mode for each in found}, {"greedy"})

  def test_a_folder_without_run_or_sweep_is_refused(self):
    (self.root / "empty").mkdir()
    said = self.refused(str(self.root / "empty"))
    self.assertIn("neither a run (config.yaml) nor a sweep", said)

  def test_many_arms_share_a_plot_without_bands(self):
    for place, arm in enumerate("abcd"):
      changes = {"clip_high": 0.2 + place / 10}
      self.make(arm, [0.5, 0.6, 0.4], changes=changes)
    for num_arms, has_bands in ((3, True), (4, False)):
      plot = compare("t", self.arms()[:num_arms]).plots[0]
      self.assertLen(plot.lines, num_arms)
      self.assertEqual(plot.lines[0].label, "a (n = 3)")
      self.assertEqual(bool(plot.lines[0].low), has_bands)
