"""A plan that says nothing, or cannot be judged, is refused when written."""

import dataclasses

from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from configs.experiment import Contrast, ExperimentPlan


def a_plan(**changes) -> ExperimentPlan:
  """A plan of two arms that a test may change."""
  return ExperimentPlan(
    **{
      "question": "Does no_norm harm?",
      "mode": "greedy",
      "contrasts": ("no_norm - full",),
      "seeds": 5,
      "least_difference": 5.0,
      "spread": 1.0,
      "spread_from": "ten runs of full",
      "num_tasks": 512,
      "higher": "it helps.",
      "lower": "it harms.",
      "neither": "it does nothing that matters.",
      **changes,
    }
  )


class ExperimentPlanTest(parameterized.TestCase):
  def test_the_level_is_shared_by_contrasts_and_looks_and_not_by_controls(self):
    plan = a_plan(
      contrasts=("a - full", "b - full"), controls=("again - full",), looks=2
    )
    self.assertAlmostEqual(plan.level, 0.0125)
    self.assertEqual(plan.arms, ["a", "full", "b", "again"])

  def test_a_side_may_be_a_sum_of_arms_at_stages(self):
    sides = Contrast.parse("a/x + b/y - both@rise")
    self.assertEqual((sides.after, sides.before), ("a/x + b/y", "both@rise"))
    self.assertEqual(sides.arms, ["a", "b", "both"])

  @parameterized.parameters(
    ({"contrasts": ("full - full",)}, "full with itself"),
    ({"contrasts": ("full-no_norm",)}, "as `after - before`"),
    ({"contrasts": (" - full",)}, "as `after - before`"),
    ({"contrasts": "no_norm - full"}, "must be a tuple"),
    ({"contrasts": ()}, "must have a contrast"),
    ({"controls": ("no_norm - full",)}, "both as a contrast and as a control"),
    ({"seeds": 0}, "seeds must be a whole number from 2"),
    ({"seeds": 1}, "seeds must be a whole number from 2"),
    ({"seeds": True}, "seeds must be a whole number from 2"),
    ({"looks": 0}, "looks must be a whole number from 1"),
    ({"least_difference": 0.0}, "least_difference must be a number between"),
    ({"spread": float("nan")}, "spread must be a number between 0 and 100"),
    ({"spread": -1.0}, "spread must be a number between 0 and 100"),
    ({"power": 80}, "power must be a number between 0.5 and 1"),
    ({"neither": " "}, "neither must say something"),
    ({"spread_from": ""}, "spread_from must say something"),
    ({"num_tasks": 0}, "set the tasks of an evaluation"),
    ({"mode": "training, equal episodes"}, "0 for a mode of training"),
    ({"mode": "sampled", "num_tasks": 64}, "at least 512.*num_sampled=512"),
  )
  def test_a_plan_that_cannot_be_judged_is_refused(self, changes, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      a_plan(**changes)

  def test_a_plan_is_not_changed_in_place(self):
    with self.assertRaises(dataclasses.FrozenInstanceError):
      a_plan().seeds = 9


if __name__ == "__main__":
  absltest.main()
