"""Tests the SQL that SQLite gets."""

import unittest

from environments.dbbench.mysql.dialect import (
  MAX_SQL_CHARS,
  StatementRefused,
  translate,
)


class TranslateTest(unittest.TestCase):
  def test_numbers_make_text_compare_as_a_number(self):
    for condition, translated in {
      "a > 9": "(a + 0) > 9",
      "9 < a": "9 < (a + 0)",
      "a > '9'": "a > '9'",
      "a + 0 > '9'": "a + 0 > ('9' + 0)",
      "a IN (1, 2)": "(a + 0) IN (1, 2)",
      "a BETWEEN 1 AND 2": "(a + 0) BETWEEN 1 AND 2",
      "a = b": "a = b",
      "LOWER(a) = 'X'": "LOWER(a) COLLATE MYSQL = 'X'",
    }.items():
      with self.subTest(condition=condition):
        statement = translate(f"SELECT a FROM t WHERE {condition}")
        self.assertEqual(statement.sql, f"SELECT a FROM t WHERE {translated}")

  def test_assignments_are_not_comparisons(self):
    self.assertEqual(
      translate("UPDATE t SET a = 5 WHERE b = 6").sql,
      "UPDATE t SET a = '5' WHERE (b + 0) = 6",
    )

  def test_literals_reach_text_columns_in_mysqls_form(self):
    self.assertEqual(
      translate("INSERT INTO t VALUES (1.50, -3, 007, .5, 1e2, 'x')").sql,
      "INSERT INTO t VALUES ('1.50', '-3', '7', '0.5', '100', 'x')",
    )

  def test_unknown_names_do_not_become_strings(self):
    self.assertEqual(
      translate("SELECT `a b` FROM `c``d`").sql, "SELECT `a b` FROM `c``d`"
    )
    self.assertEqual(translate('SELECT "a"').sql, "SELECT 'a'")

  def test_result_types(self):
    types = translate("SELECT a, COUNT(*), SUM(a) FROM t").types
    self.assertEqual([t.family for t in types], ["text", "int", "double"])
    self.assertEqual(translate("SELECT * FROM t").types, ())

  def test_descriptions(self):
    for sql in ("DESCRIBE `a b`", "DESC `a b`", "SHOW COLUMNS FROM `a b`"):
      with self.subTest(sql=sql):
        self.assertEqual(translate(sql).describes, "a b")

  def test_transactions_have_nothing_to_run(self):
    for sql in ("BEGIN", "COMMIT", "ROLLBACK", "START TRANSACTION"):
      with self.subTest(sql=sql):
        self.assertEqual(translate(sql).sql, "")

  def test_statements_that_mysql_refuses(self):
    for sql in (
      "",
      "-- nothing",
      "SELEC 1",
      "SELECT 'a",
      "SELECT " + "(" * 5000,
      "SELECT '" + "x" * MAX_SQL_CHARS + "'",
    ):
      with self.subTest(sql=sql[:40]), self.assertRaises(StatementRefused):
        translate(sql, is_quick=False)

  def test_nothing_reaches_beyond_the_database(self):
    for sql in (
      "ATTACH DATABASE '/tmp/x' AS x",
      "DETACH x",
      "PRAGMA max_page_count = 1",
      "VACUUM INTO '/tmp/x'",
      "ANALYZE",
      "REINDEX",
      "LOAD DATA INFILE '/etc/passwd' INTO TABLE t",
      "SELECT 1 INTO OUTFILE '/tmp/x'",
    ):
      with self.subTest(sql=sql), self.assertRaises(StatementRefused):
        translate(sql)
