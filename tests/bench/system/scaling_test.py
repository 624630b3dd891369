"""Tests of `bench.system.scaling`: what its simulations must come to."""

import dataclasses
import unittest

from bench.system import scaling

SLOTS_ALONE = scaling.System(
  chips=2,
  server_chips=1,
  slots=4,
  answer_s=1.0,
  prefill_s=0.0,
  turns=2,
  environment_s=0.0,
  sigma=0.0,
  player_s=0.0,
  controllers=1,
  controller_s=0.0,
  workers=2,
  sessions=32,
  groups_per_step=4,
  train_s=0.0,
  max_staleness=1,
  seed=0,
  warm_up=3,
  steps=4,
)


class ScalingTest(unittest.TestCase):
  def test_slots_alone_give_their_own_rate(self):
    found = scaling.simulate(SLOTS_ALONE)
    self.assertAlmostEqual(found.turns_per_s, 8.0, places=3)
    self.assertAlmostEqual(found.busy["slots"], 1.0, places=3)
    self.assertEqual(found.busiest, "slots")

  def test_each_part_limits_when_it_is_the_slowest(self):
    for part, change, rate in (
      ("playing", {"player_s": 0.25}, 4.0),
      # A start costs one too: 3 requests for 2 turns.
      ("controllers", {"controller_s": 0.25}, 8 / 3),
      ("learner", {"train_s": 16.0}, 4.0),  # 64 turns a batch
    ):
      with self.subTest(part):
        found = scaling.simulate(dataclasses.replace(SLOTS_ALONE, **change))
        self.assertEqual(found.busiest, part)
        self.assertAlmostEqual(found.turns_per_s, rate, delta=0.02 * rate)
        self.assertLessEqual(max(found.busy.values()), 1.01)

  def test_work_that_waits_for_its_turn_is_no_work_yet(self):
    """Of more sessions than the player can serve, counted from the first."""
    found = scaling.simulate(
      dataclasses.replace(
        SLOTS_ALONE, player_s=2.0, sessions=1024, warm_up=0, steps=1
      )
    )
    self.assertLessEqual(found.busy["playing"], 1.0)

  def test_waits_of_environments_need_sessions(self):
    """By Little's law: 8 slots of a second, and replies of 3 s."""
    slow = dataclasses.replace(SLOTS_ALONE, environment_s=3.0, turns=20)
    few = scaling.simulate(dataclasses.replace(slow, sessions=16))
    self.assertEqual(few.busiest, "places")
    # A start takes 3 s as well.
    self.assertAlmostEqual(few.turns_per_s, 16 * 20 / 83, delta=0.1)
    many = scaling.simulate(dataclasses.replace(slow, sessions=64))
    self.assertEqual(many.busiest, "slots")

  def test_two_controllers_serve_twice_as_much(self):
    slow = dataclasses.replace(SLOTS_ALONE, controller_s=0.25)
    two = scaling.simulate(dataclasses.replace(slow, controllers=2))
    self.assertAlmostEqual(two.turns_per_s, 16 / 3, delta=0.6)

  def test_a_simulation_can_be_repeated(self):
    system = dataclasses.replace(SLOTS_ALONE, environment_s=1.0, sigma=1.0)
    self.assertEqual(scaling.simulate(system), scaling.simulate(system))


if __name__ == "__main__":
  unittest.main()
