"""Translates SQLite's errors into those that MySQL's connector prints."""

import re
import sqlite3

from environments.dbbench.mysql.syntax import syntax_error

_ERRORS = (
  (
    r"user-defined aggregate's .*",
    "1242 (21000): Subquery returns more than 1 row",
  ),
  (
    r"wrong number of arguments to function (?:MYSQL_)?(\w+)\(\)",
    "1582 (42000): Incorrect parameter count in the call to native function "
    "'{0}'",
  ),
  (
    r"aggregate functions are not allowed in the GROUP BY clause",
    "1111 (HY000): Invalid use of group function",
  ),
  (r"no such view: (.*)", "1051 (42S02): Unknown table 'dbbench.{0}'"),
  (
    r"no such column: \"(.*)\"",
    "1091 (42000): Can't DROP '{0}'; check that column/key exists",
  ),
  (r"no such column: (.*)", "1054 (42S22): Unknown column '{0}'"),
  (r"no such table: (.*)", "1146 (42S02): Table 'dbbench.{0}' doesn't exist"),
  (r"table .* has no column named (.*)", "1054 (42S22): Unknown column '{0}'"),
  (
    r"no such function: (.*)",
    "1305 (42000): FUNCTION dbbench.{0} does not exist",
  ),
  (
    r"\d+ values for \d+ columns|table .* has \d+ columns but .*",
    "1136 (21S01): Column count doesn't match value count at row 1",
  ),
  (r"ambiguous column name: (.*)", "1052 (23000): Column '{0}' is ambiguous"),
  (
    r"table [`\"]?(.*?)[`\"]? already exists",
    "1050 (42S01): Table '{0}' already exists",
  ),
  (r"duplicate column name: (.*)", "1060 (42S21): Duplicate column name '{0}'"),
  (
    r"misuse of aggregate: .*|misuse of aggregate function .*",
    "1111 (HY000): Invalid use of group function",
  ),
  (
    r"sub-select returns \d+ columns - expected 1|row value misused",
    "1241 (21000): Operand should contain 1 column(s)",
  ),
  (
    r"SELECTs to the left and right of .* do not have the same number .*",
    "1222 (21000): The used SELECT statements have a different number of "
    "columns",
  ),
)
_SYNTAX = ("syntax error", "incomplete input", "unrecognized token")


def mysql_error(error: sqlite3.Error, sql: str) -> str:
  """Returns MySQL's error for what SQLite raised when it ran `sql`."""
  message = str(error)
  table = re.fullmatch(r"no such table: (.*)", message, re.DOTALL)
  if table and re.match(r"\s*DROP\b", sql, re.IGNORECASE):
    return f"1051 (42S02): Unknown table 'dbbench.{table[1]}'"
  for pattern, words in _ERRORS:
    match = re.fullmatch(pattern, message, re.DOTALL)
    if match:
      return words.format(*match.groups())
  if any(text in message for text in _SYNTAX):
    return syntax_error(sql, 0)
  return f"1105 (HY000): {message}"
