"""Tests random tables."""

import random
import unittest

from hypothesis import given
from hypothesis import strategies as st

from environments.dbbench.generation.statement import Where
from environments.dbbench.generation.tables import draw_numbers, draw_topic


class DrawTopicTest(unittest.TestCase):
  @given(st.integers(0, 10**6), st.integers(4, 20), st.integers(3, 10))
  def test_shape(self, seed, height, width):
    topic = draw_topic(
      random.Random(seed), num_rows=(height, height), num_columns=(width, width)
    )
    self.assertEqual(len(topic.table.rows), height)
    self.assertEqual(len(topic.table.columns), width)
    self.assertEqual(topic.table.columns[0], topic.key)
    self.assertEqual(
      set(topic.table.columns), {topic.key, *topic.texts, *topic.numbers}
    )
    self.assertTrue(topic.texts and topic.numbers)
    self.assertNotIn(topic.new_name, topic.column(topic.key))

  def test_conditions_select_rows(self):
    topic = draw_topic(random.Random(1), num_rows=(6, 6), num_columns=(3, 3))
    number = topic.numbers[0]
    values = [int(cell) for cell in topic.column(number)]
    bound = sorted(values)[3]  # which itself is neither above nor below
    above = Where(number, ">", str(bound), is_number=True)
    below = Where(number, "<", str(bound), is_number=True)
    self.assertEqual(
      topic.where(above, number), [str(v) for v in values if v > bound]
    )
    self.assertEqual(
      topic.where(below, number), [str(v) for v in values if v < bound]
    )
    name = topic.column(topic.key)[2]
    self.assertEqual(
      topic.where(Where(topic.key, "=", name), number), [str(values[2])]
    )
    self.assertEqual(topic.where(None, number), topic.column(number))

  def test_different_tables_have_different_canonical_texts(self):
    topics = [
      draw_topic(random.Random(i), num_rows=(4, 4), num_columns=(3, 3))
      for i in range(50)
    ]
    self.assertEqual(len({t.canonical for t in topics}), 50)


class DrawNumbersTest(unittest.TestCase):
  def test_numbers_have_one_to_three_digits_and_differ(self):
    drawn = draw_numbers(random.Random(0), 300)
    self.assertEqual(len(set(drawn)), 300)
    self.assertEqual({len(number) for number in drawn}, {1, 2, 3})
    self.assertFalse([number for number in drawn if number[0] == "0"])
