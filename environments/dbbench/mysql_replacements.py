"""Puts functions of ours where SQLite has none of MySQL's, or another.

A replacement works on one node of the tree, in place.
"""

from collections.abc import Callable, Mapping

from sqlglot import exp

from environments.dbbench import mysql_functions
from environments.dbbench.mysql_types import TEXT, type_of, written_format


def replace_function(node: exp.Expr) -> None:
  """Replaces the call of a function, if it is one of those."""
  replace = _REPLACEMENTS.get(type(node))
  if replace is not None:
    replace(node)


def plus_zero(operand: exp.Expr) -> exp.Add:
  """The operand as a number."""
  return exp.Add(this=operand.copy(), expression=exp.Literal.number(0))


def _length(node: exp.Expr) -> None:
  if node.args.get("binary"):
    node.replace(exp.func(mysql_functions.BYTE_LENGTH, node.this))


def _locate(node: exp.Expr) -> None:
  start = node.args.get("position") or exp.Literal.number(1)
  node.replace(
    exp.func(mysql_functions.LOCATE, node.this, node.args["substr"], start)
  )


def _format(node: exp.Expr) -> None:
  number, digits = plus_zero(node.this), node.args["format"]
  node.replace(exp.func(mysql_functions.FORMAT, number, digits))


def _truncate(node: exp.Expr) -> None:
  digits = node.args.get("decimals")
  if digits is not None:
    number = plus_zero(node.this)
    node.replace(exp.func(mysql_functions.TRUNCATE, number, digits))


def _str_to_date(node: exp.Expr) -> None:
  format_ = written_format(node)
  node.replace(exp.func(mysql_functions.STR_TO_DATE, node.this, format_))


def _date_format(node: exp.Expr) -> None:
  value = node.this.this if isinstance(node.this, exp.Cast) else node.this
  format_ = written_format(node)
  node.replace(exp.func(mysql_functions.DATE_FORMAT, value, format_))


def _date(node: exp.Expr) -> None:
  node.replace(exp.func(mysql_functions.DATE, node.this))


def _cast(node: exp.Expr) -> None:
  if node.args["to"].this == exp.DataType.Type.DATE:
    _date(node)


def _date_difference(node: exp.Expr) -> None:
  if not node.args.get("unit"):
    days = exp.func(mysql_functions.DATE_DIFF, node.this, node.expression)
    node.replace(days)


def _of_number(node: exp.Expr) -> None:
  """SQLite's answer for a text that is no number would be nothing."""
  if type_of(node.this) in (TEXT, None):
    node.this.replace(exp.Paren(this=plus_zero(node.this)))


_REPLACEMENTS: Mapping[type[exp.Expr], Callable[[exp.Expr], None]] = {
  exp.Length: _length,
  exp.StrPosition: _locate,
  exp.NumberToStr: _format,
  exp.Trunc: _truncate,
  exp.StrToDate: _str_to_date,
  exp.TimeToStr: _date_format,
  exp.TsOrDsToDate: _date,
  exp.Cast: _cast,
  exp.DateDiff: _date_difference,
  **dict.fromkeys(
    (exp.Floor, exp.Ceil, exp.Sqrt, exp.Pow, exp.Sign, exp.Abs), _of_number
  ),
}
