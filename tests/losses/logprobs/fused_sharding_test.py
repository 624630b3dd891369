"""A vocabulary that is split over devices gives the results of one device."""

import jax
import numpy as np
import pytest
from absl.testing import absltest
from jax.sharding import Mesh

from tests import eight_devices
from tests.losses.logprobs import fused_sharding_program as program


class OneDeviceTest(absltest.TestCase):
  def test_a_mesh_of_one_device_changes_nothing(self):
    mesh = Mesh(np.reshape(jax.devices()[:1], (1, 1)), ("data", "tensor"))
    for options in ({}, {"constrained": True}):
      inputs = program.inputs()
      wanted = jax.jit(program.gradient_of(**options))(*inputs)
      spread = program.mapped(mesh, **options)(*inputs)
      self.assertLess(program.difference(spread, wanted), 1e-6)


@pytest.mark.slow
class FusedShardingTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.found = eight_devices.run(program.__name__)

  def test_values_and_gradients_are_those_of_one_device(self):
    self.assertLen(self.found["differences"], 13)
    for name, difference in self.found["differences"].items():
      with self.subTest(name):
        self.assertLessEqual(difference, 1e-6)

  def test_devices_send_sums_and_no_words(self):
    # The gradient of a device's shard is summed over the rows of others.
    for name, sent in self.found["sent"].items():
      self.assertNotEmpty(sent)
      num_parts = int(name[-1])
      states = program.B * program.T * program.D
      own_shard = program.D * program.V // num_parts
      for kind, size in sent:
        with self.subTest(name, kind=kind, size=size):
          if name.startswith("constrained 2") and kind != "all-reduce":
            # The compiler cuts masks at other tokens than the logits, and moves
            # what lies between; where shards are mapped, nothing moves.
            self.assertLess(size, own_shard)
            continue
          self.assertEqual(kind, "all-reduce")
          self.assertTrue(size <= states or size == own_shard)
