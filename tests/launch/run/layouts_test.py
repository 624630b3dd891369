"""A learner whose mesh and rows follow the lengths is the same learner."""

import pytest
from absl.testing import absltest

from tests import many_processes


class LayoutsTest(absltest.TestCase):
  @pytest.mark.slow
  def test_goes_to_another_mesh_and_back(self):
    self._train("plain")

  @pytest.mark.full
  def test_with_adapters(self):
    self._train("adapters")

  def _train(self, variant):
    found = many_processes.run(
      "tests.launch.run.layouts_program",
      variant,
      num_processes=1,
      num_devices=8,
    )
    self.assertEqual(found["row_lengths"], [48, 48, 16, 320, 48, 48, 16, 48])
    self.assertEqual(found["after_the_stop"], found["row_lengths"][4:])
    self.assertTrue(found["resumed_alike"])
    # Sums are in another order, so that a mesh that never changed would show.
    self.assertTrue(found["differs"])
    self.assertLess(found["apart"], 1e-4)


if __name__ == "__main__":
  absltest.main()
