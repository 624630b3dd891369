"""An update over processes is the update of one device, on every mesh."""

import pytest
from absl.testing import absltest

from tests import many_processes


class ProcessUpdateTest(absltest.TestCase):
  def _assert_close(self, found):
    self.assertNotEmpty(found)
    for shape, (of_loss, of_tokens, of_params) in found.items():
      with self.subTest(mesh=shape):
        self.assertLess(of_loss, 1e-5)
        self.assertLess(of_tokens, 1e-3)  # sum of their log-probabilities
        self.assertLess(of_params, 1e-6)

  @pytest.mark.slow
  def test_two_processes_of_four_devices(self):
    self._assert_close(many_processes.run("tests.train.sharded.process_update"))

  @pytest.mark.slow
  def test_two_slices_of_four_devices(self):
    """Each process is a slice, that data or fsdp spans."""
    found = many_processes.run("tests.train.sharded.process_update", "slices")
    self.assertLen(found, 2)
    self._assert_close(found)

  @pytest.mark.full
  @pytest.mark.timeout(3600)
  def test_every_mesh_of_the_table(self):
    found = many_processes.run(
      "tests.train.sharded.process_update", "table", deadline_s=3500
    )
    self.assertGreaterEqual(len(found), 10)
    self._assert_close(found)
