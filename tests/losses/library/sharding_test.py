"""Statistics of a batch do not depend on its sharding."""

import pytest
from absl.testing import absltest

from agentrl_jax import losses
from tests import eight_devices
from tests.losses.library import sharding_program as program


class ShardingTest(absltest.TestCase):
  def test_every_function_has_rows_to_spread(self):
    blocks = [b for cases in program.sections().values() for b in cases]
    for block in blocks:
      if block["function"] not in program.LEFT_OUT | program.WITHOUT_ROWS:
        with self.subTest(block["function"]):
          sizes = {
            len(x)
            for name, x in program.arguments(block).items()
            if name not in program.WHOLE
          }
          self.assertFalse(any(size % 8 for size in sizes), sizes)

  @pytest.mark.slow
  def test_eight_devices_compute_what_one_does(self):
    differences = eight_devices.run(program.__name__)
    functions = {
      name
      for name in losses.__all__
      if not isinstance(getattr(losses, name), type)
    }
    left_out = program.LEFT_OUT | program.WITHOUT_ROWS
    self.assertEqual(differences.keys(), functions - left_out)
    for name, difference in differences.items():
      with self.subTest(name):
        self.assertLessEqual(difference, 1e-6)
