"""Turns one MySQL statement into what SQLite must run to give MySQL's answer.

sqlglot translates the grammar; what it leaves to us is done here: numbers
against text compare as numbers, text compares without case, literals reach
TEXT columns as they were written. Only the listed kinds of statement pass, so
nothing that reaches beyond the database (ATTACH, PRAGMA) ever does.
"""

import dataclasses
import decimal
import functools
import logging

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ErrorLevel, SqlglotError

from environments.dbbench.engines.base import DATABASE, SYNTAX_ERROR
from environments.dbbench.mysql import (
  collation,
  foreign,
  names,
  rewrites,
  schema,
)
from environments.dbbench.mysql.functions import AS_TEXT
from environments.dbbench.mysql.grammar import MAX_NEAR_BYTES, refusal_of
from environments.dbbench.mysql.lexer import with_quoted_names
from environments.dbbench.mysql.replacements import plus_zero, replace_function
from environments.dbbench.mysql.types import TEXT, MySQLType, type_of

MAX_SQL_CHARS = 20_000  # longer statements are refused before they are parsed
CACHE_SIZE = 4096  # statements; the attempts of a group share many

_RUNS = (
  exp.Query,
  exp.Insert,
  exp.Update,
  exp.Delete,
  exp.Create,
  exp.Drop,
  exp.Alter,
)
# These do nothing here: every statement is committed as soon as it has run.
_EMPTY = (exp.Transaction, exp.Commit, exp.Rollback, exp.Set, exp.Use)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)

logging.getLogger("sqlglot").addFilter(
  lambda record: record.levelno > logging.WARNING
)


class Refused(Exception):
  """MySQL would not run the statement; says so in its words."""


class NotMySQL(Refused):
  """The statement cannot be read; `near` is where reading stopped."""

  def __init__(self, near: str, line: int = 1):
    super().__init__(SYNTAX_ERROR.format(near=near[:MAX_NEAR_BYTES], line=line))


@dataclasses.dataclass(frozen=True)
class Statement:
  """What SQLite runs; no SQL means that there is nothing to run.

  `types` are those of the result's columns as far as they are known, empty if
  the columns themselves are not. `describes` names a table to be described.
  `tree` is the statement as MySQL reads it, for what can be refused only where
  the tables are known. `reads_schema` says that views of `schema` are
  read.
  """

  sql: str = ""
  types: tuple[MySQLType | None, ...] = ()
  describes: str = ""
  like: str = "%"  # which columns are described
  is_full: bool = False  # whether all is described
  tree: exp.Expr | None = None
  reads_schema: bool = False


class _Dialect(SQLite):
  """SQLite with backticks: an unknown "name" would become a string."""

  class Tokenizer(SQLite.Tokenizer):
    IDENTIFIERS = ["`"]


_MYSQL = MySQL()
_SQLITE = _Dialect()


@functools.lru_cache(maxsize=CACHE_SIZE)
def translate(sql: str) -> Statement:
  """The statement for SQLite. Raises `Refused` for what MySQL would refuse."""
  described = schema.described_column(sql)
  if described is not None:
    return Statement(describes=described[0], like=described[1])
  tree = parsed(sql)
  if isinstance(tree, exp.Show):
    return _show(tree)
  if isinstance(tree, exp.Describe):
    return Statement(describes=tree.this.name)
  if isinstance(tree, exp.Use) and tree.this.name != DATABASE:
    raise Refused(f"1049 (42000): Unknown database '{tree.this.name}'")
  if isinstance(tree, _EMPTY):
    return Statement()
  if isinstance(tree, exp.TruncateTable):
    tree = exp.delete(tree.expressions[0])
  if not isinstance(tree, _RUNS):
    raise NotMySQL(sql)
  return _translated(tree)


def _translated(tree: exp.Expr) -> Statement:
  """What runs of a statement that MySQL reads as this tree."""
  refusal = names.refusal_of_form(tree)
  if refusal is not None:
    raise Refused(refusal)
  try:
    reads_schema = schema.read_names(tree)
  except schema.Unknown as error:
    raise Refused(str(error)) from error
  types = _result_types(tree)
  whole = tree.copy()
  tree = rewrites.rewritten(tree)
  _rewrite_all(tree)
  rewrites.guard_single_values(tree)
  return Statement(
    _SQLITE.generate(tree, copy=False, unsupported_level=ErrorLevel.IGNORE),
    types,
    tree=whole,
    reads_schema=reads_schema,
  )


def parsed(sql: str) -> exp.Expr:
  """The one statement as a tree. Raises `Refused` as `translate` does."""
  if len(sql) > MAX_SQL_CHARS:
    raise NotMySQL(sql)
  refusal = refusal_of(sql) or foreign.refusal_of(sql)
  if refusal is not None:
    raise Refused(refusal)
  try:
    sql = rewrites.with_known_words(sql)
    tokens = _MYSQL.tokenize(with_quoted_names(sql))
    trees = _MYSQL.parser().parse(tokens, sql)
  except SqlglotError as error:
    raise NotMySQL(_near(error, sql)) from error
  except RecursionError as error:
    raise NotMySQL(sql) from error
  found = [tree for tree in trees if tree is not None]
  if len(found) != 1:  # one at a time, as MySQL's connector has it
    raise NotMySQL(found[1].sql("mysql") if found else "")
  return found[0]


def _near(error: SqlglotError, sql: str) -> str:
  """The statement from where the parser gave up."""
  for place in getattr(error, "errors", ()):
    return f"{place.get('highlight') or ''}{place.get('end_context') or ''}"
  return sql


def _show(tree: exp.Show) -> Statement:
  target, like = tree.args.get("target"), tree.args.get("like")
  if tree.name == "COLUMNS" and target is not None:
    return Statement(
      describes=target.name,
      like=like.name if like is not None else "%",
      is_full=bool(tree.args.get("full")),
    )
  query = schema.shown(tree)
  if query is None:
    raise NotMySQL(tree.sql("mysql"))
  return Statement(query, reads_schema=True)


def _result_types(tree: exp.Expr) -> tuple[MySQLType | None, ...]:
  if not isinstance(tree, exp.Select) or tree.is_star:
    return ()
  return tuple(type_of(column) for column in tree.expressions)


def _rewrite_all(tree: exp.Expr) -> None:
  """Makes the statement do as MySQL does, in place."""
  if isinstance(tree, exp.Update):
    _unqualify(tree)
    _read_what_was_set(tree)
  types = [type_of(cell) for cell in _written(tree)]
  for child in list(tree.iter_expressions()):
    _rewrite_from(child)
  for cell, known in zip(_written(tree), types, strict=True):
    _write_as_text(cell, known)
  for select in tree.find_all(exp.Select):
    _keep_groups_in_order(select)


def _rewrite_from(node: exp.Expr) -> None:
  """Rewrites a node, and then what is below the node that stands there."""
  parent, key, index = node.parent, node.arg_key, node.index
  _rewrite(node)
  if parent is not None and key is not None:
    place = parent.args[key]
    node = place if index is None else place[index]
  for child in list(node.iter_expressions()):
    _rewrite_from(child)


def _read_what_was_set(update: exp.Update) -> None:
  """A column that has been set is read as it is now; in SQLite, as it was."""
  fresh: dict[str, exp.Expr] = {}
  for pair in update.expressions:
    for column in list(pair.expression.find_all(exp.Column)):
      if column.name.lower() in fresh:
        column.replace(fresh[column.name.lower()].copy())
    text = exp.func(AS_TEXT, pair.expression.copy(), exp.Literal.number(0))
    fresh[pair.this.name.lower()] = exp.cast(text, "text", copy=False)


def _keep_groups_in_order(select: exp.Select) -> None:
  """Groups come in the order of their first rows; SQLite would sort them."""
  source = select.args.get("from_")
  if (
    select.args.get("group")
    and not select.args.get("order")
    and not select.args.get("joins")
    and not select.args.get("distinct")
    and not isinstance(select.parent, exp.SetOperation)
    and source is not None
    and isinstance(source.this, exp.Table)
  ):
    rowid = exp.column("rowid", table=source.this.alias_or_name, quoted=True)
    select.order_by(exp.Min(this=rowid), copy=False)


def _rewrite(node: exp.Expr) -> None:
  """Makes one node of the tree do as MySQL does, in place."""
  if isinstance(node, _COMPARISONS):
    if not isinstance(node.parent, exp.Update) or node.arg_key != "expressions":
      _rewrite_operands(node.this, [node.expression])
  elif isinstance(node, exp.Between):
    _rewrite_operands(node.this, [node.args["low"], node.args["high"]])
  elif isinstance(node, exp.In) and node.expressions:
    _rewrite_in(node)
  elif isinstance(node, exp.Left):
    node.replace(exp.func("SUBSTR", node.this, "1", node.expression))
  elif isinstance(node, exp.Right):
    node.replace(exp.func("SUBSTR", node.this, exp.Neg(this=node.expression)))
  else:
    replace_function(node)


def _rewrite_in(node: exp.In) -> None:
  """Compares with each value by its own type, as MySQL does."""
  known = [type_of(value) for value in node.expressions]
  numbers = [kind is not None and kind.is_number for kind in known]
  if any(numbers) and not all(numbers) and type_of(node.this) == TEXT:
    tests = [
      exp.EQ(this=node.this.copy(), expression=value.copy())
      for value in node.expressions
    ]
    for test in tests:
      _rewrite_operands(test.this, [test.expression])
    node.replace(exp.paren(exp.or_(*tests, copy=False), copy=False))
  else:
    _rewrite_operands(node.this, node.expressions)


def _rewrite_operands(left: exp.Expr, right: list[exp.Expr]) -> None:
  types = [type_of(operand) for operand in (left, *right)]
  if None in types:
    return
  if any(known is not None and known.is_number for known in types):
    for operand, known in zip((left, *right), types, strict=True):
      if known is not None and not known.is_number:
        operand.replace(exp.Paren(this=plus_zero(operand)))
  elif not any(isinstance(o, exp.Column) for o in (left, *right)):
    left.replace(
      exp.Collate(this=left.copy(), expression=exp.Var(this=collation.NAME))
    )


def _unqualify(update: exp.Update) -> None:
  """Takes the table off the columns that are set; SQLite knows it anyway."""
  for pair in update.expressions:
    column = pair.this
    if isinstance(column, exp.Column) and column.table:
      if column.table.lower() != update.this.alias_or_name.lower():
        raise Refused(
          f"1054 (42S22): Unknown column '{column.table}.{column.name}' in "
          "'field list'"
        )
      column.set("table", None)


def _written(tree: exp.Expr) -> list[exp.Expr]:
  """The expressions whose values go into columns."""
  if isinstance(tree, exp.Update):
    return [pair.expression for pair in tree.expressions]
  if isinstance(tree, exp.Insert) and isinstance(tree.expression, exp.Values):
    rows = tree.expression.expressions
    return [cell for row in rows for cell in row.expressions]
  return []


def _write_as_text(cell: exp.Expr, known: MySQLType | None) -> None:
  """Numbers go into TEXT columns in MySQL's form: 1.50 stays, 10.0 is 10."""
  number = cell.this if isinstance(cell, exp.Neg) else cell
  if not isinstance(number, exp.Literal):
    if known is not None and known.is_number:
      # Of a decimal all digits are written, also those that are 0.
      digits = known.scale if known.family == "decimal" else 0
      scale = exp.Literal.number(digits)
      cell.replace(exp.func(AS_TEXT, cell.copy(), scale))
  elif not number.is_string:
    sign = "-" if cell is not number else ""
    cell.replace(exp.Literal.string(sign + _digits(str(number.this))))


def _digits(literal: str) -> str:
  """007 is 7, .5 is 0.5, 1.50 stays, and 1e2 is 100."""
  value = decimal.Decimal(literal)
  return f"{value.normalize() if 'e' in literal.lower() else value:f}"
