"""A learner whose mesh and rows follow the lengths is the same learner."""

import pytest
from absl.testing import absltest

from launch.config.settings import read_settings
from tests import many_processes
from tests.launch import tiny
from tests.launch.run import layouts_program


class LayoutsTest(absltest.TestCase):
  def test_layouts_are_from_short_to_long(self):
    for variant, more in layouts_program.VARIANTS.items():
      config = tiny.get_config()
      config.update_from_flattened_dict(
        {
          **layouts_program.CHANGES,
          **more,
          "train.layouts": layouts_program.LAYOUTS,
        }
      )
      lengths = [each.row_length for each in read_settings(config).layouts]
      self.assertEqual(lengths, [16, 48, config.train.row_length], variant)

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
