"""The library against its test vectors, and the generator of these."""

from collections.abc import Mapping

import jax
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax import losses
from tests.golden import make_test_vectors
from tests.golden.vectors import FILE, sections, to_array
from tests.losses.library.cases import arrays_of, compiled, part_of, vary

NUM_SEEDS = 4


class TestVectorsTest(parameterized.TestCase):
  def test_file_is_what_the_script_writes(self):
    self.assertEqual(FILE.read_text(encoding="utf-8"), make_test_vectors.text())

  def test_every_function_has_a_case(self):
    functions = {
      name
      for name in losses.__all__
      if not isinstance(getattr(losses, name), type)
    }
    with_case = {
      block["function"]: module
      for module, blocks in sections().items()
      for block in blocks
    }
    self.assertEqual(functions, set(with_case))
    for name, module in with_case.items():
      with self.subTest(name):
        defined_in = getattr(losses, name).__module__
        path = module.replace("/", ".")
        self.assertEqual(defined_in, f"agentrl_jax.losses.{path}")

  @parameterized.parameters(*sections())
  @pytest.mark.slow
  def test_library_agrees(self, module):
    blocks = sections()[module]
    results = compiled(blocks)([arrays_of(block) for block in blocks])
    self.check(blocks, results, tolerance=1e-6, slope_tolerance=2e-6)

  @parameterized.parameters(*sections())
  def test_library_agrees_in_float64(self, module):
    """On the numbers of the file, and on others from the same loops."""
    blocks = sections()[module]
    with jax.enable_x64(True):
      program = compiled(blocks)
      for seed in range(NUM_SEEDS):
        drawn = [vary(block, seed) for block in blocks] if seed else blocks
        results = program([arrays_of(block) for block in drawn])
        self.check(drawn, results, tolerance=1e-8, slope_tolerance=1e-7)

  def check(self, blocks, results, *, tolerance, slope_tolerance):
    for i, (block, (result, slopes)) in enumerate(
      zip(blocks, results, strict=True)
    ):
      with self.subTest(f"{block['function']}, case {i} of its section"):
        self.compare(result, block["returns"], tolerance)
        for name, expected in block.get("gradient", {}).items():
          self.compare(slopes[name], expected, slope_tolerance)

  def compare(self, result, expected, tolerance):
    if isinstance(expected, Mapping):
      for place, (name, part) in enumerate(expected.items()):
        with self.subTest(name):
          self.compare(part_of(result, name, place), part, tolerance)
      return
    expected = to_array(expected if isinstance(expected, list) else [expected])
    if not np.ndim(result):
      expected = expected[0]
    self.assertEqual(np.shape(result), np.shape(expected))
    self.assertEqual(result.dtype == bool, expected.dtype == bool)
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
