"""Power of plans, against simulated t tests, and plans that are refused."""

import dataclasses
import importlib
import pkgutil

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats

import configs.ablations
import studies.configs
from agentrl_jax.errors import ConfigError
from launch.comparisons import statistics
from launch.experiments import planned, power
from launch.sweeps.plan import Cell, SweepPlan
from tests.configs.experiment_test import a_plan
from tests.launch.sweeps import tiny_arms


def _plans():
  """All files with a PLAN, as cases."""
  for folder in (configs.ablations, studies.configs):
    for found in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
      module = importlib.import_module(found.name)
      if hasattr(module, "PLAN"):
        yield found.name, module


def cells_of(**arms):
  made = {}
  for name, keys in arms.items():
    config = tiny_arms.get_config("full")
    config.update_from_flattened_dict(keys)
    made[Cell(name, 0)] = config
  return made


class PowerTest(parameterized.TestCase):
  @parameterized.parameters((3, 0.05, 3.26), (5, 0.05, 1.68), (5, 0.01, 2.65))
  def test_power_is_that_of_simulated_tests(self, seeds, level, difference):
    random = np.random.default_rng(0)
    drawn = difference + random.standard_normal((20_000, seeds))
    found = stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < level
    expected = statistics.paired_power(difference, 1.0, seeds, level=level)
    self.assertAlmostEqual(expected, found.mean(), delta=0.01)
    self.assertAlmostEqual(expected, 0.8, delta=0.02)

  def test_one_seed_finds_nothing(self):
    self.assertEqual(statistics.paired_power(99.0, 0.1, 1, level=0.05), 0.0)

  def test_the_difference_and_the_seeds_that_a_plan_finds_agree(self):
    plan = a_plan(seeds=6)
    size = statistics.detectable_difference(
      2.0, plan.seeds, level=plan.level, power=plan.power
    )
    exact = dataclasses.replace(plan, least_difference=size)
    self.assertAlmostEqual(power.power_of(exact, 2.0), 0.8, places=6)
    self.assertEqual(power.seeds_needed(exact, 2.0), 6)

  def test_the_mean_of_tasks_has_the_episodes_of_all(self):
    mean = power.noise_of(a_plan(spread=0.0), 2)
    one = power.noise_of(a_plan(spread=0.0, task="sums"), 2)
    self.assertAlmostEqual(mean, 100 * (0.5 / 1024) ** 0.5)
    self.assertAlmostEqual(one, 100 * (0.5 / 512) ** 0.5)

  def test_a_plan_says_how_many_seeds_it_needs(self):
    cells = cells_of(full={}, no_norm={"loss.clip_high": 0.5})
    power.require_plan(a_plan(seeds=6), cells)
    with self.assertRaisesRegex(
      ConfigError, "5 seeds whose .* sd 6.8 points .* find 11.4. 17 seeds are"
    ):
      power.require_plan(a_plan(spread=6.0), cells)
    with self.assertRaisesRegex(ConfigError, "no number of seeds is enough"):
      power.require_plan(a_plan(least_difference=0.01), cells)

  @parameterized.parameters(
    ({"mode": "gredy"}, "'gredy' is not one of .*did you mean greedy"),
    ({"stage": "warm_start"}, "must be 'rl'"),
    ({"task": "webshop"}, "neither 'mean' nor one of"),
    ({"contrasts": ("again - full",)}, "two arms with the same config"),
    ({"contrasts": ("again@rise - full@rise",)}, "with the same config"),
    ({"contrasts": ("no_norm@rize - full",)}, "'rize' is not one of"),
    ({"controls": ("again/sumz - full",)}, "'sumz' is not one of arithmetic"),
  )
  def test_a_plan_that_its_arms_cannot_carry_out(self, changes, sentence):
    cells = cells_of(full={}, again={}, no_norm={"loss.clip_high": 0.5})
    with self.assertRaisesRegex(ConfigError, sentence):
      power.require_plan(a_plan(**changes), cells)

  @parameterized.parameters(
    ("a + b - both", "mean", "two arms of a . b have arithmetic, dbbench"),
    ("a/dbbench - both/dbbench", "mean", "judges mean, and in its .* one side"),
    ("a/dbbench - both/dbbench", "arithmetic", "judges arithmetic, and in"),
    ("a/dbbench - both/arithmetic", "mean", "is of dbbench and the other of"),
    ("a@warm_start - both@warm_start", "mean", "is of two warm starts"),
    ("a@rl - a", "mean", "of a with itself"),
  )
  def test_a_contrast_that_could_never_be_judged(self, text, task, sentence):
    two = {"tasks.names": ("arithmetic", "dbbench")}
    cells = cells_of(
      both=two, a=two | {"loss.clip_high": 0.4}, b=two | {"loss.clip_high": 0.5}
    )
    power.require_plan(
      a_plan(seeds=6, contrasts=("a/arithmetic + b/dbbench - both",)), cells
    )
    with self.assertRaisesRegex(ConfigError, sentence):
      power.require_plan(a_plan(seeds=6, contrasts=(text,), task=task), cells)

  def test_a_control_that_is_a_contrast_reversed(self):
    cells = cells_of(full={}, no_norm={"loss.clip_high": 0.5})
    for text in ("full - no_norm", "full@rl - no_norm"):
      with self.assertRaisesRegex(ConfigError, "are one difference"):
        power.require_plan(a_plan(seeds=6, controls=(text,)), cells)

  def test_the_power_that_is_said_is_the_one_that_is_required(self):
    cells = cells_of(
      full={"tasks.names": ("arithmetic",)},
      no_norm={"tasks.names": ("arithmetic", "dbbench")},
    )
    plan = a_plan(seeds=6, contrasts=("no_norm/arithmetic - full",))
    said = power.plan_lines(plan, cells)[-1]
    percents = 100 * power.power_of(plan, power.noise_of(plan, 2))
    self.assertIn(f"in {percents:.0f} % of cases", said)

  def test_arms_with_the_same_config_may_be_a_control(self):
    cells = cells_of(full={}, again={}, no_norm={"loss.clip_high": 0.5})
    power.require_plan(a_plan(seeds=6, controls=("again - full",)), cells)
    with self.assertRaisesRegex(ConfigError, "the same config"):
      power.require_plan(a_plan(seeds=6, contrasts=("again - full",)), cells)

  @parameterized.named_parameters(*_plans())
  def test_plans_that_stand_in_files_can_be_carried_out(self, module):
    plan = module.PLAN
    cells = {Cell(arm, 0): module.get_config(arm) for arm in plan.arms}
    power.require_plan(plan, cells)
    sweep = SweepPlan(
      ablation="", arms=module.ARMS, seeds=range(plan.seeds), overrides=[]
    )
    self.assertEqual(planned.start_lines(plan, sweep, cells), [])


if __name__ == "__main__":
  absltest.main()
