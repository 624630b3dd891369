"""Replaces calls of MySQL functions by calls that SQLite can run.

Each replacement changes one node of the tree in place.
"""

import functools
from collections.abc import Callable, Mapping

from sqlglot import exp

from environments.dbbench.engines.base import DATABASE
from environments.dbbench.mysql import collation, functions, types


def replace_function(node: exp.Expr) -> None:
  """Replaces the node if it calls a function that SQLite lacks."""
  replace = _REPLACEMENTS.get(type(node))
  if replace is not None:
    replace(node)


def plus_zero(operand: exp.Expr) -> exp.Add:
  """Converts the operand to a number."""
  return exp.Add(this=operand.copy(), expression=exp.Literal.number(0))


def _by_call(name: str, *keys: str) -> Callable[[exp.Expr], None]:
  """Returns a replacement by a call with some of the node's arguments."""

  def replace(node: exp.Expr) -> None:
    node.replace(exp.func(name, *(node.args[key] for key in keys)))

  return replace


_date = _by_call(functions.DATE, "this")


def _length(node: exp.Expr) -> None:
  if node.args.get("binary"):
    node.replace(exp.func(functions.BYTE_LENGTH, node.this))


def _locate(node: exp.Expr) -> None:
  start = node.args.get("position") or exp.Literal.number(1)
  node.replace(
    exp.func(functions.LOCATE, node.this, node.args["substr"], start)
  )


def _format(node: exp.Expr) -> None:
  number, digits = plus_zero(node.this), node.args["format"]
  node.replace(exp.func(functions.FORMAT, number, digits))


def _truncate(node: exp.Expr) -> None:
  digits = node.args.get("decimals")
  if digits is not None:
    number = plus_zero(node.this)
    node.replace(exp.func(functions.TRUNCATE, number, digits))


def _str_to_date(node: exp.Expr) -> None:
  format_ = types.written_format(node)
  node.replace(exp.func(functions.STR_TO_DATE, node.this, format_))


def _date_format(node: exp.Expr) -> None:
  value = node.this.this if isinstance(node.this, exp.Cast) else node.this
  format_ = types.written_format(node)
  node.replace(exp.func(functions.DATE_FORMAT, value, format_))


def _cast(node: exp.Expr) -> None:
  target = node.args["to"]
  if target.this == exp.DataType.Type.DATE:
    _date(node)
  elif target.this == exp.DataType.Type.BINARY:  # BINARY text
    node.replace(_collated(node.this, "BINARY"))
  elif target.this in types.INTEGERS:
    inner = types.type_of(node.this)
    if inner is not None and inner.family in ("decimal", "double"):
      integer = exp.func(
        functions.ROUND, node.this.copy(), "0", str(int(inner == types.DOUBLE))
      )
      node.this.replace(integer)
  elif target.is_type(exp.DataType.Type.CHAR) and target.expressions:
    size = target.expressions[0].this.copy()
    target.set("expressions", None)
    node.replace(exp.func("SUBSTR", node.copy(), "1", size))


def _collated(node: exp.Expr, name: str) -> exp.Expr:
  return exp.Collate(this=node.copy(), expression=exp.Var(this=name))


def _collate(node: exp.Expr) -> None:
  is_binary = node.expression.name.lower().endswith(("_bin", "binary"))
  node.expression.replace(
    exp.Var(this="BINARY" if is_binary else collation.NAME)
  )


def _round(node: exp.Expr) -> None:
  """Rounds by the type of the number; SQLite rounds all as decimals."""
  known = types.type_of(node.this)
  if known is None or known == types.INT:
    return
  is_double = str(int(known.family in ("text", "double")))
  digits = node.args.get("decimals") or exp.Literal.number(0)
  number = plus_zero(node.this) if known == types.TEXT else node.this
  node.replace(exp.func(functions.ROUND, number, digits, is_double))


def _substring(node: exp.Expr) -> None:
  size = node.args.get("length")
  arguments = [node.this, node.args.get("start"), *([size] if size else [])]
  if None not in arguments:
    node.replace(exp.func(functions.SUBSTRING, *arguments))


def _part_of(name: str) -> Callable[[exp.Expr], None]:
  def replace(node: exp.Expr) -> None:
    inner = node.this
    if isinstance(inner, exp.TsOrDsToDate):
      inner = inner.this
    node.replace(_part(name, inner))

  return replace


def _part(name: str, value: exp.Expr) -> exp.Expr:
  return exp.func(functions.DATE_PART, exp.Literal.string(name), value.copy())


def _extract(node: exp.Expr) -> None:
  node.replace(_part(node.this.name.upper(), node.expression))


def _add_interval(node: exp.Expr) -> None:
  """Replaces DATE_ADD, DATE_SUB, and dates plus or minus an interval."""
  count, unit = node.expression, node.args.get("unit")
  if isinstance(count, exp.Interval):
    count, unit = count.this, count.args.get("unit")
  elif not isinstance(node, exp.DateAdd | exp.DateSub):
    return
  if isinstance(node, exp.DateSub | exp.Sub):
    count = exp.Neg(this=exp.paren(plus_zero(count)))
  name = exp.Literal.string(unit.name.upper() if unit else "DAY")
  node.replace(exp.func(functions.DATE_ADD, node.this, count, name))


def _timestamp_difference(node: exp.Expr) -> None:
  unit = exp.Literal.string(node.args["unit"].name.upper())
  node.replace(
    exp.func(functions.TIMESTAMP_DIFF, unit, node.expression, node.this)
  )


def _count(node: exp.Expr) -> None:
  """Replaces the columns of COUNT(DISTINCT a, b) by one text.

  Rows with a NULL in any of them do not count.
  """
  distinct = node.this
  if not isinstance(distinct, exp.Distinct) or len(distinct.expressions) < 2:
    return
  parts: list[exp.Expr] = [
    exp.cast(e.copy(), "text") for e in distinct.expressions
  ]
  joined = functools.reduce(
    lambda a, b: exp.DPipe(
      this=exp.DPipe(this=a, expression=exp.Literal.string("\x1f")),
      expression=b,
    ),
    parts,
  )
  distinct.set("expressions", [_collated(joined, collation.NAME)])


def _concat(node: exp.Expr) -> None:
  """Adds parentheses, because SQLite's || binds more tightly."""
  for argument in list(node.expressions):
    if isinstance(argument, exp.Binary | exp.Unary | exp.Predicate):
      argument.replace(exp.paren(argument.copy()))


def _choice(node: exp.Expr) -> None:
  """Keeps the collation: SQLite forgets that of the arguments."""
  if types.type_of(node) in (types.TEXT, None) and not isinstance(
    node.parent, exp.Collate | exp.Func | exp.Binary
  ):
    node.replace(_collated(node, collation.NAME))


def _date_difference(node: exp.Expr) -> None:
  if not node.args.get("unit"):
    days = exp.func(functions.DATE_DIFF, node.this, node.expression)
    node.replace(days)


def _of_number(node: exp.Expr) -> None:
  """Converts text to a number; SQLite would return NULL for other text."""
  if types.type_of(node.this) in (types.TEXT, None):
    node.this.replace(exp.Paren(this=plus_zero(node.this)))


def _replace_by(node: exp.Expr, text: str) -> None:
  node.replace(exp.Literal.string(text))


def _replace_by_call(node: exp.Expr, name: str) -> None:
  node.replace(exp.Anonymous(this=name))


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
  exp.Collate: _collate,
  exp.Mod: _by_call(functions.MOD, "this", "expression"),
  exp.Round: _round,
  exp.Hex: _by_call(functions.HEX, "this"),
  exp.Substring: _substring,
  exp.Count: _count,
  exp.Concat: _concat,
  exp.Nullif: _choice,
  exp.Extract: _extract,
  **dict.fromkeys((exp.DateAdd, exp.DateSub, exp.Add, exp.Sub), _add_interval),
  exp.TimestampDiff: _timestamp_difference,
  exp.CurrentSchema: lambda node: _replace_by(node, DATABASE),
  exp.CurrentVersion: lambda node: _replace_by(node, functions.SERVER_VERSION),
  exp.CurrentTimestamp: lambda node: _replace_by_call(node, "NOW"),
  exp.CurrentDate: lambda node: _replace_by_call(node, "CURDATE"),
  exp.CurrentUser: lambda node: _replace_by_call(node, "CURRENT_USER"),
  **{
    kind: _part_of(name)
    for kind, name in (
      (exp.Hour, "HOUR"),
      (exp.Minute, "MINUTE"),
      (exp.Second, "SECOND"),
      (exp.Quarter, "QUARTER"),
      (exp.Week, "WEEK"),
      (exp.DayOfWeek, "DAYOFWEEK"),
      (exp.DayOfMonth, "DAYOFMONTH"),
      (exp.DayOfYear, "DAYOFYEAR"),
      (exp.Dayname, "DAYNAME"),
      (exp.LastDay, "LAST_DAY"),
    )
  },
  **dict.fromkeys(
    (exp.Floor, exp.Ceil, exp.Sqrt, exp.Pow, exp.Sign, exp.Abs), _of_number
  ),
}
