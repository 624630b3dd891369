"""Translates SQLite's errors into those that MySQL's connector prints."""

import re
import sqlite3

from sqlglot import exp

from environments.dbbench.mysql.dialect import parsed
from environments.dbbench.mysql.syntax import (
  StatementRefused,
  nodes_of,
  syntax_error,
)

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
  (r"no such table: (.*)", "1146 (42S02): Table 'dbbench.{0}' doesn't exist"),
  (
    r"table .* has no column named (.*)",
    "1054 (42S22): Unknown column '{0}' in 'field list'",
  ),
  (
    r"no such function: (.*)",
    "1305 (42000): FUNCTION dbbench.{0} does not exist",
  ),
  (
    r"\d+ values for \d+ columns|table .* has \d+ columns but .*",
    "1136 (21S01): Column count doesn't match value count at row 1",
  ),
  (
    r"ambiguous column name: (.*)",
    "1052 (23000): Column '{0}' in field list is ambiguous",
  ),
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
# The clauses in MySQL's order of looking for columns.
_CLAUSES: tuple[tuple[type[exp.Expr], str], ...] = (
  (exp.Where, "where clause"),
  (exp.Join, "on clause"),
  (exp.Group, "group statement"),
  (exp.Having, "having clause"),
  (exp.Order, "order clause"),
)
_FIRST = "field list"
_ORDER = (_FIRST, *(name for _, name in _CLAUSES))


def mysql_error(error: sqlite3.Error, sql: str) -> str:
  """Returns MySQL's error for what SQLite raised when it ran `sql`."""
  message = str(error)
  table = re.fullmatch(r"no such table: (.*)", message, re.DOTALL)
  if table and re.match(r"\s*DROP\b", sql, re.IGNORECASE):
    return f"1051 (42S02): Unknown table 'dbbench.{table[1]}'"
  column = re.fullmatch(r"no such column: ([^\"].*)", message, re.DOTALL)
  if column:
    return _unknown_column(column[1], _clause_of(column[1], sql))
  if "ORDER BY term out of range" in message or "GROUP BY term out" in message:
    number = re.search(r"\bBY\s+(\d+)", sql, re.IGNORECASE)
    clause = "order clause" if "ORDER" in message else "group statement"
    return _unknown_column(number[1] if number else "", clause)
  for pattern, words in _ERRORS:
    match = re.fullmatch(pattern, message, re.DOTALL)
    if match:
      return words.format(*match.groups())
  if any(text in message for text in _SYNTAX):
    return syntax_error(sql, 0)
  return f"1105 (HY000): {message}"


def _unknown_column(column: str, clause: str) -> str:
  return f"1054 (42S22): Unknown column '{column}' in '{clause}'"


def _clause_of(column: str, sql: str) -> str:
  """Returns the clause that MySQL names: the first one with the column."""
  name = column.rpartition(".")[2].lower()
  try:
    tree = parsed(sql)
  except StatementRefused:
    return _FIRST
  clauses = {
    _innermost_clause(node)
    for node in nodes_of(tree, exp.Column)
    if node.name.lower() in (name, column.lower())
  }
  return min(clauses, key=_ORDER.index, default=_FIRST)


def _innermost_clause(node: exp.Expr) -> str:
  parent = node.parent
  while parent is not None and not isinstance(parent, exp.Query):
    for kind, name in _CLAUSES:
      if isinstance(parent, kind):
        return name
    parent = parent.parent
  return _FIRST
