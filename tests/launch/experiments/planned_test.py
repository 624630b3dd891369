"""A sweep that was not run as planned says so, and is judged as planned."""

import contextlib
import dataclasses
import io
import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from launch import report
from launch.comparisons.page import warnings
from launch.comparisons.runs import Arm, Run, read_arms
from launch.experiments import planned
from launch.reports.summary import Evaluation, Score
from launch.sweeps.cells import CellState
from launch.sweeps.plan import (
  SweepPlan,
  make_plan,
  read_experiments,
  read_record,
  write_record,
)
from tests.configs.experiment_test import a_plan
from tests.launch.comparisons.report_test import make_run

ARMS = {"full": {}, "no_norm": {"loss.clip_high": 0.5}}


def arm(name, successes, n=512, state=CellState.FINISHED):
  """An arm with a run for each success, in percent."""
  runs = {}
  for seed, success in enumerate(successes):
    share = success / 100
    score = Score(n=n, success=share, low=share, high=share, reward=share)
    runs[seed] = Run(
      name=f"{name}-s{seed}",
      seed=seed,
      state=state,
      evaluations=[Evaluation("rl", "greedy", {"sums": score})],
    )
  return Arm(name, {}, runs)


def sweep(experiment=None, **changes) -> SweepPlan:
  return SweepPlan(
    **{
      "ablation": "mine.py",
      "arms": ARMS,
      "seeds": range(5),
      "overrides": [],
      "experiment": experiment,
      **changes,
    }
  )


FULL = [50.0, 52.0, 48.0, 51.0, 49.0]


class JudgeTest(parameterized.TestCase):
  @parameterized.parameters(
    ([9, 10, 11, 10, 10], "Higher: it helps."),
    ([-9, -10, -11, -10, -10], "Lower: it harms."),
    ([1, -1, 0.5, -0.5, 0], "Neither: it does nothing that matters."),
    ([9, -9, 9, -9, 0], "it could not have shown 5 points"),
    ([6, 0, 5, 1, 0], "5 points are not excluded"),
  )
  def test_the_verdict_is_in_the_words_of_the_plan(self, changes, words):
    after = [a + b for a, b in zip(FULL, changes, strict=True)]
    (verdict,) = planned.judge(
      a_plan(), [arm("full", FULL), arm("no_norm", after)]
    )
    self.assertIn(words, verdict)
    self.assertIn("(95 % interval ", verdict)

  def test_no_verdict_before_the_planned_seeds(self):
    after = [s + 10 + i for i, s in enumerate(FULL)]
    arms = [arm("full", FULL[:3]), arm("no_norm", after[:3])]
    (verdict,) = planned.judge(a_plan(), arms)
    self.assertIn("No verdict: the plan looks at 5 seeds", verdict)
    (verdict,) = planned.judge(a_plan(looks=2), arms)
    self.assertIn("97.5 % interval", verdict)

  def test_more_seeds_than_planned_are_a_further_look(self):
    after = [s + 10 for s in FULL]
    arms = [arm("full", FULL), arm("no_norm", after)]
    plan = a_plan(seeds=4)
    (verdict,) = planned.judge(plan, arms)
    self.assertIn("97.5 % interval", verdict)

  def test_more_updates_after_the_end_are_a_further_look(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    write_record(sweep(a_plan()), root, {})
    for name in ARMS:
      for seed, success in enumerate(FULL):
        run = root / "cells" / f"{name}-s{seed}"
        make_run(run, seed=seed, success=success / 100, n=512)
    self.assertIn(
      "(95 % interval", planned.planned([root], read_arms([root])).verdicts[0]
    )
    earlier = root / "cells" / "no_norm-s3" / "earlier" / "6"
    earlier.mkdir(parents=True)
    (earlier / "summary.json").write_text("{}")  # of a start that was stopped
    self.assertEqual(read_arms([root])[1].runs[3].num_extended, 0)
    (earlier / "rl_greedy.json").write_text("{}")
    found = planned.planned([root], read_arms([root]))
    self.assertIn("no_norm-s3 went on after having", " ".join(found.deviations))
    self.assertIn("(97.5 % interval", found.verdicts[0])

  def test_two_looks_are_at_half_of_the_seeds_and_at_all(self):
    plan = a_plan(seeds=4, looks=2)
    for number, has_verdict in ((2, True), (3, False), (4, True)):
      before = arm("full", FULL[:number])
      after = arm("no_norm", [s + 10 + s / 100 for s in FULL[:number]])
      (verdict,) = planned.judge(plan, [before, after])
      self.assertEqual("it helps" in verdict, has_verdict, verdict)

  def test_an_arm_that_was_not_run_is_not_measured_and_not_null(self):
    (verdict,) = planned.judge(a_plan(), [arm("full", FULL)])
    self.assertIn("not measured: no_norm was not run", verdict)
    self.assertNotIn("null", verdict)
    (verdict,) = planned.judge(
      a_plan(mode="sampled"), [arm("full", FULL), arm("no_norm", FULL)]
    )
    self.assertIn("not measured: no seed has been evaluated sampled", verdict)

  def test_a_side_may_be_a_sum_of_tasks_or_a_rise(self):
    def of(name, tasks, start):
      runs = {}
      for seed in range(5):
        scores = [
          Evaluation(
            stage,
            "greedy",
            {
              task: Score(512, success=x + seed / 100, low=0, high=1, reward=0)
              for task, x in each.items()
            },
          )
          for stage, each in (("rl", tasks), ("warm_start", start))
        ]
        runs[seed] = Run(
          name="", seed=seed, state=CellState.FINISHED, evaluations=scores
        )
      return Arm(name, {}, runs)

    arms = [
      of("both", {"x": 0.5, "y": 0.7}, {"x": 0.1, "y": 0.1}),
      of("a", {"x": 0.8, "y": 0.0}, {"x": 0.2, "y": 0.0}),
      of("b", {"x": 0.0, "y": 0.9}, {"x": 0.0, "y": 0.2}),
    ]
    plan = a_plan(contrasts=("a/x + b/y - both", "a@rise - both@rise"))
    first, second = planned.judge(plan, arms)
    self.assertIn("+25.0 points", first)  # 0.85 and 0.6
    self.assertIn("−20.0 points", second)  # 0.3 and 0.5
    (one,) = planned.judge(a_plan(task="y", contrasts=("a/x - both",)), arms)
    self.assertIn("not measured", one)

  def test_an_arm_with_one_task_more_takes_no_mean_away(self):
    def of(name, tasks, seeds=range(5)):
      runs = {}
      for seed in seeds:
        scores = {
          task: Score(512, success=x + seed / 100, low=0, high=1, reward=0)
          for task, x in tasks.items()
        }
        runs[seed] = Run(
          name="",
          seed=seed,
          state=CellState.FINISHED,
          evaluations=[Evaluation("rl", "greedy", scores)],
        )
      return Arm(name, {}, runs)

    arms = [
      of("full", {"x": 0.5, "y": 0.7}),
      of("no_norm", {"x": 0.6, "y": 0.8}),
      of("three", {"x": 0.6, "y": 0.8, "z": 0.1}),
    ]
    (verdict,) = planned.judge(a_plan(), arms)
    self.assertIn("+10.0 points", verdict)
    lacking = of("no_norm", {"x": 0.6}, seeds=[5])
    arms[1] = Arm("no_norm", {}, {**arms[1].runs, **lacking.runs})
    (verdict,) = planned.judge(a_plan(), arms)
    self.assertIn("seed 5 of no_norm has no greedy score of y", verdict)
    self.assertIn("seed 5 of no_norm has no greedy", " ".join(warnings(arms)))

  def test_a_contrast_that_cannot_be_read_costs_its_own_verdict(self):
    plan = a_plan(contrasts=("full + no_norm - full", "no_norm - full"))
    arms = [arm("full", FULL), arm("no_norm", [s + 10 for s in FULL])]
    one, other = planned.judge(plan, arms)
    self.assertIn("not measured: full + no_norm: two of its arms", one)
    self.assertIn("+10.0 points", other)

  def test_controls_that_differ_are_said(self):
    plan = a_plan(controls=("again - full",))
    arms = [arm("full", FULL), arm("no_norm", FULL)]
    same = arm("again", [51.0, 51.0, 49.0, 50.0, 49.0])
    apart = arm("again", [s + 9 + i for i, s in enumerate(FULL)])
    wide = arm("again", [59.0, 43.0, 57.0, 42.0, 49.0])
    self.assertIn("null, as it must be", planned.judge(plan, [*arms, same])[1])
    self.assertIn("not told from null", planned.judge(plan, [*arms, wide])[1])
    few = dataclasses.replace(same, runs=dict([*same.runs.items()][:2]))
    self.assertIn("before 5 seeds", planned.judge(plan, [*arms, few])[1])
    self.assertIn("not null", planned.judge(plan, [*arms, apart])[1])


class PlannedTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def test_a_sweep_without_a_plan_is_exploratory(self):
    self.assertEqual(planned.by_plan([self.folder]), [])
    write_record(sweep(), self.folder, {})
    write_record(sweep(), self.folder, {})
    self.assertEqual(planned.by_plan([self.folder]), [])

  def test_what_was_run_as_planned_has_nothing_to_say(self):
    write_record(sweep(a_plan()), self.folder, {"commit": "a"})
    write_record(sweep(a_plan()), self.folder, {"commit": "b"})
    self.assertLen(read_experiments(self.folder), 1)
    found = planned.planned(
      [self.folder], [arm("full", FULL), arm("no_norm", FULL)]
    )
    self.assertEqual(found.plan, a_plan())
    self.assertEqual(found.deviations, [])

  def test_seeds_of_two_machines_are_one_experiment(self):
    shares = [self.folder / "a", self.folder / "b"]
    for number, (folder, seeds) in enumerate(
      zip(shares, (range(3), range(3, 5)), strict=True)
    ):
      folder.mkdir()
      write_record(
        dataclasses.replace(sweep(a_plan()), seeds=seeds),
        folder,
        {},
        cells_finished=number,
      )
      for seed in seeds:
        for name, gain in (("full", 0), ("no_norm", 10 + seed / 100)):
          run = folder / "cells" / f"{name}-s{seed}"
          make_run(run, seed=seed, success=(FULL[seed] + gain) / 100, n=512)
    (group,) = planned.by_plan(shares)
    found = planned.planned(group, read_arms(group))
    self.assertIn("5 seeds). Higher", found.verdicts[0])
    self.assertEqual(
      found.deviations, ["b: the plan was written after 1 cells had finished"]
    )
    for folder in group:
      alone = planned.planned([folder], read_arms([folder]))
      self.assertIn("No verdict: the plan looks at 5", alone.verdicts[0])
    write_record(sweep(a_plan(seeds=6)), shares[1], {}, cells_begun=0)
    self.assertLen(planned.by_plan(shares), 2)

  def test_everything_that_was_run_otherwise_is_said(self):
    options = ["--config.train.steps=8"]
    write_record(sweep(a_plan(), overrides=options), self.folder, {})
    arms = [
      arm("full", [*FULL, 50.0], n=64),
      arm("other", FULL),
      arm("no_norm", FULL[:2], state=CellState.STOPPED),
    ]
    text = "\n".join(planned.planned([self.folder], arms).deviations)
    for sentence in (
      "arms that the plan does not have: other",
      "no_norm has 0 finished seeds, and the plan 5 (no_norm-s0 stopped",
      "1 seeds more than the plan's 5 were run: a further look",
      "full: the greedy evaluation has 64 tasks, and the plan 512",
      "options that the file does not have: --config.train.steps=8",
    ):
      self.assertIn(sentence, text)
    text = "\n".join(planned.planned([self.folder], arms[:1]).deviations)
    self.assertIn("arms of the plan that were not run: no_norm", text)

  def test_a_plan_that_changed_with_the_data_is_said_and_does_not_count(self):
    write_record(sweep(a_plan(seeds=4)), self.folder, {})
    write_record(sweep(a_plan()), self.folder, {}, cells_begun=1)
    late = a_plan(mode="sampled")
    write_record(sweep(late), self.folder, {}, cells_begun=4, cells_finished=3)
    write_record(sweep(), self.folder, {}, cells_begun=4, cells_finished=4)
    found = planned.planned([self.folder], [])
    self.assertEqual(found.plan, a_plan())
    self.assertContainsSubset(
      [
        "the plan was changed after 3 cells had finished: mode was 'greedy' "
        "and is 'sampled'",
        "the plan was changed after 4 cells had finished: it was taken out",
      ],
      found.deviations,
    )
    self.assertNotIn("seeds was", "".join(found.deviations))

  def test_a_plan_that_was_written_after_the_data(self):
    write_record(sweep(), self.folder, {})
    write_record(sweep(a_plan()), self.folder, {}, cells_finished=2)
    found = planned.planned([self.folder], [])
    self.assertIn(
      "the plan was written after 2 cells had finished", found.deviations
    )

  def test_training_is_seen_as_soon_as_cells_have_begun(self):
    training = a_plan(mode="training, equal episodes", num_tasks=0)
    write_record(sweep(training), self.folder, {}, cells_begun=2)
    self.assertIn(
      "the plan was written after 2 cells had begun",
      planned.planned([self.folder], []).deviations,
    )

  def test_a_record_from_before_plans_is_read(self):
    write_record(sweep(), self.folder, {})
    path = self.folder / "sweep.json"
    path.write_text(path.read_text().replace('"experiments"', '"other"'))
    self.assertEqual(read_experiments(self.folder), [])
    self.assertIsNone(read_record(self.folder).experiment)

  def test_a_recorded_plan_that_is_damaged_is_refused(self):
    write_record(sweep(a_plan()), self.folder, {})
    path = self.folder / "sweep.json"
    for broken in ('"seeds": 0', '"seed": 5'):
      text = path.read_text()
      path.write_text(text.replace('"seeds": 5', broken))
      with self.assertRaises(ConfigError):
        read_experiments(self.folder)
      path.write_text(text)

  def test_a_command_that_departs_from_the_plan_says_so(self):
    from tests.launch.experiments.power_test import cells_of

    few = sweep(a_plan(), arms={"full": {}}, seeds=[0])
    lines = planned.start_lines(
      a_plan(), few, cells_of(full={"evaluation.num_tasks": 16})
    )
    self.assertEqual(
      lines,
      [
        "not as planned: the plan's arms no_norm are not run by this",
        "not as planned: this runs 1 seeds, and the plan has 5",
        "not as planned: evaluation.num_tasks is 16, and the plan has 512",
      ],
    )


class ReportTest(absltest.TestCase):
  def test_a_report_begins_with_the_plan(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    plan = a_plan(question="Does <b>no_norm</b> harm?")
    write_record(sweep(plan, ablation="x.py"), root, {"commit": "a"})
    for seed, share in enumerate(FULL):
      for name, lost in (("full", 0), ("no_norm", 20 + seed)):
        make_run(
          root / "cells" / f"{name}-s{seed}",
          seed=seed,
          success=(share - lost) / 100,
          changes=ARMS[name] and {"clip_high": 0.5},
        )
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      report.main([str(root), f"--output={root / 'out'}"])
    text = " ".join(said.getvalue().split())
    self.assertStartsWith(
      text, "Plan: Does <b>no_norm</b> harm? no_norm - full"
    )
    self.assertIn("Lower: it harms.", text)
    self.assertIn("Not as planned: full, no_norm: the greedy evaluation", text)
    page = (root / "out/report.html").read_text()
    self.assertLess(
      page.index("Lower: it harms."), page.index('id="differences"')
    )
    self.assertIn("Not as planned: full, no_norm: the greedy", page)
    self.assertNotIn("<b>no_norm", page)


class ShorterRunsTest(absltest.TestCase):
  """Verdicts on training, beside runs that are no part of the plan."""

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.plan = a_plan(mode="training, equal episodes", num_tasks=0)

  def add_run(self, folder, name, seed, curve):
    run = folder / "cells" / f"{name}-s{seed}"
    clip = 0.2 if name == "full" else 0.5
    make_run(
      run,
      seed=seed,
      success=0.5,
      changes={"clip_high": clip},
      num_updates=len(curve),
    )
    metrics = run / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for row, success in zip(rows, curve, strict=False):  # then evaluations
      row["success/sums"] = success
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))

  def add_sweep(self, name, arms, plan=None):
    folder = self.root / name
    folder.mkdir()
    arms = {arm: ARMS.get(arm, {}) for arm in arms}
    write_record(sweep(plan, ablation="x.py", arms=arms), folder, {})
    for seed in range(5):
      for arm in arms.keys() & ARMS.keys():
        late = [0.3] * 3 + [0.7 + seed / 1000] * 3
        self.add_run(folder, arm, seed, late if arm == "no_norm" else [0.5] * 6)
    if "pilot" in arms:
      self.add_run(folder, "pilot", 0, [0.5] * 3)
    return folder

  def said(self, *folders):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      report.main([*map(str, folders), f"--output={self.root / 'out'}"])
    return " ".join(out.getvalue().split())

  def test_a_cell_with_fewer_updates_is_no_seed_yet(self):
    mine = self.add_sweep("mine", ARMS, self.plan)
    for name in ARMS:
      self.add_run(mine, name, 5, [0.5] * 3)
    sweep_of_six = dataclasses.replace(read_record(mine), seeds=range(6))
    write_record(sweep_of_six, mine, {})
    runs = read_arms([mine])[0].runs
    self.assertIs(runs[5].state, CellState.STOPPED)
    self.assertIsNone(runs[5].evaluation("rl", "greedy"))
    self.assertIs(runs[4].state, CellState.FINISHED)

  def test_a_setting_that_changed_between_arms_is_said(self):
    mine = self.add_sweep("mine", ARMS, self.plan)
    self.assertNotIn("none sets", self.said(mine))
    for config in mine.glob("cells/no_norm-s*/config.yaml"):
      config.write_text(
        config.read_text().replace('"clip_low": 0.2', '"clip_low": 0.9')
      )
    text = self.said(mine)
    self.assertIn("Not as planned: arms differ in loss.clip_low", text)
    self.assertIn("loss.clip_low, which none of them sets", text)

  def test_those_of_another_folder_change_nothing(self):
    mine = self.add_sweep("mine", ARMS, self.plan)
    other = self.add_sweep("other", ["pilot"])
    alone, beside = (
      text.partition("no_norm − full")[0]
      for text in (self.said(mine), self.said(mine, other))
    )
    self.assertIn("no_norm - full: +0.1 points", alone)
    self.assertEqual(beside, alone)

  def test_those_of_another_arm_are_named_and_change_no_verdict(self):
    text = self.said(self.add_sweep("mine", [*ARMS, "pilot"], self.plan))
    self.assertIn("arms that the plan does not have: pilot", text)
    self.assertIn("no_norm - full: +0.1 points", text)


class MakePlanTest(parameterized.TestCase):
  def made(self, text, **changes):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    path = folder / "mine.py"
    fields = dataclasses.asdict(a_plan())
    path.write_text(
      "from configs.experiment import ExperimentPlan\n"
      "ARMS = {'full': {}, 'other': {'seed_of': 1}, 'no_norm': {}}\n"
      f"FIELDS = {fields!r}\n{text}\n"
    )
    given = {"arms": [], "num_seeds": None, "first_seed": 0, "overrides": []}
    return make_plan(str(path), **{**given, **changes})

  def test_arms_and_seeds_are_those_of_the_plan(self):
    found = self.made("PLAN = ExperimentPlan(**{**FIELDS, 'seeds': 7})")
    self.assertEqual(list(found.arms), ["full", "no_norm"])
    self.assertLen(found.seeds, 7)
    self.assertEqual(found.experiment, a_plan(seeds=7))
    found = self.made(
      "PLAN = ExperimentPlan(**FIELDS)", arms=["other"], num_seeds=2
    )
    self.assertEqual(list(found.arms), ["other"])
    self.assertLen(found.seeds, 2)

  def test_without_a_plan_all_arms_run_with_five_seeds(self):
    found = self.made("")
    self.assertLen(found.arms, 3)
    self.assertLen(found.seeds, 5)
    self.assertIsNone(found.experiment)

  @parameterized.parameters(
    (
      "PLAN = ExperimentPlan(**{**FIELDS, 'contrasts': ('no_nrm - full',)})",
      "plan's arm 'no_nrm' is not one of .*did you mean no_norm",
    ),
    ("PLAN = FIELDS", "must be an ExperimentPlan"),
    ("PLAN = ExperimentPlan(**{**FIELDS, 'seeds': 0})", "seeds must be"),
  )
  def test_a_plan_that_cannot_be_run_is_refused(self, text, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      self.made(text)


if __name__ == "__main__":
  absltest.main()
