"""Seeds depend on their parts alone."""

import subprocess
import sys
import unittest

from agentrl_jax.data.records import seed_of, uniform_of


class SeedsTest(unittest.TestCase):
  def test_same_in_another_process(self):
    program = (
      "from agentrl_jax.data.records import seed_of;print(seed_of(1,'turn',2))"
    )
    finished = subprocess.run(
      [sys.executable, "-c", program], capture_output=True, check=True
    )
    self.assertEqual(int(finished.stdout), seed_of(1, "turn", 2))

  def test_parts_order_and_kind_matter(self):
    several = [(1, 2), (2, 1), (12,), ("1", 2), (1, 2, ""), ("1\x1fint:2",)]
    self.assertEqual(len({seed_of(*p) for p in several}), len(several))

  def test_fits_in_31_bits_and_spreads(self):
    found = [seed_of(0, n) for n in range(2000)]
    self.assertEqual(len(set(found)), 2000)
    self.assertTrue(all(0 <= seed < 2**31 for seed in found))
    self.assertGreater(max(found), 2**30)

  def test_uniform(self):
    found = [uniform_of(0, n) for n in range(4000)]
    self.assertTrue(all(0 <= x < 1 for x in found))
    self.assertAlmostEqual(sum(found) / 4000, 0.5, delta=0.03)
