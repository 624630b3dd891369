"""Translates a MySQL statement into one with which SQLite gives MySQL's result.

Only the listed kinds of statement pass, so nothing that reaches beyond the
database (ATTACH, PRAGMA) ever does.
"""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Iterator

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError, TokenError
from sqlglot.parsers.mysql import MySQLParser

from environments.dbbench.engines.base import DATABASE
from environments.dbbench.mysql import rewrites, schema, syntax
from environments.dbbench.mysql.syntax import (
  NotMySQL,
  StatementRefused,
  TooComplex,
  nodes_of,
)
from environments.dbbench.mysql.types import MySQLType, type_of

MAX_SQL_CHARS = 20_000  # longer statements are refused before they are parsed
MAX_RETREATS = 500  # tokens that a quick parse may read again
MAX_CACHED_CHARS = 500  # a tree takes about a kilobyte per character
CACHE_SIZE = 512  # statements; the episodes of a group share many

_RUNS = (
  exp.Query,
  exp.Insert,
  exp.Update,
  exp.Delete,
  exp.Create,
  exp.Drop,
  exp.Alter,
)
_ANSWERED = (exp.Show, exp.Describe, exp.TruncateTable)
# Without effect: every statement is committed as soon as it has run.
_EMPTY = (exp.Transaction, exp.Commit, exp.Rollback, exp.Set, exp.Use)
# Raised by sqlglot, and by code that reads its trees, on some nonsense.
_FAULTS = (
  AttributeError,
  LookupError,
  RuntimeError,
  SqlglotError,
  TypeError,
  ValueError,
)

logging.getLogger("sqlglot").addFilter(
  lambda record: record.levelno > logging.WARNING
)


@dataclasses.dataclass(frozen=True)
class Translation:
  """A statement for SQLite; empty SQL means that there is nothing to run."""

  sql: str = ""
  # Of the result's columns, where known; empty if the columns are not known.
  types: tuple[MySQLType | None, ...] = ()
  describes: str = ""  # the table to describe
  like: str = "%"  # the pattern of the columns to describe
  is_full: bool = False  # whether the description shows every property
  reads_schema: bool = False  # whether it reads views of `schema`
  changes_schema: bool = False


class _Parser(MySQLParser):
  """MySQL's parser; sqlglot may try 2^n ways to read n joins."""

  max_retreats: float = math.inf

  def _retreat(self, index: int) -> None:
    self.max_retreats -= int(self._index) - index
    if self.max_retreats < 0:
      raise TooComplex
    super()._retreat(index)


class _Dialect(SQLite):
  """SQLite with backticks: an unknown "name" would become a string."""

  class Tokenizer(SQLite.Tokenizer):
    IDENTIFIERS = ["`"]


_MYSQL = MySQL()
_SQLITE = _Dialect()


@contextlib.contextmanager
def reading(sql: str) -> Iterator[None]:
  """Raises `NotMySQL` where a statement's tree is one that no check expects."""
  try:
    yield
  except _FAULTS as error:
    raise NotMySQL(sql) from error


def translate(sql: str, *, is_quick: bool = True) -> Translation:
  """Returns the statement for SQLite. Raises `StatementRefused` as MySQL would.

  Raises `TooComplex` if it must be quick and might take long.
  """
  is_short = len(sql) <= MAX_CACHED_CHARS
  with reading(sql):
    return (_cached if is_short else _translation)(sql, is_quick)


def _translation(sql: str, is_quick: bool) -> Translation:
  described = schema.described_column(sql)
  if described is not None:
    return Translation(describes=described[0], like=described[1])
  tree = parsed(sql, is_quick=is_quick)
  if isinstance(tree, exp.Show):
    return _show(tree)
  if isinstance(tree, exp.Describe):
    return Translation(describes=tree.this.name)
  if isinstance(tree, exp.Use) and tree.this.name != DATABASE:
    raise StatementRefused(f"1049 (42000): Unknown database '{tree.this.name}'")
  if isinstance(tree, _EMPTY):
    return Translation()
  if isinstance(tree, exp.TruncateTable):
    tree = exp.delete(tree.expressions[0])
  return _translated(tree)


_cached = functools.lru_cache(maxsize=CACHE_SIZE)(_translation)


def _translated(tree: exp.Expr) -> Translation:
  reads_schema = schema.resolve_names(tree)
  for name in nodes_of(tree, exp.Identifier):
    name.meta.clear()  # positions of words, which would be copied
  changes_schema = isinstance(tree, exp.Create | exp.Drop | exp.Alter)
  types = _result_types(tree)
  tree = rewrites.rewritten(tree)
  translated = _SQLITE.generate(
    tree, copy=False, unsupported_level=ErrorLevel.IGNORE
  )
  return Translation(
    translated, types, reads_schema=reads_schema, changes_schema=changes_schema
  )


def parsed(sql: str, *, is_quick: bool = False) -> exp.Expr:
  """Parses one statement.

  Raises `NotMySQL` if sqlglot cannot parse it, plain `StatementRefused` if only
  MySQL refuses it, and `TooComplex` if it must be quick and might take long.
  """
  sql = sql.rstrip(syntax.BLANK)
  if not sql:
    raise StatementRefused(syntax.EMPTY)
  if len(sql) > MAX_SQL_CHARS:
    raise NotMySQL(sql)
  if is_quick:
    syntax.require_simple(sql)
  sql = rewrites.with_known_words(sql)
  bounds = syntax.split(sql)
  second = bounds[1][0] if len(bounds) > 1 else len(sql)
  with reading(sql):
    tree = _parse(sql, second, is_quick=is_quick)
  if second < len(sql):
    raise NotMySQL(sql, second)
  return tree


def _parse(sql: str, second: int, *, is_quick: bool) -> exp.Expr:
  """Parses the first statement of `sql`; the next one starts at `second`."""
  try:
    tree = _first_tree(sql, is_quick=is_quick)
  except TokenError as error:  # a quote that is never closed
    quotes = (t.start for t in syntax.tokens(sql) if t.word in ("'", '"', "`"))
    raise NotMySQL(sql, min(next(quotes, 0), second)) from error
  except ParseError as error:
    raise NotMySQL(sql, min(_stop(error, sql), second)) from error
  if not isinstance(tree, (*_RUNS, *_ANSWERED, *_EMPTY)):
    raise NotMySQL(sql)
  return tree


def _first_tree(sql: str, *, is_quick: bool) -> exp.Expr | None:
  # With the whole statement as context, its length gives the position.
  parser = _Parser(dialect=_MYSQL, error_message_context=MAX_SQL_CHARS)
  if is_quick:
    parser.max_retreats = MAX_RETREATS
  tree: exp.Expr | None = parser.parse(_MYSQL.tokenize(sql), sql)[0]
  return tree


def _stop(error: ParseError, sql: str) -> int:
  """Returns the position of the token that sqlglot could not use."""
  if not error.errors:
    return 0
  details = {key: str(value) for key, value in error.errors[0].items()}
  is_unexpected = details["description"].startswith("Invalid expression")
  if not details["end_context"].strip() and not is_unexpected:
    return len(sql)  # a token is missing at the end
  return len(details["start_context"])


def _show(tree: exp.Show) -> Translation:
  target, like = tree.args.get("target"), tree.args.get("like")
  if tree.name == "COLUMNS" and target is not None:
    return Translation(
      describes=target.name,
      like=like.name if like is not None else "%",
      is_full=bool(tree.args.get("full")),
    )
  query = schema.show_query(tree)
  if query is None:
    raise NotMySQL(tree.sql("mysql"))
  return Translation(query, reads_schema=True)


def _result_types(tree: exp.Expr) -> tuple[MySQLType | None, ...]:
  if not isinstance(tree, exp.Select) or tree.is_star:
    return ()
  return tuple(type_of(column) for column in tree.expressions)
