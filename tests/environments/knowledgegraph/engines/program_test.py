"""What is left of a program when a part of it is overlooked."""

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
  def test_an_entity_is_as_short_as_can_be(self):
    self.assertEqual(shorter(Entity("a")), frozenset())

  def test_hops_are_left_out_anywhere(self):
    two = Join("s", Join("r", Entity("a")))
    self.assertEqual(shorter(two), {ONE, Join("s", Entity("a")), Entity("a")})

  def test_a_superlative_of_one_path_alone(self):
    for is_max in (True, False):
      best = Extreme(And(ONE, OTHER), "size", is_max)
      parts = shorter(best)
      self.assertIn(Extreme(ONE, "size", is_max), parts)
      self.assertIn(Extreme(OTHER, "size", is_max), parts)
      self.assertIn(And(ONE, OTHER), parts)
      self.assertIn(Extreme(And(Entity("a"), OTHER), "size", is_max), parts)
      self.assertNotIn(best, parts)

  def test_nothing_is_added(self):
    """Four intersections and four operands, counted or not."""
    parts = shorter(Count(And(ONE, OTHER)))
    self.assertEqual(len(parts), 2 * (4 + 4) - 1)
    self.assertIn(Count(ONE), parts)


if __name__ == "__main__":
  unittest.main()
