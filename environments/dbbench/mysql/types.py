"""Infers MySQL's types of expressions over tables whose columns are all TEXT.

Replies show types: SUM of text is a double, 12.0 in MySQL and 12 in SQLite.
Values of expressions that are not listed stay as SQLite returns them.
"""

import dataclasses
import datetime
import decimal
from collections.abc import Callable

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.time import format_time

from environments.dbbench.mysql.dates import has_time

DIVISION_DIGITS = 4  # MySQL's div_precision_increment


@dataclasses.dataclass(frozen=True)
class MySQLType:
  """A type of MySQL's."""

  family: str  # text, int, decimal, double, date or datetime
  scale: int = 0  # digits behind the point of a decimal

  @property
  def is_number(self) -> bool:
    return self.family in ("int", "decimal", "double")

  def python_value(self, cell: object) -> object:
    """Returns the value that MySQL's connector has for SQLite's cell.

    A value out of the type's range stays as it is.
    """
    try:
      return self._converted(cell)
    except (ArithmeticError, ValueError):
      return cell

  def _converted(self, cell: object) -> object:
    if isinstance(cell, str) and self.family in ("date", "datetime"):
      moment = datetime.datetime.fromisoformat(cell)
      return moment if self.family == "datetime" else moment.date()
    if not isinstance(cell, int | float):
      return cell
    if self.family == "double":
      return float(cell)
    if self.family == "int":
      return int(cell)
    if self.family == "decimal":
      digits = decimal.Decimal(1).scaleb(-self.scale)
      return decimal.Decimal(repr(cell)).quantize(
        digits, rounding=decimal.ROUND_HALF_UP
      )
    return cell


TEXT = MySQLType("text")
INT = MySQLType("int")
DOUBLE = MySQLType("double")
DATE = MySQLType("date")
DATETIME = MySQLType("datetime")

_TEXTS = (
  exp.Column,
  exp.Concat,
  exp.Lower,
  exp.Upper,
  exp.Trim,
  exp.Substring,
  exp.Left,
  exp.Right,
  exp.Replace,
  exp.Pad,
  exp.Repeat,
  exp.NumberToStr,
  exp.TimeToStr,
  exp.GroupConcat,
)
_SPREADS = (
  exp.Stddev,
  exp.StddevPop,
  exp.StddevSamp,
  exp.Variance,
  exp.VariancePop,
)
_COUNTS = (
  exp.Count,
  exp.Length,
  exp.StrPosition,
  exp.Ascii,
  exp.DateDiff,
  exp.Year,
  exp.Month,
  exp.Day,
  exp.Predicate,
  exp.Boolean,
  exp.Connector,
)
INTEGERS = frozenset(
  {
    exp.DataType.Type.INT,
    exp.DataType.Type.BIGINT,
    exp.DataType.Type.UINT,
    exp.DataType.Type.UBIGINT,
  }
)


def type_of(node: exp.Expr | None) -> MySQLType | None:
  """Returns the type of a MySQL expression; None if it is not known."""
  if node is None:
    return None
  for kinds, rule in _RULES:
    if isinstance(node, kinds):
      return rule(node)
  return None


def _of_literal(node: exp.Expr) -> MySQLType:
  if node.is_string:
    return TEXT
  text = str(node.this)
  if "e" in text.lower():
    return DOUBLE
  _, point, digits = text.partition(".")
  return MySQLType("decimal", len(digits)) if point else INT


def _of_cast(node: exp.Expr) -> MySQLType | None:
  target = node.args["to"]
  if target.this in INTEGERS:
    return INT
  if target.this == exp.DataType.Type.DECIMAL:
    sizes = [int(size.name) for size in target.expressions]
    return MySQLType("decimal", sizes[1] if len(sizes) > 1 else 0)
  if target.this in (exp.DataType.Type.DOUBLE, exp.DataType.Type.FLOAT):
    return DOUBLE
  if target.this == exp.DataType.Type.DATE:
    return DATE
  return TEXT if target.is_type(*exp.DataType.TEXT_TYPES) else None


def _of_arithmetic(node: exp.Expr) -> MySQLType | None:
  left, right = type_of(node.this), type_of(node.args.get("expression"))
  if left is None or right is None:
    return None
  families = {left.family, right.family}
  if families & {"text", "double"}:
    return DOUBLE
  if isinstance(node, exp.Div):
    return MySQLType("decimal", left.scale + DIVISION_DIGITS)
  if families == {"int"}:
    return INT
  if isinstance(node, exp.Mul):
    return MySQLType("decimal", left.scale + right.scale)
  return MySQLType("decimal", max(left.scale, right.scale))


def _of_round(node: exp.Expr) -> MySQLType | None:
  inner, digits = type_of(node.this), node.args.get("decimals")
  if inner is None or inner.family in ("text", "double"):
    return inner and DOUBLE
  if digits is None or inner.family == "int":
    return MySQLType(inner.family)
  if isinstance(digits, exp.Neg):
    return MySQLType("decimal")
  if not isinstance(digits, exp.Literal):
    return None
  return MySQLType("decimal", min(inner.scale, int(digits.name)))


def written_format(node: exp.Expr) -> exp.Expr:
  """Returns the format of a date in MySQL's form; sqlglot translated it."""
  format_: exp.Expr = node.args["format"]
  if not isinstance(format_, exp.Literal):
    return format_
  return exp.Literal.string(
    format_time(format_.name, MySQL.INVERSE_TIME_MAPPING) or ""
  )


def _of_sign(node: exp.Expr) -> MySQLType | None:
  inner = type_of(node.this)
  return DOUBLE if inner == TEXT else inner


def _of_subquery(node: exp.Expr) -> MySQLType | None:
  query = node.this
  if not isinstance(query, exp.Select) or len(query.expressions) != 1:
    return None
  return type_of(query.expressions[0])


def _always(result: MySQLType) -> Callable[[exp.Expr], MySQLType]:
  return lambda node: result


def _exact(result: Callable[[MySQLType], MySQLType]) -> "_Rule":
  """Returns a rule for functions that are exact for exact numbers only."""

  def rule(node: exp.Expr) -> MySQLType | None:
    inner = type_of(node.this)
    if inner is None or inner.family in ("text", "double"):
      return inner and DOUBLE
    return result(inner)

  return rule


_Rule = Callable[[exp.Expr], MySQLType | None]
_RULES: tuple[tuple[type | tuple[type, ...], _Rule], ...] = (
  (exp.Literal, _of_literal),
  (_TEXTS, _always(TEXT)),
  (exp.Sum, _exact(lambda inner: MySQLType("decimal", inner.scale))),
  (
    exp.Avg,
    _exact(lambda inner: MySQLType("decimal", inner.scale + DIVISION_DIGITS)),
  ),
  (
    (exp.Max, exp.Min, exp.Paren, exp.Alias, exp.Window),
    lambda node: type_of(node.this),
  ),
  (_SPREADS, _always(DOUBLE)),
  ((exp.CurrentDate, exp.LastDay), _always(DATE)),
  (exp.CurrentTimestamp, _always(DATETIME)),
  ((exp.Neg, exp.Abs), _of_sign),
  ((exp.Floor, exp.Ceil), _exact(lambda inner: INT)),
  (exp.Subquery, _of_subquery),
  ((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod), _of_arithmetic),
  (exp.Cast, _of_cast),
  ((exp.Round, exp.Trunc), _of_round),
  (
    exp.StrToDate,
    lambda node: DATETIME if has_time(written_format(node).name) else DATE,
  ),
  (exp.TsOrDsToDate, _always(DATE)),
  (_COUNTS, _always(INT)),
)
