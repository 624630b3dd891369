"""Tests the types of expressions and their Python values."""

import unittest
from decimal import Decimal

import sqlglot

from environments.dbbench.mysql.types import MySQLType, type_of


def type_in(expression: str) -> MySQLType | None:
  return type_of(sqlglot.parse_one(expression, read="mysql"))


class TypeTest(unittest.TestCase):
  def test_families(self):
    for family, expressions in {
      "text": "a; 'x'; MAX(a); CONCAT(a, b); LOWER(a); CAST(1 AS CHAR)",
      "int": "1; COUNT(*); CAST(a AS SIGNED); 1 + 2; a = 1; -3",
      "double": "SUM(a); AVG(a); a + 0; MAX(a + 0); SUM(a * 2); -a; 1e3; "
      "ROUND(AVG(a), 2); a / 2; SUM(a) - MIN(b); (SELECT AVG(a) FROM t)",
    }.items():
      for expression in expressions.split("; "):
        with self.subTest(expression=expression):
          self.assertEqual(type_in(expression), MySQLType(family))

  def test_scales_of_decimals(self):
    for expression, scale in {
      "1.50": 2,
      "1.5 + 1": 1,
      "1.5 * 1.25": 3,
      "7 / 2": 4,
      "SUM(CAST(a AS SIGNED))": 0,
      "AVG(CAST(a AS SIGNED))": 4,
      "CAST(a AS DECIMAL)": 0,
      "SUM(CAST(a AS DECIMAL(10, 2)))": 2,
      "ROUND(7.456, 1)": 1,
      "COUNT(*) / 2": 4,
    }.items():
      with self.subTest(expression=expression):
        self.assertEqual(type_in(expression), MySQLType("decimal", scale))

  def test_other_expressions_have_no_type(self):
    for expression in ("SLEEP(1)", "SUM(SLEEP(1))", "1 + SLEEP(1)", "NULL"):
      with self.subTest(expression=expression):
        self.assertIsNone(type_in(expression))

  def test_values(self):
    self.assertEqual(repr(MySQLType("double").python_value(12)), "12.0")
    self.assertEqual(repr(MySQLType("int").python_value(2.0)), "2")
    self.assertEqual(
      MySQLType("decimal", 2).python_value(1.005), Decimal("1.01")
    )
    self.assertIsNone(MySQLType("double").python_value(None))
    self.assertEqual(MySQLType("double").python_value("x"), "x")
