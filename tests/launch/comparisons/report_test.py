"""Comparisons of runs as files: what is shown, and what is refused."""

import contextlib
import csv
import dataclasses
import io
import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest

from agentrl_jax.errors import ConfigError
from launch import report
from launch.comparisons.page import compare, render, verdicts, warnings, write
from launch.comparisons.runs import read_arms
from launch.experiments.markdown import markdown
from launch.reports.summary import TRAINING
from launch.sweeps.cells import CellState, Progress, progress_of
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

  def refused(self, page) -> str:
    """Returns the sentence with which a page is refused."""
    return self.refused_command(f"--fill={page}")

  def refused_command(self, *arguments) -> str:
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
    write_record(plan, folder, {})
    return folder

  def test_an_arm_may_have_its_seeds_in_several_sweeps(self):
    folders = [self.sweep("here", (0, 1)), self.sweep("there", (2,))]
    plan = SweepPlan(
      ablation="x.py", arms={"a": {}}, seeds=(0, 1, 2), overrides=[]
    )
    write_record(plan, folders[0], {})  # seed 2 was planned here, too
    for order in (folders, folders[::-1]):
      (arm,) = read_arms(order)
      self.assertEqual((arm.name, sorted(arm.runs)), ("a", [0, 1, 2]))
      for run in arm.runs.values():
        self.assertEqual(run.state, CellState.FINISHED)

  def test_arms_of_one_name_that_are_two_are_refused(self):
    here = self.sweep("here", (0, 1))
    table = self.root / "finals.csv"
    table.write_text(
      "arm,seed,state,stage,mode,task,n,success,low,high,reward\n"
      "a,5,finished,rl,greedy,sums,64,0.5,0.4,0.6,0.5\n"
    )
    for other, sentence in (
      (self.sweep("again", (1, 2)), "both have the seeds 1: compare"),
      (
        self.sweep("else", (5,), changes={"clip_low": 0.5}),
        "they differ in loss.clip_low: compare",
      ),
      (table, "one has no config"),
    ):
      with (
        self.subTest(sentence),
        self.assertRaisesRegex(ConfigError, sentence),
      ):
        read_arms([here, other])

  def test_runs_that_differ_in_their_seed_are_an_arm(self):
    self.make("a", [0.5, 0.6, 0.4])
    self.make("b", [0.7, 0.8, 0.6], changes={"clip_high": 0.3})
    a, b = self.arms()
    self.assertEqual((a.name, sorted(a.runs)), ("a", [0, 1, 2]))
    self.assertEqual(b.keys, {"loss.clip_high": 0.3})
    (verdict,) = verdicts(compare("t", [a, b]))
    self.assertIn("b − a: +20.0 points of greedy success, different", verdict)
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

  def test_one_seed_has_no_verdict(self):
    self.make("a", [0.5])
    self.make("b", [0.9], changes={"clip_high": 0.3})
    self.assertIn(
      "with 1 seed, too few for a verdict",
      verdicts(compare("t", self.arms()))[0],
    )

  def test_groups_that_were_replaced_are_said(self):
    self.make("a", [0.5, 0.6, 0.4])
    a = self.arms()[0]
    refilled = {
      seed: dataclasses.replace(
        run, config=run.config | {"admission.refills_per_step": 12}
      )
      for seed, run in a.runs.items()
    }
    b = dataclasses.replace(a, name="b", runs=refilled)
    self.assertNotIn("replaced", " ".join(warnings([a])))
    self.assertIn("groups that b replaced", " ".join(warnings([a, b])))

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
    found = progress_of(self.root / "b-s0")
    self.assertEqual(found, Progress("rl", 6, None))

  def test_ends_after_unequal_numbers_of_episodes_are_said(self):
    self.make("a", [0.5, 0.6, 0.4], num_updates=60)
    self.make("b", [0.4, 0.5, 0.4], changes={"clip_high": 0.3})
    self.make("c", [0.4] * 3, changes={"clip_high": 0.4}, num_updates=59)
    found = " ".join(warnings(self.arms()))
    self.assertIn("a has trained on 960 and b 96. Their ends are not", found)
    self.assertNotIn("c 9", found)

  def test_a_page_loads_nothing_and_lets_no_name_through(self):
    self.make("a", [0.5, 0.6])
    self.make("<script>", [0.7, 0.8], changes={"clip_high": 0.3})
    page = render(compare("<b>", self.arms()))
    self.assertNotIn("<script>", page)
    self.assertNotIn("<b></h1>", page)
    self.assertNotRegex(page, r'(src|href)="(?!#|data:,")')

  def test_cells_of_a_sweep_that_failed_have_their_sentence(self):
    plan = SweepPlan(
      ablation="x.py",
      arms={"a": {}, "b": {"loss.clip_high": 0.3}},
      seeds=[0, 1],
      overrides=[],
    )
    write_record(plan, self.root, {})
    make_run(self.root / "cells" / "a-s0", seed=0, success=0.5)
    (self.root / "failures.json").write_text('{"b-s0": "ConfigError: no"}')
    a, b = read_arms([self.root])
    self.assertEqual(a.runs[0].state, CellState.FINISHED)
    self.assertEqual(a.runs[1].state, CellState.WAITING)
    self.assertEqual(b.runs[0].state, CellState.FAILED)
    self.assertIn("failed: ConfigError: no", render(compare("t", [a, b])))

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
    self.assertEqual({row["mode"] for row in rows}, {"greedy", *TRAINING})
    with (output / "curves.csv").open() as file:
      last = [r for r in csv.DictReader(file) if r["metric"] == "success/sums"][
        -1
      ]
    self.assertEqual(
      (last["episodes"], last["trained tokens"], last["minutes of RL"]),
      ("96.0", "600.0", "0.3"),
    )
    with (output / "curves.csv").open() as file:
      of_evaluations = [
        (r["seed"], float(r["updates"]), r["episodes"], float(r["value"]))
        for r in csv.DictReader(file)
        if r["metric"] == "validation_greedy/eval/success/sums"
      ]
    self.assertEqual(
      of_evaluations,
      [("0", 0, "", 0), ("0", 6, "", 0.5), ("1", 0, "", 0), ("1", 6, "", 0.6)],
    )
    for name in ("success_by_updates", "success_during_greedy"):
      self.assertTrue((output / f"{name}.png").stat().st_size)

  def test_the_baseline_and_the_contrasts_can_be_named(self):
    self.make("a", [0.5, 0.6, 0.4])
    self.make("b", [0.7, 0.8, 0.6], changes={"clip_high": 0.3})
    self.make("c", [0.5, 0.7, 0.6], changes={"clip_high": 0.4})
    runs = [str(run) for run in sorted(self.root.iterdir())]

    def compared(*arguments):
      said = io.StringIO()
      with contextlib.redirect_stdout(said):
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
      self.assertRegex(self.refused_command(*runs, *arguments), sentence)

  def test_what_cannot_be_compared_is_said(self):
    self.make("a", [0.5, 0.6, 0.4])
    self.assertIn("Arm a is alone", verdicts(compare("t", self.arms()))[0])
    make_run(
      self.root / "b-s9", seed=9, success=1.0, changes={"clip_high": 0.3}
    )
    (sentence,) = verdicts(compare("t", self.arms()))
    self.assertRegex(sentence, "Not compared, since no seed of both .* b − a")

  def test_kept_numbers_stand_for_the_runs(self):
    self.make("a", [0.5, 0.6, 0.4])
    self.make("b", [0.7, 0.8, 0.6], changes={"clip_high": 0.3})
    whole = compare("t", self.arms())
    write(whole, self.root / "out")
    kept = compare("t", read_arms([self.root / "out" / "finals.csv"]))
    self.assertEqual(verdicts(kept), verdicts(whole))
    self.assertEqual(kept.finals, whole.finals)
    self.assertIn("+20.0", render(kept))

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
      [level.tasks[k].mean for k in found.tasks] for level in found.levels
    ]
    np.testing.assert_allclose(rates, [[0.25, 0.5, 1], [0.5, 5 / 6, 1]])
    self.assertAlmostEqual(found.changes[0].tasks["pass@2"].mean, 1 / 3)
    self.assertIn("pass_at_k", [plot.name for plot in whole.plots])
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
    self.assertEqual({each.mode for each in found}, {"greedy", *TRAINING})

  def test_arms_of_other_tasks_are_compared_on_what_both_have(self):
    lines = ["arm,seed,state,stage,mode,task,n,success,low,high,reward"]
    for arm, scores in {
      "both": {"x": 0.5, "y": 0.3},
      "only_x": {"x": 0.7},
      "only_z": {"z": 0.9},
    }.items():
      lines += [
        f"{arm},{seed},finished,rl,greedy,{task},8,{s + seed / 100},0,1,0"
        for seed in range(3)
        for task, s in scores.items()
      ]
    path = self.root / "finals.csv"
    path.write_text("\n".join(lines) + "\n")
    found = compare("t", read_arms([path]))
    (finals,) = found.finals
    self.assertEqual(finals.tasks, ["x", "y", "z"])
    self.assertEqual([*finals.levels[0].tasks], ["x", "y"])
    self.assertEqual([each.after for each in finals.changes], ["only_x"])
    verdict, rest = verdicts(found)
    self.assertIn("+20.0 points of greedy success on x, not different", verdict)
    self.assertIn("task of both: only_z − both.", rest)
    self.assertIn("only_z (3)", render(found))
    self.assertIn(
      "| only_x, 3 seeds | 71.0 (51.8 to 90.2) |  |  |", markdown(finals)
    )

  def test_a_file_that_is_no_finals_is_refused(self):
    for text in ("arm,seed\na,0\n", "arm,seed,state\na,x,finished\n"):
      path = self.root / "finals.csv"
      path.write_text(text)
      with self.assertRaisesRegex(ConfigError, "cannot be read as the finals"):
        read_arms([path])

  def test_a_page_is_filled_and_stays_as_it_is_then(self):
    self.make("a", [0.5, 0.6, 0.4])
    self.make("b", [0.7, 0.8, 0.6], changes={"clip_high": 0.3})
    write(compare("t", self.arms()), self.root / "out")
    page = self.root / "page.md"
    page.write_text(
      "one\n<!-- finals: out/finals.csv rl greedy -->\nold\n<!-- end -->\ntwo\n"
    )
    report.main([f"--fill={page}"])
    text = page.read_text()
    self.assertIn("| b − a | +20.0 (+10.5 to +29.5; p < 0.001) |", text)
    self.assertNotIn("old", text)
    self.assertTrue(text.startswith("one\n") and text.endswith("two\n"))
    report.main([f"--fill={page}"])
    self.assertEqual(page.read_text(), text)
    page.write_text(text.replace("rl greedy", "rl sampled"))
    self.assertIn("no evaluation of rl, sampled", self.refused(page))
    self.assertIn("none.md", self.refused(self.root / "none.md"))

  def test_rises_have_a_row_for_each_run(self):
    (self.root / "x.csv").write_text(
      "arm,seed,state,stage,mode,task,n,success,low,high,reward\n"
      "five,1,finished,warm_start,greedy,sums,8,0.25,0.1,0.4,0.2\n"
      "five,1,finished,rl,greedy,sums,8,0.75,0.6,0.9,0.7\n"
      "five,2,running,warm_start,greedy,sums,8,0.25,0.1,0.4,0.2\n"
    )
    page = self.root / "page.md"
    page.write_text("<!-- rises: x.csv greedy -->\n<!-- end -->\n")
    report.main([f"--fill={page}"])
    self.assertIn(
      "| greedy | sums |\n|---|---|\n"
      "| five, seed 1 | 25.0 (10.0 to 40.0) → 75.0 (60.0 to 90.0) |\n<!--",
      page.read_text(),
    )
    page.write_text("<!-- rises: x.csv sampled -->\n<!-- end -->\n")
    self.assertRegex(self.refused(page), "no run .* before and after RL")

  def test_contrasts_are_of_any_two_sides(self):
    rows = ["arm,seed,state,stage,mode,task,n,success,low,high,reward"]
    for arm, task, before, after in (
      ("both", "x", 0.2, 0.8),
      ("both", "y", 0.2, 0.9),
      ("only_x", "x", 0.1, 0.6),
      ("only_y", "y", 0.3, 0.9),
    ):
      for seed in (0, 1):
        for stage, level in (("warm_start", before), ("rl", after)):
          success = level + (0.04 * seed if arm == "both" else 0)
          scores = f"{success:.2f},0,1,0"
          rows.append(f"{arm},{seed},finished,{stage},greedy,{task},8,{scores}")
    (self.root / "x.csv").write_text("\n".join(rows) + "\n")
    page = self.root / "page.md"

    def filled(words):
      page.write_text(f"<!-- contrasts: x.csv {words} -->\n<!-- end -->\n")
      report.main([f"--fill={page}"])
      return page.read_text().split("-->\n")[1]

    self.assertIn(
      "| RL, greedy | x | y | mean |\n|---|---|---|---|\n"
      "| two − one | −22.0 (−54.9 to +10.9; p = 0.19) |"
      " −2.0 (−31.0 to +27.0; p = 0.89) | −12.0 (−37.4 to +13.4; p = 0.28) |\n"
      "| both − both@warm_start | +60.0 (+28.3 to +91.7; p < 0.001) |",
      filled(
        "rl greedy\ntwo − one: only_x/x + only_y/y - both\n"
        "both - both@warm_start\n"
      ),
    )
    self.assertIn(
      "| rise, greedy | x |\n|---|---|\n"
      "| only_x − both | −10.0 (−55.0 to +35.0; p = 0.66) |\n",
      filled("rise greedy\nonly_x - both\n"),
    )
    for words, message in (
      ("rl greedy\nonly_x - all", "no arm 'all' in both, only_x, only_y"),
      ("rl greedy\nonly_x", "a contrast is `arm - arm`.*'only_x'"),
      ("rl sampled\nonly_x - both", "no seed was evaluated sampled on both"),
      ("rl greedy\nonly_x - only_y", "no seed was evaluated greedy on both"),
    ):
      page.write_text(f"<!-- contrasts: x.csv {words} -->\n<!-- end -->\n")
      self.assertRegex(self.refused(page), message)

  def test_diagnostics_are_kept_and_filled_in(self):
    self.make("a", [0.5, 0.6])
    make_run(self.root / "a-s2", seed=2, success=0.0, is_finished=False)
    whole = compare("t", self.arms())
    write(whole, self.root / "out")
    self.assertIn("Diagnostics and cost", render(whole))
    page = self.root / "page.md"
    page.write_text("<!-- diagnostics: out/diagnostics.csv -->\n<!-- end -->\n")
    report.main([f"--fill={page}"])
    self.assertIn(
      "| mean over seeds | entropy | trained tokens | RL | RL, updates 2 on |"
      " run | RL to 55 % |\n|---|---|---|---|---|---|---|\n"
      # Six updates of 100 tokens and 3 s, in a run of 18 s.
      "| a (2) | 1 (1 to 1) | 0.6 (0.6 to 0.6) | 0.3 (0.3 to 0.3) |"
      " 0.25 (0.25 to 0.25) | 0.005 (0.005 to 0.005) |"
      " 0.15 (0.05 to 0.25) |\n<!-- end -->",
      page.read_text(),
    )
    for text in ("arm,seed\na,0\n", f"arm\n{'x' * (1 << 18)}\n"):
      (self.root / "out" / "diagnostics.csv").write_text(text)
      self.assertIn("as the diagnostics.csv", self.refused(page))

  def test_a_folder_without_run_or_sweep_is_refused(self):
    (self.root / "empty").mkdir()
    said = io.StringIO()
    with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as end:
      report.main([str(self.root / "empty")])
    self.assertEqual(end.exception.code, 2)
    self.assertIn("neither a run (config.yaml) nor a sweep", said.getvalue())

  def test_arms_stand_in_the_order_of_the_folders(self):
    """The first is what others are compared with, a sweep's arm or not."""
    self.make("alone", [0.5, 0.6, 0.4])
    sweep = self.root / "sweep"
    make_run(sweep / "cells" / "a-s0", seed=0, success=0.5)
    plan = SweepPlan(ablation="x.py", arms={"a": {}}, seeds=[0], overrides=[])
    write_record(plan, sweep, {})
    runs = [self.root / f"alone-s{seed}" for seed in range(3)]
    for folders, names in (
      ([*runs, sweep], ["alone", "a"]),
      ([sweep, *runs], ["a", "alone"]),
      ([runs[0], sweep, *runs[1:]], ["alone", "a"]),
    ):
      self.assertEqual([arm.name for arm in read_arms(folders)], names)

  def test_the_same_run_twice_is_refused(self):
    self.make("a", [0.5])
    said = io.StringIO()
    with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
      report.main([str(self.root / "a-s0"), str(self.root / "a-s0")])
    self.assertIn("name each run once", said.getvalue())


if __name__ == "__main__":
  absltest.main()
