"""Time of a step: sums that can be done by hand, and the side that waits."""

import dataclasses

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from launch.planning.roofline import Attempts
from launch.planning.step import Rates, step_time
from tests.launch.planning.models import pod_settings

ATTEMPTS = Attempts(prompt=1000, turns=1000, num=10)
RATES = Rates(
  gradient_s=2.0,
  gradient_tokens=100_000.0,
  forward_share=0.25,
  apply_s=0.5,
  sampled_per_s=10_000.0,
  prefilled_per_s=100_000.0,
)


def _settings(max_staleness=1):
  """Twenty groups of ten attempts for a step of one update."""
  settings = pod_settings("qwen3-0.6b")
  return dataclasses.replace(
    settings,
    group=dataclasses.replace(settings.group, size=10),
    admission=dataclasses.replace(
      settings.admission,
      groups_per_step=20,
      versions_per_step=1,
      max_staleness=max_staleness,
    ),
  )


class StepTest(parameterized.TestCase):
  def _step(self, rates=RATES, sampled=400, is_shared=False, **settings):
    return step_time(
      _settings(**settings),
      ATTEMPTS,
      rates,
      sampled=sampled,
      is_shared=is_shared,
    )

  def test_each_part_is_its_tokens_at_its_rate(self):
    step = self._step()
    self.assertEqual(step.tokens, 200 * 2000)
    # Four micro-batches; the reference's pass is the only other one.
    self.assertEqual(
      step.training, {"gradients": 8.0, "log-probabilities": 2.0, "apply": 0.5}
    )
    # A prompt is prefilled once for ten attempts, the replies of each once.
    self.assertEqual(
      step.generation, {"prefill": 200 * 700 / 1e5, "decode": 8.0}
    )

  def test_the_longer_side_is_a_step_and_the_other_waits(self):
    step = self._step()
    self.assertEqual(step.step_s, 10.5)
    self.assertIn("rollouts wait for the learner, 10% of", step.verdict)
    slow = dataclasses.replace(RATES, sampled_per_s=1_000.0)
    step = self._step(rates=slow)
    self.assertEqual(step.step_s, 81.4)
    self.assertIn("learner waits for rollouts, 87% of", step.verdict)

  @parameterized.parameters((0, False), (1, True))
  def test_sides_take_turns_on_the_same_chips_or_without_staleness(
    self, max_staleness, is_shared
  ):
    step = self._step(max_staleness=max_staleness, is_shared=is_shared)
    self.assertEqual(step.step_s, 10.5 + 9.4)
    self.assertIn("take turns, and generation takes 47%", step.verdict)

  @parameterized.parameters(0, 1001)
  def test_no_more_is_sampled_than_there_is(self, sampled):
    with self.assertRaisesRegex(ConfigError, "must be 1 to 1000"):
      self._step(sampled=sampled)
