"""Long values go by way of the devices, and arrive as they were."""

import pytest
from absl.testing import absltest

from launch.processes.group import Processes
from tests import many_processes
from tests.launch.processes import broadcast_program


class BroadcastTest(absltest.TestCase):
  def test_one_process_has_the_value(self):
    self.assertEqual(Processes().broadcast(b"value", what="it"), b"value")

  @pytest.mark.slow
  def test_three_processes(self):
    found = many_processes.run(
      "tests.launch.processes.broadcast_program", num_processes=3
    )
    self.assertEqual(found, list(broadcast_program.SIZES))
