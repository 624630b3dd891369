"""Tests MySQL's functions on SQLite."""

import math
import sqlite3
import unittest

from environments.dbbench.mysql import functions


class FunctionsTest(unittest.TestCase):
  def setUp(self):
    self.connection = sqlite3.connect(":memory:")
    self.addCleanup(self.connection.close)
    functions.install(self.connection, None)

  def value(self, expression):
    return self.connection.execute(f"SELECT {expression}").fetchone()[0]

  def test_values_are_mysqls(self):
    for expression, value in (
      ("AS_MYSQL_TEXT(10.0, 0)", "10"),
      ("AS_MYSQL_TEXT(10.5, 0)", "10.5"),
      ("AS_MYSQL_TEXT(7 * 1.1, 0)", "7.700000000000001"),
      ("AS_MYSQL_TEXT(3, 0)", "3"),
      ("AS_MYSQL_TEXT('3.0', 0)", "3.0"),
      ("AS_MYSQL_TEXT(NULL, 0)", None),
      ("SUBSTRING_INDEX('a.b.c', '.', 2)", "a.b"),
      ("SUBSTRING_INDEX('a.b.c', '.', -1)", "c"),
      ("SUBSTRING_INDEX('a.b.c', '.', 0)", ""),
      ("SUBSTRING_INDEX('abc', '.', 5)", "abc"),
      ("SUBSTRING_INDEX(NULL, '.', 5)", None),
      ("CONCAT_WS('-', 'a', NULL, 2)", "a-2"),
      ("CONCAT_WS(NULL, 'a')", None),
      ("REVERSE('abc')", "cba"),
      ("REVERSE(NULL)", None),
      ("YEAR('2020-05-31 10:00')", 2020),
      ("MONTH('2020-05-31')", 5),
      ("DAY('2020-05-31')", 31),
      ("DAY('May')", None),
    ):
      with self.subTest(expression=expression):
        self.assertEqual(self.value(expression), value)


class MeterTest(unittest.TestCase):
  def test_calls_are_charged_for_what_they_read_and_return(self):
    connection, meter = sqlite3.connect(":memory:"), functions.StatementMeter()
    self.addCleanup(connection.close)
    functions.install(connection, meter)
    for sql in (
      f"SELECT {functions.LOCATE}('yyyyyyyyyy', 'x')",
      "SELECT REPEAT('x', 20)",
      "SELECT 'aaaaaaaaa' LIKE '%x%'",
      "SELECT STDDEV(1)",
    ):
      with self.subTest(sql):
        meter.allow(100, math.inf)
        connection.execute(sql).fetchall()
        self.assertLess(meter.units, 90)
        meter.allow(8, math.inf)
        with self.assertRaises(sqlite3.OperationalError):
          connection.execute(sql).fetchall()
        self.assertTrue(meter.is_over)
