"""Predictions of the whole run, at rates that are given."""

import dataclasses

from absl.testing import parameterized

from launch.planning.chips import parse_slice
from launch.planning.roofline import Attempts
from launch.planning.system.prediction import System, explain, predict
from launch.planning.system.prices import read_prices
from launch.planning.system.rates import LearnerRate, RolloutRate
from launch.planning.system.workload import Workload
from tests.launch.planning.models import pod_settings

WORKLOAD = Workload(
  attempts=Attempts(prompt=1024, turns=896, num=8),
  num_answers=5,
  answer_tokens=100,
  environment_s=0.0,
  spread=0.0,
  group_size=8,
)


def _settings(**admission):
  settings = pod_settings()
  fields = {"groups_per_step": 32, "max_concurrent_groups": 64}
  limits = dataclasses.replace(settings.admission, **fields | admission)
  return dataclasses.replace(settings, admission=limits)


def _rollouts(**changes) -> RolloutRate:
  fields = {
    "num_servers": 4,
    "slots": 64,
    "answer_s": 2.0,
    "prefill_s": 0.0,
    "environment_s": 0.0,
    "num_answers": 5,
  }
  return RolloutRate(**fields | changes)


def _predict(learner_s, settings=None, workload=WORKLOAD, **rollouts) -> System:
  return predict(
    settings or _settings(),
    workload,
    LearnerRate(parts_s={"gradients": learner_s}, tokens=1000.0),
    _rollouts(**rollouts),
    slices=[parse_slice("v5p-64"), *[parse_slice("v5p-8")] * 4],
    prices=read_prices([]),
  )


class PredictionTest(parameterized.TestCase):
  def test_a_run_that_the_learner_limits(self):
    # 256 slots of 2 s end 128 answers/s, 25.6 episodes/s: a batch in 10 s.
    system = _predict(30.0)
    self.assertEqual(system.limit, "learner")
    self.assertAlmostEqual(system.rollouts_s, 10)
    self.assertAlmostEqual(system.step_s, 30)
    self.assertAlmostEqual(system.learner_waits, 0)
    self.assertAlmostEqual(system.rollouts_idle, 2 / 3)
    self.assertAlmostEqual(system.sampled_tokens_per_s, 256 * 500 / 30)
    self.assertAlmostEqual(system.rollout_tokens_per_s, 12_800)
    self.assertAlmostEqual(system.trained_tokens_per_s, 1000 / 30)
    self.assertEqual(system.learner_tokens_per_s, 1000 / 30)
    self.assertAlmostEqual(system.steps_per_hour, 120)

  def test_a_run_that_the_rollouts_limit(self):
    system = _predict(5.0, num_servers=1)
    self.assertEqual(system.limit, "rollouts")
    self.assertAlmostEqual(system.step_s, 40)
    self.assertAlmostEqual(system.learner_waits, 35 / 40)
    self.assertAlmostEqual(system.rollouts_idle, 0)
    self.assertAlmostEqual(system.busy_slots, 64)

  def test_twice_the_servers_take_half_as_long(self):
    steps = [_predict(1.0, num_servers=k).step_s for k in (1, 2)]
    self.assertAlmostEqual(steps[0], 2 * steps[1])

  def test_without_staleness_the_sides_take_turns(self):
    system = _predict(10.0, _settings(max_staleness=0))
    self.assertEqual(system.limit, "staleness")
    self.assertAlmostEqual(system.step_s, 10 + 10)
    self.assertEqual(system.staleness_max, 0)

  @parameterized.product(
    max_staleness=(0, 1, 3),
    learner_s=(1.0, 12.0, 60.0),
    variation=((0.0, 0.0), (5.0, 0.8)),
  )
  def test_a_step_is_no_shorter_than_its_bounds(
    self, max_staleness, learner_s, variation
  ):
    environment_s, spread = variation
    system = _predict(
      learner_s,
      _settings(max_staleness=max_staleness),
      dataclasses.replace(WORKLOAD, spread=spread),
      environment_s=environment_s,
    )
    # The means of drawn works are 1 but for a few percent.
    margin = 0.97 if spread else 0.9999
    for bound_s in (system.learner_s, system.rollouts_s, system.staleness_s):
      self.assertGreaterEqual(system.step_s, margin * bound_s)
    if not spread:
      self.assertLess(
        system.step_s,
        1.3 * max(system.learner_s, system.rollouts_s, system.staleness_s),
      )

  def test_a_step_of_many_updates(self):
    system = _predict(30.0, _settings(versions_per_step=4, max_staleness=4))
    self.assertAlmostEqual(system.updates_per_hour, 4 * system.steps_per_hour)
    # One batch ahead: 30 s of the learner and 10 s of the rollouts, in two.
    self.assertAlmostEqual(system.staleness_s, 20)
    self.assertAlmostEqual(system.staleness_mean, 4)

  def test_a_step_costs_all_chips_for_its_time(self):
    for learner_s in (30.0, 5.0):  # alone, and waiting half of the time
      system = _predict(learner_s)
      self.assertAlmostEqual(system.dollars_per_hour, (32 + 4 * 4) * 4.2)
      self.assertAlmostEqual(
        system.dollars_per_step * system.steps_per_hour, system.dollars_per_hour
      )

  def test_environments_do_not_wait_for_slots(self):
    """With replies of 8 s, 512 episodes keep a fifth of enough slots busy."""
    system = _predict(1.0, environment_s=8.0, slots=1000)
    self.assertAlmostEqual(system.busy_slots / system.episodes_in_flight, 0.2)


class ExplanationTest(parameterized.TestCase):
  def _told(self, learner_s, settings, workload=WORKLOAD, **rollouts) -> str:
    system = _predict(learner_s, settings, workload, **rollouts)
    return explain(system, settings, _rollouts(**rollouts))

  def test_it_names_the_limit(self):
    self.assertRegex(
      self._told(30.0, _settings()),
      "The learner limits: the learner waits 0% .* 67% of the rollouts' rate",
    )
    self.assertRegex(
      self._told(5.0, _settings(), num_servers=1), "More servers would help"
    )
    self.assertRegex(
      self._told(10.0, _settings(max_staleness=0)),
      r"admission.max_staleness=0 limits: the learner waits 50% ",
    )
    self.assertRegex(
      self._told(1.0, _settings(max_concurrent_groups=4, max_staleness=9)),
      "max_concurrent_groups=4 limits: .* 32 episodes keep 32 of 256 slots",
    )

  def test_it_warns_of_the_process_that_plays(self):
    """256 episodes of 5 answers in 2 s are 640 turns a second."""
    limits = _settings(max_concurrent_groups=256, max_staleness=9)
    told = self._told(2.0, limits, num_servers=64)
    self.assertRegex(told, "640 turns a second need up to 90% of its only core")
    self.assertNotIn("One process", self._told(30.0, limits, num_servers=64))

  def test_it_names_variation_where_it_costs_time(self):
    varying = dataclasses.replace(WORKLOAD, spread=1.5)
    limits = _settings()
    self.assertNotIn("variation", self._told(10.0, limits))
    self.assertIn("variation", self._told(10.0, limits, varying))
