"""Tests the SQL of statements."""

import unittest

from environments.dbbench.generation.statement import (
  Delete,
  Insert,
  Select,
  Update,
  Where,
  name,
  text,
)

OSLO = Where("city", "=", "Oslo")
DEAR = Where("price", ">", "20", is_number=True)


class SqlTest(unittest.TestCase):
  def test_statements(self):
    for statement, sql in {
      Select("t", None, "city"): "SELECT city FROM t",
      Select("t", OSLO, "shop"): "SELECT shop FROM t WHERE city = 'Oslo'",
      Select("t", DEAR, "shop", aggregate="COUNT"): (
        "SELECT COUNT(*) FROM t WHERE price + 0 > 20"
      ),
      Select("t", None, "price", aggregate="SUM"): (
        "SELECT SUM(price + 0) FROM t"
      ),
      Select("t", None, "price", aggregate="MAX", cast=False): (
        "SELECT MAX(price) FROM t"
      ),
      Select("t", OSLO, "shop", order_by="price", descending=True): (
        "SELECT shop FROM t WHERE city = 'Oslo' ORDER BY price + 0 DESC LIMIT 1"
      ),
      Select("t", None, "shop", order_by="price", cast=False): (
        "SELECT shop FROM t ORDER BY price LIMIT 1"
      ),
      Insert("t", values=("a", "1")): "INSERT INTO t VALUES ('a', '1')",
      Update("t", DEAR, "city", "Rome"): (
        "UPDATE t SET city = 'Rome' WHERE price + 0 > 20"
      ),
      Update("t", None, "city", "Rome"): "UPDATE t SET city = 'Rome'",
      Delete("t", OSLO): "DELETE FROM t WHERE city = 'Oslo'",
      Delete("t"): "DELETE FROM t",
    }.items():
      with self.subTest(sql=sql):
        self.assertEqual(statement.sql(), sql)

  def test_uncast_conditions_compare_text(self):
    self.assertEqual(Where("price", ">", "20").sql(), " WHERE price > '20'")

  def test_quotes(self):
    self.assertEqual(name("old shops"), "`old shops`")
    self.assertEqual(name("a`b"), "`a``b`")
    self.assertEqual(text("it's a \\"), "'it''s a \\\\'")
