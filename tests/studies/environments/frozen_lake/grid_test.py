"""Tests of the lake's text and of ways over it."""

import unittest

from studies.environments.frozen_lake.grid import (
  best_move,
  cell_after,
  draw,
  neighbour,
  read,
  shortest_way,
)

LAKE = ("SFF", "HHF", "FFG")
TEXT = "P _ _\nO O _\n_ _ G"


class GridTest(unittest.TestCase):
  def test_drawn_and_read(self):
    self.assertEqual(draw(LAKE, (0, 0)), TEXT)
    self.assertEqual(draw(LAKE, (0, 2)), "_ _ P\nO O _\n_ _ G")
    self.assertEqual(read(f"Some words.\n\n{TEXT}")[1], ("O", "O", "_"))

  def test_what_is_no_lake(self):
    for text in ("", "Error: G", "_ _\n_ G", "P _ x"):
      with self.subTest(text=text):
        self.assertIsNone(read(text))

  def test_the_way_goes_around_holes(self):
    grid = read(TEXT)
    self.assertEqual(shortest_way(grid), ["right", "right", "down", "down"])
    self.assertEqual(
      shortest_way(grid, avoid=""), ["down", "down", "right", "right"]
    )

  def test_no_way(self):
    grid = read("P O\nO G")
    self.assertEqual(shortest_way(grid), [])
    self.assertNotIn(best_move(grid), ("right", "down"))

  def test_on_the_goal(self):
    self.assertEqual(shortest_way(read("_ _\n_ P")), [])

  def test_edges(self):
    grid = read(TEXT)
    self.assertEqual(neighbour(grid, (0, 0), "up"), (0, 0))
    self.assertEqual(neighbour(grid, (2, 2), "right"), (2, 2))
    self.assertEqual(cell_after(grid, "down"), "O")
