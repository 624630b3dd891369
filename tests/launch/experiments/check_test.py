"""The check calls designs nulls that were nulls, and no good design.

`old_designs.jsonl` has what the check measured (`check/check.json` of a sweep)
in ten updates of real runs of these designs, seed 0.
"""

import collections
import csv
import dataclasses
import json
import math
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.controller.cross_policy import CrossPolicy
from agentrl_jax.metrics import Row
from agentrl_jax.train.weights.policy_slot_schedule import read_schedules
from configs.ablations import rare_reward
from launch.config.settings import read_settings
from launch.experiments import rehearsal, treatment
from launch.experiments.check import Answer, check_contrast, start_reason
from launch.experiments.rehearsal import cells_of, differing_keys, judge
from launch.experiments.start import TaskStart
from launch.sweeps.plan import SweepPlan
from tests.configs.experiment_test import a_plan
from tests.data.records import make_group
from tests.launch.sweeps import tiny_arms

DESIGNS = pathlib.Path(__file__).with_name("old_designs.jsonl")


def measured(design):
  """Returns a design's batches, and what was measured of its versions."""
  found = [json.loads(line) for line in DESIGNS.read_text().splitlines()]
  own = [each for each in found if each["design"] == design]
  versions = [each["versions"] for each in own if "versions" in each]
  return (
    [each["batch"] for each in own if "batch" in each],
    versions[0] if versions else {},
  )


def answer(design):
  batches, versions = measured(design)
  measures = [treatment.judge_advantages(batches)] if batches else []
  measures += [treatment.judge_versions(versions)] if versions else []
  return check_contrast(design, measures, [], None)


def a_start(**changes):
  """A warm start with room, that a test may change."""
  return TaskStart(
    **{
      "task": "sums",
      "success": 0.5,
      "low": 0.4,
      "high": 0.6,
      "reward_spread": 0.5,
      "signal": 0.8,
      "differ": 0.8,
      "greedy": 0.5,
      "reachable": 0.9,
      **changes,
    }
  )


class OldDesignsTest(parameterized.TestCase):
  @parameterized.parameters(
    ("task_norm", "spread of webshop is 1.03 "), ("lines", "cosine of 0.994 ")
  )
  def test_a_null_is_called_that_before_it_is_run(self, design, why):
    found = answer(design)
    self.assertEqual(found.answer, Answer.NULL)
    self.assertIn(why, found.why)

  def test_so_is_one_that_a_page_has_the_spreads_of(self):
    """Rarely paid tasks leave fewer groups, and no smaller advantages."""
    path = pathlib.Path("studies/evidence/rare_reward_spreads.csv")
    by_version = collections.defaultdict(list)
    with path.open(newline="") as file:
      for row in csv.DictReader(file):
        by_version[row["version"]].append(row)
    batches = []
    for rows in by_version.values():
      weight, mean, std = (
        np.array([float(row[name]) for row in rows])
        for name in ("groups", "mean", "std")  # tokens are as the groups
      )
      # Of x and (x - mean) / std over the tokens of each task.
      squares = (weight * (std**2 + mean**2)).sum() * weight.sum()
      batches.append(
        {f"advantage/spread/{r['task']}": float(r["std"]) for r in rows}
        | {"cosine": float((weight * std).sum() / squares**0.5)}
      )
    self.assertLen(batches, 40)  # two of them without DBBench
    found = treatment.judge_advantages(batches)
    self.assertEqual(found.verdict, treatment.Treatment.NULL)
    self.assertIn("spread of webshop is 1.06 (", found.sentence)

  def test_so_are_arms_that_begin_at_their_greedy_ceiling(self):
    """MATPO's: no attempt wins more of `long` than fits its context.

    So many tasks an arm of the seed has won at most; of `short`, all can be.
    """
    path = pathlib.Path("studies/evidence/matpo.csv")
    greedy, reachable = {}, collections.defaultdict(float)
    with path.open(newline="") as file:
      for row in csv.DictReader(file):
        key, success = (row["seed"], row["task"]), float(row["success"])
        if row["mode"] == "greedy" and row["stage"] in ("rl", "warm_start"):
          reachable[key] = max(reachable[key], success)
          if row["stage"] == "warm_start":
            greedy[key] = success  # of all arms the same
    self.assertLen(greedy, 16)  # the last three seeds came later
    for seed in "01234":
      starts = [
        a_start(
          task=task,
          greedy=greedy[seed, task],
          reachable=1.0 if task == "short" else reachable[seed, task],
        )
        for task in ("long", "short")
      ]
      reason = start_reason(starts, None, mode="greedy")
      self.assertIn("at its ceiling", reason)
      found = check_contrast("b - a", [], ["agents.program"], reason)
      self.assertEqual(found.answer, Answer.NULL)
      self.assertIsNone(start_reason(starts, None, mode="sampled"))

  @parameterized.parameters("spreads", "lag_16", "cross_policy", "worker")
  def test_a_design_that_differs_is_no_null(self, design):
    self.assertEqual(answer(design).answer, Answer.CAN_SHOW)

  def test_a_negative_control_of_rewards_is_no_null(self):
    norm, meaningless = map(rare_reward.get_config, ("norm", "meaningless"))
    found = judge("b - a", norm, meaningless, groups=[], rows=[])
    self.assertEqual(found.answer, Answer.NOT_MEASURED)
    self.assertIn("environments.dbbench.options.meaningless", found.why)

  def test_the_tokens_of_roles_are_said_where_they_differ(self):
    self.assertIn("100 and 0 % of the tokens of plan", answer("worker").why)
    self.assertNotIn("work", answer("lines").why)

  def test_versions_hardly_differ_at_a_low_rate(self):
    _, versions = measured("cross_policy")
    slow = versions | {
      "log_ratio_per_update": versions["log_ratio_per_update"] / 6
    }
    self.assertEqual(
      treatment.judge_versions(slow).verdict, treatment.Treatment.NULL
    )


class ContrastTest(parameterized.TestCase):
  NULL = treatment.Measure(treatment.Treatment.NULL, "alike")
  APART = treatment.Measure(treatment.Treatment.DIFFERS, "apart")
  UNKNOWN = treatment.Measure(treatment.Treatment.NOT_MEASURED, "unknown")

  @parameterized.parameters(
    ([NULL], [], None, Answer.NULL, "hardly differ: alike"),
    ([NULL, APART], [], None, Answer.CAN_SHOW, "alike; apart"),
    ([NULL, UNKNOWN], [], None, Answer.NOT_MEASURED, "unknown"),
    ([NULL], ["loss.clip_high"], None, Answer.NOT_MEASURED, "loss.clip_high"),
    ([], ["loss.clip_high"], None, Answer.NOT_MEASURED, "nothing measures"),
    ([], [], None, Answer.NULL, "differ in no key"),
    ([APART], [], "at its ceiling", Answer.NULL, "at its ceiling"),
  )
  def test_an_answer(self, measures, unmeasured, start, expected, why):
    found = check_contrast("b - a", measures, unmeasured, start)
    self.assertEqual(found.answer, expected)
    self.assertIn(why, found.why)

  def test_what_is_missing_is_not_measured_and_no_null(self):
    for batches in ([], [{"cosine": math.nan}], [{}]):
      found = treatment.judge_advantages(batches)
      self.assertEqual(found.verdict, treatment.Treatment.NOT_MEASURED)
    found = treatment.judge_versions({"age/before": 0.0, "age/after": 9.0})
    self.assertEqual(found.verdict, treatment.Treatment.NOT_MEASURED)

  def test_spreads_that_are_missing_are_left_out(self):
    spread = "advantage/spread"
    for batch in (
      {f"{spread}/a": math.nan, f"{spread}/b": 1.0},
      {f"{spread}/a": 0.0, f"{spread}/b": 0.0},
      {f"{spread}/a": 1.0},
    ):
      found = treatment.judge_advantages([batch | {"cosine": 0.5}])
      self.assertNotIn("times that of", found.sentence)


class StartTest(parameterized.TestCase):
  @parameterized.parameters(
    ({"greedy": 0.672, "reachable": 0.672}, "greedy", "ceiling, 67.2"),
    ({"greedy": 0.99, "reachable": 1.0}, "greedy", "ceiling, 99.0"),
    ({"success": 0.98, "reachable": 1.0}, "sampled", "ceiling, 98.0"),
    ({"greedy": 0.01, "reachable": 0.03}, "greedy", "floor, 1.0"),
    ({"signal": 0.02}, "greedy", "hardly any group has a signal"),
  )
  def test_a_start_without_room(self, changes, mode, why):
    reason = start_reason([a_start(**changes)], None, mode=mode)
    self.assertIn(why, reason.replace("\N{NO-BREAK SPACE}", " "))

  def test_the_room_is_that_of_the_mode_and_the_task_that_are_judged(self):
    full = a_start(greedy=0.9, reachable=0.9)
    other = a_start(task="other")
    self.assertIsNotNone(start_reason([full], None, mode="greedy"))
    self.assertIsNone(start_reason([full], None, mode="sampled"))
    self.assertIsNone(start_reason([full, other], None, mode="greedy"))
    one = a_plan(task="sums", seeds=6)
    self.assertIsNotNone(start_reason([full, other], one, mode="greedy"))
    self.assertIsNone(start_reason([other], one, mode="greedy"))  # not played

  def test_the_room_must_hold_the_difference_of_the_plan(self):
    start = a_start(greedy=0.82)
    small, large = a_plan(seeds=6), a_plan(least_difference=10.0)
    self.assertIsNone(start_reason([start], small, mode="greedy"))
    self.assertIsNotNone(start_reason([start], large, mode="greedy"))

  def test_a_mode_that_was_not_played_is_not_judged(self):
    start = a_start(greedy=None, reachable=0.5)
    self.assertIsNone(start_reason([start], None, mode="greedy"))


def config(**keys):
  made = tiny_arms.get_config("full")
  made.update_from_flattened_dict(keys)
  return made


class TimeTest(absltest.TestCase):
  def test_the_time_is_unknown_after_one_update(self):
    """The first compiles, and stands for no other."""
    run = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (run / "done").mkdir()
    row = '{"stage": "rl", "step": %d, "time_s": 0, "seconds/wait": 1.0, '
    row += '"seconds/train": 2.0}\n'
    plan = SweepPlan(ablation="x.py", arms={"a": {}}, seeds=[0], overrides=[])
    for num_updates, time in ((1, "unknown .unknown for"), (2, "9.0.s .3.0.s")):
      (run / "metrics.jsonl").write_text(
        "".join(row % (n + 1) for n in range(num_updates))
      )
      sentence = rehearsal._time_line(
        plan, config(**{"train.steps": 3}), run, 1
      )
      self.assertRegex(sentence, f"all cells .1.: {time}")


class TreatmentTest(parameterized.TestCase):
  """Arms on groups that are made up; `task` is that of the tiny config."""

  def setUp(self):
    super().setUp()
    (self.task,) = config().tasks.names
    random = np.random.default_rng(0)
    self.groups = [
      make_group(random, id=f"{n}", task=self.task, size=4) for n in range(6)
    ]

  def judge(self, before, after):
    return judge("b - a", before, after, groups=[self.groups] * 2, rows=[])

  def test_normalising_one_task_changes_its_scale_alone(self):
    plain = {"advantage.task_center": False, "advantage.task_scale": False}
    found = self.judge(config(), config(**plain))
    self.assertEqual(found.answer, Answer.NULL)
    self.assertLen(found.batches, 2)

  def test_another_estimator_differs(self):
    other = config(**{"advantage.estimator": "best_of_group"})
    found = self.judge(config(), other)
    self.assertEqual(found.answer, Answer.CAN_SHOW)
    self.assertLess(found.batches[0]["cosine"], treatment.ALIKE)

  def test_a_filter_says_how_much_it_keeps(self):
    kept = config(
      **{
        "advantage.keep": "top_share",
        "advantage.keep_settings": {"share": 0.34},
      }
    )
    found = self.judge(config(**{"advantage.keep": "all"}), kept)
    self.assertEqual(found.batches[0]["groups/before"], 1.0)
    self.assertLess(found.batches[0]["groups/after"], 0.6)
    self.assertIn("of the groups are trained on", found.why)

  def test_a_critic_and_other_tasks_are_not_compared(self):
    critic = config(**{"advantage.estimator": "gae", "model.value_head": True})
    critic.loss.value_coefficient = 1.0
    found = self.judge(config(), critic)
    self.assertEqual(found.answer, Answer.NOT_MEASURED)

  def test_other_keys_are_named_and_no_null(self):
    found = self.judge(config(), config(**{"loss.clip_high": 0.5}))
    self.assertEqual(found.answer, Answer.NOT_MEASURED)
    self.assertIn("loss.clip_high", found.why)

  def test_what_chooses_the_score_is_no_null(self):
    for key, value in (
      ("checkpoint.keep_best", "greedy"),
      ("evaluation.temperature", 0.5),
      ("evaluation.agents", True),
    ):
      during = {"evaluation.every": 2, "agents.port": 0}
      found = self.judge(config(**during), config(**during, **{key: value}))
      self.assertEqual(found.answer, Answer.NOT_MEASURED, key)

  def test_what_changes_no_token_is_no_difference(self):
    other = config(**{"report.keep_groups": 9, "checkpoint.every": 1})
    self.assertEqual(
      differing_keys(config(), other),
      ["checkpoint.every", "report.keep_groups"],
    )
    self.assertEqual(self.judge(config(), other).answer, Answer.NULL)

  def test_no_update_has_come(self):
    plain = {"advantage.task_center": False, "advantage.task_scale": False}
    for after in (plain, {"cross_policy.draw_per": "never"}):
      before = config(**{"cross_policy.draw_per": "turn"})
      found = judge("b - a", before, config(**after), groups=[], rows=[])
      self.assertEqual(found.answer, Answer.NOT_MEASURED)


class CellsTest(parameterized.TestCase):
  @parameterized.parameters(
    (("a - b",), ["b-s3"]),
    (("a - b", "b - a"), ["a-s3", "b-s3"]),
    (("a - b/x + c/y",), ["a-s3"]),
    ((), ["a-s3"]),  # exploratory
  )
  def test_those_that_others_are_compared_with_are_played(self, texts, cells):
    plan = SweepPlan(
      ablation="",
      arms={"a": {}, "b": {}, "c": {}},
      seeds=[3, 4],
      overrides=[],
      experiment=a_plan(contrasts=texts) if texts else None,
    )
    self.assertEqual([each.name for each in cells_of(plan)], cells)


class VersionsTest(absltest.TestCase):
  def settings(self, slots, weights, draw_per="turn"):
    made = config()
    settings = read_settings(made)
    return dataclasses.replace(
      settings,
      policy_slots=read_schedules(slots),
      cross_policy=CrossPolicy(draw_per=draw_per, weights=weights),
    )

  def test_ages_are_those_of_the_schedules(self):
    lag = self.settings(("fresh", "every 1 lag 4"), (0.0, 1.0))
    self.assertEqual(treatment.mean_age(lag, 5), 2.0)  # 0, 1, 2, 3 and 4
    never = self.settings(("fresh", "every 1 lag 4"), (0.5, 0.5), "never")
    self.assertEqual(treatment.mean_age(never, 5), 0.0)

  def test_the_drift_of_an_update_is_by_age(self):
    rows = [
      Row("rl", step, 0.0, values)
      for step, values in (
        (1, {"policy/abs_log_ratio/policy_slot1": 0.5}),  # of age 0
        (3, {"policy/abs_log_ratio/policy_slot1": 0.02}),
        (5, {"policy/abs_log_ratio/policy_slot1": 0.04}),
      )
    ]
    lag = self.settings(("fresh", "every 1 lag 4"), (0.0, 1.0))
    found = treatment.log_ratio_per_update(rows, lag)
    self.assertAlmostEqual(found, 0.06 / 6)
    self.assertIsNone(treatment.log_ratio_per_update(rows[:1], lag))
    self.assertIsNone(treatment.log_ratio_per_update([], lag))


if __name__ == "__main__":
  absltest.main()
