"""Runs MySQL statements on SQLite in memory, with or without a small budget.

A connection with a budget raises `TooComplex` for statements that are not done
within some ten milliseconds; they have changed nothing then. Without a budget
only the end of the process stops a statement; see `sqlite_process`. Databases
cannot reach files or other databases.
"""

import contextlib
import functools
import math
import re
import sqlite3
from collections.abc import Sequence

from agentrl_jax.errors import EnvironmentFault
from environments.dbbench.engines import base
from environments.dbbench.grading import Row, tables_hash
from environments.dbbench.mysql import collation, dialect, functions, schema
from environments.dbbench.mysql.dialect import Translation
from environments.dbbench.mysql.errors import mysql_error
from environments.dbbench.mysql.syntax import StatementRefused, TooComplex
from environments.dbbench.mysql.types import TEXT
from environments.dbbench.problem import Table
from environments.options import DBBenchOptions

MAX_CHARS = DBBenchOptions.max_result_chars
MAX_VALUE_BYTES = 1_000_000
MIN_PAGES = 1_024  # that a database may have, whatever its tables need
CACHED_DATABASES = 128  # the episodes of a group share one
ROOM = 4  # times the pages of the tables that a database may have
# The budget of a statement: steps of SQLite's virtual machine and characters
# that functions read or write, seconds, bytes of a value, and rows to grade.
QUICK_UNITS = 20_000
QUICK_S = 0.01
QUICK_BYTES = 4_096  # more for tables whose rows are longer
QUICK_ROWS = 2_000
STEPS_PER_CHECK = 1_000
_SCHEMA_VERSION = slice(40, 44)  # of a database's bytes
_FULL_DESCRIPTION = (  # of a column, behind its name
  "text",
  "utf8mb4_0900_ai_ci",
  "YES",
  "",
  None,
  "",
  "select,insert,update,references",
  "",
)
_PLAIN = re.compile("[0-9A-Za-z ]*").fullmatch  # NOCASE sorts it as MySQL does


class Connection:
  """One in-memory database. Every column is TEXT and compares without case.

  A connection can be filled again, since registering functions takes longer.
  """

  def __init__(
    self, *, is_quick: bool = False, max_result_chars: int = MAX_CHARS
  ):
    self._is_quick = is_quick
    self._max_result_chars = max_result_chars
    self._meter = functions.StatementMeter()
    self._connection = _connect()
    functions.install(self._connection, self._meter if is_quick else None)
    self._connection.execute("PRAGMA temp_store = MEMORY")
    self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    self._limit_values(MAX_VALUE_BYTES)
    if is_quick:
      self._connection.set_progress_handler(self._spend_steps, STEPS_PER_CHECK)
    self._is_changed = False  # the schema, by a statement
    self._max_bytes = MAX_VALUE_BYTES
    self.max_pages = 0

  def fill(self, tables: Sequence[Table]) -> None:
    """Replaces the database by one with these tables."""
    source, pages = _filled(tuple(tables))
    self._copy(source)
    self._limit_pages(max(MIN_PAGES, ROOM * pages))
    self._is_changed = False
    if self._is_quick:
      longest = max(
        (sum(map(len, r)) for table in tables for r in table.rows), default=0
      )
      # A character has four bytes at most.
      self._max_bytes = min(max(QUICK_BYTES, 8 * longest), MAX_VALUE_BYTES)
      self._limit_values(self._max_bytes)

  def load(self, data: bytes, max_pages: int) -> None:
    """Loads a database that was dumped into a connection that is new."""
    self._connection.deserialize(data)
    self._limit_pages(max_pages)

  def reload(self, before: bytes, after: bytes) -> None:
    """Replaces the database by what a statement has made of it."""
    with contextlib.closing(_connect()) as source:
      source.deserialize(after)
      self._copy(source)
    if before[_SCHEMA_VERSION] != after[_SCHEMA_VERSION]:
      self._is_changed = True
    else:
      self._limit_values(self._max_bytes)

  def _copy(self, source: sqlite3.Connection) -> None:
    # Virtual tables do not survive deserialize() in a connection that has any.
    self._meter.allow(math.inf, math.inf)
    self._limit_values(MAX_VALUE_BYTES)
    source.backup(self._connection)

  def _limit_pages(self, max_pages: int) -> None:
    self._connection.execute(f"PRAGMA max_page_count = {max_pages}")
    self.max_pages = max_pages

  def dump(self) -> bytes:
    """Returns the database as bytes."""
    return self._connection.serialize()

  def close(self) -> None:
    """Frees the memory; the connection cannot be used again."""
    self._connection.close()

  def limit_memory(self, num_bytes: int) -> None:
    """Limits the memory of SQLite in this process, once for all databases."""
    self._connection.execute(f"PRAGMA hard_heap_limit = {num_bytes}")

  def answer(self, sql: str) -> str:
    """Runs one MySQL statement and returns the reply."""
    try:
      statement = dialect.translate(sql, is_quick=self._is_quick)
      self._prepare(statement)
      rows = self.run(statement)
      return base.cut(str(rows), self._max_result_chars)
    except StatementRefused as error:
      return base.cut(str(error), self._max_result_chars)
    except sqlite3.Error as error:
      if self._is_quick and _may_go_on_elsewhere(error, self._meter):
        raise TooComplex from error
      return base.cut(mysql_error(error, sql), self._max_result_chars)

  def run(self, statement: Translation) -> list[Row]:
    """Runs a statement that is known to be MySQL's; raises SQLite's errors."""
    if statement.describes:
      return self._describe(statement)
    if not statement.sql:
      return []
    cursor = self._connection.execute(statement.sql)
    # The reply is cut, so later rows are never computed.
    rows = cursor.fetchmany(base.max_rows_needed(self._max_result_chars))
    cursor.close()
    return _typed(rows, statement)

  def hash_of(self, tables: Sequence[Table]) -> str:
    """Returns AgentBench's hash of the current tables."""
    self._meter.allow(QUICK_UNITS, QUICK_S)
    if self._is_quick and self._is_changed:
      raise TooComplex
    return tables_hash([self.read(table) for table in tables])

  def read(self, table: Table) -> list[Row]:
    """Returns the rows of `table`; none if it or a column is gone."""
    columns = ", ".join(map(base.quoted, table.sql_columns))
    try:
      cursor = self._connection.execute(
        f"SELECT {columns} FROM {base.quoted(table.name)}"
      )
      rows = cursor.fetchmany(QUICK_ROWS) if self._is_quick else []
      if len(rows) == QUICK_ROWS:
        raise TooComplex
      return rows + cursor.fetchall()
    except sqlite3.Error as error:
      if self._is_quick and _may_go_on_elsewhere(error, self._meter):
        raise TooComplex from error
      return []  # the policy dropped or changed the table

  def _prepare(self, statement: Translation) -> None:
    """Sets the budget, and creates the views that the statement reads."""
    if self._is_quick and (statement.changes_schema or self._is_changed):
      # Views and generated columns can make any statement long.
      raise TooComplex
    self._meter.allow(QUICK_UNITS, QUICK_S)
    if statement.reads_schema:
      self._connection.executescript(schema.make_views())

  def _limit_values(self, num_bytes: int) -> None:
    self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, num_bytes)

  def _spend_steps(self) -> bool:
    self._meter.units -= STEPS_PER_CHECK
    return self._meter.is_over

  def _describe(self, statement: Translation) -> list[Row]:
    cursor = self._connection.execute(
      f"SELECT * FROM {base.quoted(statement.describes)} LIMIT 0"
    )
    columns = [column for column, *_ in cursor.description]
    return [
      (column, *_FULL_DESCRIPTION)
      if statement.is_full
      else (column, "text", "YES", "", None, "")
      for column in columns
      if collation.like(statement.like, column)
    ]


def _connect() -> sqlite3.Connection:
  return sqlite3.connect(
    ":memory:", isolation_level=None, check_same_thread=False
  )


@functools.lru_cache(CACHED_DATABASES)
def _filled(tables: tuple[Table, ...]) -> tuple[sqlite3.Connection, int]:
  """Returns a database with these tables to copy, and its number of pages."""
  connection = _connect()
  connection.create_collation(collation.NAME, collation.compare)
  for table in tables:
    try:
      _create(connection, table)
    except sqlite3.Error as error:
      raise EnvironmentFault(
        f"SQLite refuses the table {table.name!r}: {error}"
      ) from error
  (pages,) = connection.execute("PRAGMA page_count").fetchone()
  return connection, int(pages)


def _create(connection: sqlite3.Connection, table: Table) -> None:
  name, collation_ = base.quoted(table.name), _collation(table)
  columns = ", ".join(
    f"{base.quoted(column)} TEXT COLLATE {collation_}"
    for column in table.sql_columns
  )
  marks = ", ".join("?" * len(table.columns))
  connection.execute("BEGIN")
  connection.execute(f"CREATE TABLE {name} ({columns})")
  connection.executemany(f"INSERT INTO {name} VALUES ({marks})", table.rows)
  connection.execute("COMMIT")


def _collation(table: Table) -> str:
  """Returns SQLite's collation if it suffices: one in Python is slower."""
  plain = all(_PLAIN(cell) for row in table.rows for cell in row)
  return "NOCASE" if plain else collation.NAME


def _typed(rows: list[Row], statement: Translation) -> list[Row]:
  """Converts cells whose MySQL type is known."""
  types = statement.types
  if all(known in (None, TEXT) for known in types):
    return rows
  return [
    tuple(
      cell if known is None else known.python_value(cell)
      for cell, known in zip(row, types, strict=True)
    )
    for row in rows
  ]


def _may_go_on_elsewhere(
  error: sqlite3.Error, meter: functions.StatementMeter
) -> bool:
  """Checks that the budget has caused the error, and not the statement."""
  # Errors that Python's module raises by itself have no code.
  code = getattr(error, "sqlite_errorcode", 0)
  limits = (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG)
  return code in limits or meter.is_over
