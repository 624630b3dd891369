"""Tests of `controller.groups.admission`: the bound holds for any timing."""

import unittest

from agentrl_jax.controller.groups.admission import Admission, AdmissionLimits


def limits(
  max_staleness=1,
  groups_per_step=2,
  concurrent=100,
  versions_per_step=1,
  refills=0,
):
  return AdmissionLimits(
    max_staleness=max_staleness,
    groups_per_step=groups_per_step,
    max_concurrent_groups=concurrent,
    versions_per_step=versions_per_step,
    refills_per_step=refills,
  )


def fill(admission: Admission) -> int:
  """Starts what may start."""
  started = 0
  while admission.refusal() is None:
    admission.start()
    started += 1
  return started


class AdmissionTest(unittest.TestCase):
  def test_on_policy_starts_one_step_at_a_time(self):
    admission = Admission(limits(max_staleness=0))
    self.assertEqual(fill(admission), 2)
    self.assertRegex(admission.refusal(), "2 groups have started")
    admission.advance(1)
    self.assertEqual(fill(admission), 2)

  def test_runs_ahead_by_so_many_steps(self):
    self.assertEqual(fill(Admission(limits(max_staleness=3))), 8)

  def test_concurrency_is_bounded_too(self):
    admission = Admission(limits(concurrent=1))
    self.assertEqual(fill(admission), 1)
    self.assertRegex(admission.refusal(), "max_concurrent_groups")
    admission.end()
    self.assertEqual(fill(admission), 1)

  def test_bound_of_refills_is_per_step_of_the_learner(self):
    admission = Admission(limits(refills=1, versions_per_step=2))
    fill(admission)
    self.assertTrue(admission.refill())
    admission.advance(1)  # within the same batch
    self.assertFalse(admission.refill())
    admission.advance(2)
    self.assertTrue(admission.refill())

  def test_lost_group_gives_its_place_to_another(self):
    admission = Admission(limits(max_staleness=0))
    fill(admission)
    admission.lose()
    self.assertEqual(admission.in_flight, 1)
    self.assertEqual(fill(admission), 1)

  def test_several_updates_of_one_batch(self):
    """With 2 updates a batch, staleness 1 lets nothing run a batch ahead."""
    admission = Admission(limits(max_staleness=1, versions_per_step=2))
    self.assertEqual(fill(admission), 2)
    admission.advance(1)
    self.assertEqual(fill(admission), 2)
    admission.advance(2)
    self.assertEqual(fill(admission), 0)

  def test_starting_against_advice_is_a_bug(self):
    admission = Admission(limits())
    fill(admission)
    with self.assertRaisesRegex(RuntimeError, "although"):
      admission.start()

  def test_versions_only_grow(self):
    with self.assertRaisesRegex(ValueError, "from 3 back to 2"):
      Admission(limits(), version=3).advance(2)
