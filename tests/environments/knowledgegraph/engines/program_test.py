"""Programs that remain when steps are left out."""

import unittest

from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
  shorter,
)

ONE, OTHER = Join("r", Entity("a")), Join("s", Entity("b"))


class ShorterTest(unittest.TestCase):
  def test_an_entity_has_no_shorter_program(self):
    self.assertEqual(shorter(Entity("a")), frozenset())

  def test_any_hop_may_be_left_out(self):
    two = Join("s", Join("r", Entity("a")))
    self.assertEqual(shorter(two), {ONE, Join("s", Entity("a")), Entity("a")})

  def test_one_path_of_a_superlative_may_be_left_out(self):
    for is_max in (True, False):
      best = Extreme(And(ONE, OTHER), "size", is_max)
      parts = shorter(best)
      self.assertIn(Extreme(ONE, "size", is_max), parts)
      self.assertIn(Extreme(OTHER, "size", is_max), parts)
      self.assertIn(And(ONE, OTHER), parts)
      self.assertIn(Extreme(And(Entity("a"), OTHER), "size", is_max), parts)
      self.assertNotIn(best, parts)

  def test_number_of_shorter_programs(self):
    """Four intersections and four operands, with and without the count."""
    parts = shorter(Count(And(ONE, OTHER)))
    self.assertEqual(len(parts), 2 * (4 + 4) - 1)
    self.assertIn(Count(ONE), parts)
