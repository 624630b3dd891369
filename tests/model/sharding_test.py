"""Every parameter has a place on the mesh, and what does not fit is refused."""

import dataclasses
import unittest

import jax
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import PartitionSpec

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Policy
from agentrl_jax.model.sharding import MeshConfig
from launch.planning import chips
from launch.planning.chips import parse_slice
from tests.model.policy_test import (
  CONFIG,
  GEMMA_4_E2B,
  GEMMA_4_MOE,
  GLM_4_5,
  LATENTS,
  QWEN3_NEXT,
)
from tests.settings import COMPUTE


class ShardingTest(absltest.TestCase):
  def test_every_parameter_is_named(self):
    for changes in (
      {"tied_embedding": False, "qkv_bias": True},
      {"value_head": True} | GLM_4_5 | LATENTS,
      {"joint_qk_norm": True, "sandwich_norm": True, "pre_norm": False},
      QWEN3_NEXT,
      {},
      GEMMA_4_MOE,
      GEMMA_4_E2B,
    ):
      policy = Policy(dataclasses.replace(CONFIG, **changes), COMPUTE)
      mesh = sharding.make_mesh({}, jax.devices()[:1])
      found = sharding.param_shardings(policy.abstract_params(), mesh)
      self.assertEqual(
        jax.tree.structure(found), jax.tree.structure(policy.abstract_params())
      )

  def test_specs(self):
    wanted = {
      ("layers", "down", "kernel"): PartitionSpec(None, "tensor", "fsdp"),
      ("layers", "3", "down", "kernel"): PartitionSpec("tensor", "fsdp"),
      ("embedding",): PartitionSpec("tensor", "fsdp"),
      ("layer_embedding",): PartitionSpec("tensor", "fsdp"),
    }
    found = {path: sharding.param_spec(path) for path in wanted}
    self.assertEqual(found, wanted)

  def test_a_parameter_without_a_place(self):
    with self.assertRaisesRegex(ConfigError, "layers/router has no logical"):
      sharding.param_spec(("layers", "router"))

  def test_mesh_that_does_not_match_the_devices(self):
    with self.assertRaisesRegex(ConfigError, "asks for 4 devices.*there are 1"):
      sharding.make_mesh({"data": 4}, jax.devices()[:1])
    with self.assertRaisesRegex(ConfigError, "'model'.* unknown"):
      sharding.make_mesh({"model": 1}, jax.devices()[:1])


OVER_DATA = MeshConfig(over_slices="data", slices_of="devices")
OVER_FSDP = MeshConfig(over_slices="fsdp", slices_of="devices")


class MeshConfigTest(parameterized.TestCase):
  def test_devices_without_slices_are_one(self):
    mesh = sharding.make_mesh({}, jax.devices()[:1], slices=OVER_FSDP)
    self.assertEqual(mesh.devices.size, 1)


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class SlicesTest(parameterized.TestCase):
  @parameterized.parameters(
    ("2xv5p-8", {"data": 2, "fsdp": 4}, OVER_DATA),
    ("2xv5p-8", {"data": 4, "fsdp": 2}, OVER_DATA),
    ("2xv5p-8", {"fsdp": 8}, OVER_FSDP),
    ("3xv5e-4", {"data": 2, "fsdp": 6}, OVER_FSDP),
    ("2xv5p-16", {"data": 2, "fsdp": 2, "tensor": 2, "sequence": 2}, OVER_DATA),
    ("2xtpu7x-8", {"data": 2, "fsdp": 4, "tensor": 2}, OVER_DATA),
  )
  def test_one_axis_alone_crosses_slices(self, name, shape, slices):
    topology = parse_slice(name)
    devices = chips.describe(topology)
    mesh = sharding.make_mesh(shape, devices, slices=slices)
    self.assertCountEqual(mesh.devices.flat, devices)
    slice_of = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    for number, axis in enumerate(sharding.MESH_AXES):
      along = np.moveaxis(slice_of, number, 0).reshape(mesh.shape[axis], -1)
      for line in along.T:
        if axis == slices.over_slices:
          # Slice by slice, so that neighbours are in the same one.
          per_slice = len(line) // topology.num_slices
          wanted = np.repeat(range(topology.num_slices), per_slice)
          self.assertEqual(line.tolist(), wanted.tolist())
        else:
          self.assertLen(set(line), 1)

  @parameterized.parameters(
    ("3xv5e-4", {"data": 2, "fsdp": 6}, "mesh.data=2 .* over 3 slices.*=fsdp"),
    ("2xv5e-4", {"fsdp": 8}, "mesh.data=1 .* over 2 slices: .*multiple of 2"),
    ("2xv5e-4", {"data": 4}, "asks for 4 devices and there are 8"),
  )
  def test_an_axis_that_slices_do_not_divide(self, name, shape, sentence):
    devices = chips.describe(parse_slice(name))
    with self.assertRaisesRegex(ConfigError, sentence):
      sharding.make_mesh(shape, devices, slices=OVER_DATA)

  def test_slices_of_different_sizes(self):
    devices = chips.describe(parse_slice("2xv5p-8"))
    with self.assertRaisesRegex(ConfigError, "slice 0: 4, slice 1: 2"):
      sharding.make_mesh({"data": 2, "fsdp": 3}, devices[:6], slices=OVER_DATA)

  def test_a_mesh_that_is_not_the_learners_stays_in_a_slice(self):
    devices = chips.describe(parse_slice("2xv5e-4"))
    with self.assertRaisesRegex(ConfigError, "belong to 2 slices"):
      sharding.make_mesh({"tensor": 8}, devices)
    mesh = sharding.make_mesh({"tensor": 4}, devices[4:])
    self.assertEqual({d.slice_index for d in mesh.devices.flat}, {1})

  def test_processes_of_tpus_are_no_slices(self):
    with self.assertRaisesRegex(ConfigError, "mesh.slices_of=devices"):
      sharding.make_mesh(
        {"data": 2, "fsdp": 4},
        chips.describe(parse_slice("v5p-16")),
        slices=MeshConfig(over_slices="data", slices_of="processes"),
      )


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class ArrangedTest(absltest.TestCase):
  def test_shares_of_a_layer_are_neighbours(self):
    """Chips that exchange most are linked: `tensor` within a row of the grid.

    In the order in which devices come, they would be two rows apart.
    """
    devices = chips.describe(parse_slice("v5e:4x8"))
    mesh = sharding.make_mesh({"fsdp": 8, "tensor": 4}, devices)
    for group in mesh.devices[0, :, :, 0, 0]:
      first, *others = (device.coords for device in group)
      lined_up = [
        sum(a != b for a, b in zip(first, other, strict=True))
        for other in others
      ]
      self.assertEqual(lined_up, [1, 1, 1])
