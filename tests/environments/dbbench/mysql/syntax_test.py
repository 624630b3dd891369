"""Tests which statements are refused, as MySQL 8.0 refuses them."""

import json
import pathlib
import unittest

from environments.dbbench.mysql.dialect import parsed
from environments.dbbench.mysql.syntax import StatementRefused

LISTED = json.loads(
  pathlib.Path(__file__).with_name("statements.json").read_text()
)
# Statement -> the part that error 1064 quotes. Some were recorded on MySQL.
STOPS = LISTED["stops"]
VALID = LISTED["valid"]  # which a careless parser refuses


def refusal_of(sql):
  """Returns the error of a statement that cannot be parsed, else None."""
  try:
    parsed(sql)
  except StatementRefused as error:
    return str(error)
  return None


class RefusalTest(unittest.TestCase):
  def test_error_1064_quotes_the_statement_from_where_mysql_stops(self):
    for sql, near in STOPS.items():
      with self.subTest(sql=sql):
        self.assertEqual(
          refusal_of(sql),
          "1064 (42000): You have an error in your SQL syntax; check the "
          "manual that corresponds to your MySQL server version for the right "
          f"syntax to use near '{near}' at line 1",
        )

  def test_valid_statements_are_not_refused(self):
    for sql in VALID:
      with self.subTest(sql=sql):
        self.assertIsNone(refusal_of(sql))

  def test_lines_are_counted(self):
    self.assertTrue(refusal_of("SELECT a,\nb\nc d e\n").endswith("at line 3"))
    self.assertTrue(
      refusal_of("SELECT a FROM t\nWHERE").endswith("near '' at line 2")
    )

  def test_eighty_bytes_are_quoted(self):
    for filling, left in (("x" * 99, 79), ("\u00e9" * 99, 39)):
      refusal = refusal_of(f"SELECT a FROM t WHERE (]{filling}")
      self.assertIn(f"near ']{filling[:left]}' at", refusal)

  def test_empty_statements_are_refused_with_an_error_of_their_own(self):
    for sql in ("", " ; ", "\n"):
      self.assertEqual(refusal_of(sql), "1065 (42000): Query was empty")

  def test_nonsense_is_refused_without_a_crash(self):
    for sql in (
      "(" * 9999,
      "SELECT " + "-" * 9999,
      "NOT " * 4999,
      "'" * 9999,
      "SELECT DATE_ADD(, , INTERVAL 1 DAY)",
      "SELECT DATE_ADD(a, INTERVAL DAY) ASC",
    ):
      self.assertIsNotNone(refusal_of(sql))
