"""Programs compiled with the least effort, beside those of a run."""

import unittest

import jax
import jax.numpy as jnp
from absl.testing import absltest
from jax.sharding import NamedSharding, PartitionSpec

from agentrl_jax.model import sharding
from launch.planning import chips
from launch.planning.compiled import compile_program


class Listening:
  """A traced program that tells with which options it is compiled."""

  def __init__(self, traced):
    self.traced, self.options = traced, []

  def lower(self, **platforms):
    self.lowered = self.traced.lower(**platforms)
    return self

  def compile(self, compiler_options):
    self.options.append(compiler_options)
    return self.lowered.compile(compiler_options=compiler_options)


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class EffortTest(absltest.TestCase):
  def test_a_quick_program_moves_the_same_bytes(self):
    devices = chips.describe(chips.parse_slice("v6e:2x2"))
    mesh = sharding.make_mesh({"fsdp": 4}, devices)
    rows = jax.ShapeDtypeStruct(
      (512, 512),
      jnp.bfloat16,
      sharding=NamedSharding(mesh, PartitionSpec("fsdp")),
    )
    program = Listening(jax.jit(lambda x, y: x @ y).trace(rows, rows))
    found = [
      compile_program(
        program, unknown_turns=1, num_devices=4, is_quick=is_quick
      )
      for is_quick in (False, True)
    ]
    sizes = [sum(e.total_bytes for e in one.exchanges) for one in found]
    self.assertEqual(sizes, [512 * 512 * 2 * 3 / 4] * 2)
    self.assertEqual(
      program.options, [None, {"exec_time_optimization_effort": -1.0}]
    )


if __name__ == "__main__":
  absltest.main()
