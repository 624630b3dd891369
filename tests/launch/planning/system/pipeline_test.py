"""The replay of the pipeline, against formulas where nothing varies."""

import dataclasses

from absl.testing import parameterized

from agentrl_jax.controller.groups.admission import AdmissionLimits
from agentrl_jax.controller.groups.group_queue import ANY_AGE, QueueLimits
from launch.planning.system.pipeline import Pace, replay

LIMITS = AdmissionLimits(
  max_staleness=1,
  groups_per_step=4,
  max_concurrent_groups=1000,
  versions_per_step=1,
  refills_per_step=0,
)
QUEUE = QueueLimits(
  max_groups=1000, order="finished", max_age=ANY_AGE, patience=1.0
)


def _pace(learner_s, episode_s=None, capacity=None, **changes) -> Pace:
  """Episodes of constant length, or servers with a rate in all."""

  def episodes_per_s(number: float) -> float:
    return capacity if capacity else number / episode_s

  fields = {
    "learner_s": learner_s,
    "lag_s": 0.0,
    "episodes_per_s": episodes_per_s,
    "busy_slots": lambda number: min(number, 3),
    "group_size": 2,
    "spread": 0.0,
  }
  return Pace(**fields | changes)


def _limits(**changes) -> AdmissionLimits:
  return dataclasses.replace(LIMITS, **changes)


class ConstantTest(parameterized.TestCase):
  """Every episode takes as long, however many there are."""

  @parameterized.product(
    max_staleness=(0, 1, 2, 5), episode_s=(0.001, 3.0, 10.0, 25.0, 60.0)
  )
  def test_a_step_is_the_longest_of_its_bounds(self, max_staleness, episode_s):
    flow = replay(
      _limits(max_staleness=max_staleness),
      QUEUE,
      _pace(10.0, episode_s),
      num_steps=600,  # a multiple of each cycle of max_staleness + 1 steps
    )
    expected_s = max(10.0, (10.0 + episode_s) / (max_staleness + 1))
    self.assertAlmostEqual(flow.step_s, expected_s, places=6)
    self.assertAlmostEqual(flow.wait_s, expected_s - 10.0, places=6)
    self.assertAlmostEqual(flow.staleness_mean, max_staleness)

  def test_without_staleness_the_times_add_up(self):
    flow = replay(_limits(max_staleness=0), QUEUE, _pace(10.0, 7.0))
    self.assertAlmostEqual(flow.step_s, 17.0)
    self.assertAlmostEqual(flow.wait_share, 7 / 17)
    self.assertEqual(flow.staleness_max, 0)
    self.assertAlmostEqual(flow.episodes_in_flight, 8 * 7 / 17)
    self.assertAlmostEqual(flow.busy_slots, 3 * 7 / 17)

  def test_a_batch_of_many_updates_counts_versions(self):
    # One batch may be ahead: four versions.
    limits = _limits(max_staleness=4, versions_per_step=4)
    flow = replay(limits, QUEUE, _pace(10.0, 30.0))
    self.assertAlmostEqual(flow.step_s, (10 + 30) / 2)
    self.assertAlmostEqual(flow.staleness_mean, 4)

  def test_staleness_below_a_batch_is_none(self):
    limits = _limits(max_staleness=3, versions_per_step=4)
    flow = replay(limits, QUEUE, _pace(10.0, 30.0))
    self.assertAlmostEqual(flow.step_s, 40.0)

  def test_few_groups_in_flight_limit_the_rate(self):
    limits = _limits(max_concurrent_groups=2, max_staleness=50)
    flow = replay(limits, QUEUE, _pace(10.0, 30.0))
    self.assertAlmostEqual(flow.step_s, 4 / 2 * 30)
    self.assertAlmostEqual(flow.episodes_in_flight, 2 * 2)

  def test_a_full_queue_holds_groups_back(self):
    """Groups beyond the queue keep their place in flight: none may start."""
    limits = _limits(max_staleness=9, max_concurrent_groups=4)
    free = replay(limits, QUEUE, _pace(10.0, 4.0))
    held = replay(
      limits, dataclasses.replace(QUEUE, max_groups=4), _pace(10.0, 4.0)
    )
    self.assertAlmostEqual(free.staleness_mean, 9)
    self.assertLess(held.staleness_mean, 4)

  def test_late_weights_are_older(self):
    limits = _limits(max_staleness=1)
    none = replay(limits, QUEUE, _pace(10.0, 5.0))
    late = replay(limits, QUEUE, _pace(10.0, 5.0, lag_s=15.0))
    self.assertAlmostEqual(late.staleness_mean, none.staleness_mean + 2)
    self.assertAlmostEqual(late.step_s, none.step_s)


class ServersTest(parameterized.TestCase):
  """Servers end so many episodes per second, however many there are."""

  @parameterized.parameters(0.1, 0.4, 0.8, 2.0, 40.0)
  def test_the_slower_side_sets_the_pace(self, capacity):
    flow = replay(
      _limits(max_staleness=4), QUEUE, _pace(10.0, capacity=capacity)
    )
    self.assertAlmostEqual(flow.step_s, max(10.0, 8 / capacity), places=6)

  @parameterized.parameters(0.0, 0.5, 2.0)
  def test_spread_changes_no_throughput_of_busy_servers(self, spread):
    flow = replay(
      _limits(max_staleness=4),
      QUEUE,
      _pace(10.0, capacity=0.2, spread=spread),
      num_steps=2000,
    )
    self.assertAlmostEqual(flow.step_s / 40, 1, delta=0.05)

  def test_infinitely_fast_rollouts_never_keep_the_learner_waiting(self):
    flow = replay(LIMITS, QUEUE, _pace(10.0, capacity=1e12, spread=1.0))
    self.assertLess(flow.wait_share, 1e-6)

  def test_an_infinitely_fast_learner_always_waits(self):
    flow = replay(LIMITS, QUEUE, _pace(1e-9, capacity=1.0))
    self.assertGreater(flow.wait_share, 1 - 1e-6)


class VaryingTest(parameterized.TestCase):
  def test_variation_makes_batches_wait_for_their_last_group(self):
    limits = _limits(max_staleness=1, groups_per_step=8)
    steady = replay(limits, QUEUE, _pace(10.0, 9.0))
    varying = replay(limits, QUEUE, _pace(10.0, 9.0, spread=1.0))
    self.assertAlmostEqual(steady.wait_share, 0, places=6)
    self.assertGreater(varying.wait_share, 0.05)

  def test_the_order_of_starting_waits_for_slow_groups(self):
    limits = _limits(max_staleness=3)
    pace = _pace(10.0, 15.0, spread=1.5)
    finished = replay(limits, QUEUE, pace)
    started = replay(limits, dataclasses.replace(QUEUE, order="started"), pace)
    self.assertGreater(started.wait_share, finished.wait_share)
    self.assertLessEqual(started.staleness_max, 3)
    self.assertGreater(finished.staleness_max, 3)

  def test_max_age_bounds_the_oldest_group(self):
    limits = _limits(max_staleness=3)
    pace = _pace(10.0, 15.0, spread=1.5)
    bounded = replay(limits, dataclasses.replace(QUEUE, max_age=4), pace)
    self.assertEqual(bounded.staleness_max, 4)

  def test_a_seed_repeats(self):
    pace = _pace(10.0, 9.0, spread=1.0)
    self.assertEqual(
      replay(LIMITS, QUEUE, pace, seed=3), replay(LIMITS, QUEUE, pace, seed=3)
    )
    self.assertNotEqual(
      replay(LIMITS, QUEUE, pace, seed=3), replay(LIMITS, QUEUE, pace, seed=4)
    )
