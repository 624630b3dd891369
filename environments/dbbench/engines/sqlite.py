"""Runs MySQL statements on SQLite in memory: half a millisecond per session.

A statement first runs on the event loop for about a millisecond. If it does not
finish, it is rolled back and runs again in a thread, up to the time limit.
Databases cannot reach files or other databases, and hold 32 MiB at most.
"""

import asyncio
import contextlib
import re
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Sequence

from agentrl_jax.errors import EnvironmentFault
from environments.dbbench.engines import base
from environments.dbbench.grading import Row
from environments.dbbench.mysql import (
  collation,
  dialect,
  functions,
  groups,
  names,
  schema,
)
from environments.dbbench.mysql.dialect import Statement
from environments.dbbench.mysql.errors import mysql_error
from environments.dbbench.mysql.syntax import Refused
from environments.dbbench.mysql.types import TEXT
from environments.dbbench.problem import Table

STEPS_PER_CHECK = 20_000  # of SQLite's virtual machine; about a millisecond
MAX_VALUE_BYTES = 1_000_000
MAX_PAGES = 8_192  # of 4 KiB
CLOSE_DEADLINE_S = 5.0
_FULL_DESCRIPTION = (  # of a column, behind its name
  *("text", "utf8mb4_0900_ai_ci", "YES", "", None, ""),
  *("select,insert,update,references", ""),
)
_PLAIN = re.compile("[0-9A-Za-z ]*").fullmatch  # NOCASE sorts it as MySQL does


class SQLiteEngine(base.Engine):
  """Creates in-memory databases, one per session."""

  def __init__(
    self, *, max_result_chars: int = 800, statement_limit_s: float = 60.0
  ):
    self._max_result_chars = max_result_chars
    self._statement_limit_s = statement_limit_s

  @contextlib.asynccontextmanager
  async def open(self, tables: Sequence[Table]) -> AsyncIterator[base.Database]:
    """Opens a database with these tables; see `Engine.open`."""
    database = SQLiteDatabase(
      tables,
      max_result_chars=self._max_result_chars,
      statement_limit_s=self._statement_limit_s,
    )
    try:
      yield database
    finally:
      database.close()


class SQLiteDatabase(base.Database):
  """One in-memory database. Every column is TEXT and compares without case."""

  def __init__(
    self,
    tables: Sequence[Table],
    *,
    max_result_chars: int = 800,
    statement_limit_s: float = 60.0,
  ):
    self._max_result_chars = max_result_chars
    self._statement_limit_s = statement_limit_s
    self._stop_at = float("inf")  # on the monotonic clock
    self._closed = False
    self._busy = threading.Lock()
    # `_busy` keeps threads from using the connection at the same time.
    self._connection = sqlite3.connect(
      ":memory:", isolation_level=None, check_same_thread=False
    )
    functions.install(self._connection)
    for table in tables:
      self._create(table)
    self._restrict()

  def close(self) -> None:
    """Stops a running statement and frees the memory."""
    self._closed = True
    self._connection.interrupt()
    if not self._busy.acquire(timeout=CLOSE_DEADLINE_S):
      raise EnvironmentFault(
        "SQLite did not stop a statement within "
        f"{CLOSE_DEADLINE_S} s of the interrupt; its thread still runs"
      )
    self._connection.close()
    self._busy.release()

  async def execute(self, sql: str) -> str:
    """Runs one MySQL statement; see `Database.execute`."""
    try:
      statement = dialect.translate(sql)
      self._check(statement)
    except Refused as error:
      return self._cut(str(error))
    except sqlite3.Error as error:
      return self._cut(mysql_error(error, sql))
    try:
      return self._cut(str(self.run(statement, stop_at=float("-inf"))))
    except sqlite3.Error as error:
      if not _was_stopped(error):
        return self._cut(mysql_error(error, sql))
    return await self._execute_slowly(statement, sql)

  async def rows(self, table: Table) -> list[Row]:
    """Returns the rows of `table` without waiting; see `Database.rows`."""
    return self.read(table)

  def read(self, table: Table) -> list[Row]:
    """Returns the rows of `table`, for callers without an event loop."""
    columns = ", ".join(map(base.quoted, table.sql_columns))
    try:
      with self._busy:
        self._stop_at = float("inf")
        return self._connection.execute(
          f"SELECT {columns} FROM {base.quoted(table.name)}"
        ).fetchall()
    except sqlite3.Error:
      return []  # the policy dropped or changed the table

  def run(self, statement: Statement, *, stop_at: float) -> list[Row]:
    """Runs the statement until `stop_at` on the monotonic clock; blocks.

    The clock is read every `STEPS_PER_CHECK` steps, so a quick statement always
    finishes. Raises SQLite's errors; a stopped statement changes nothing.
    """
    if statement.describes:
      return self._describe(statement)
    if not statement.sql:
      return []
    with self._busy:
      self._stop_at = stop_at
      cursor = self._connection.execute(statement.sql)
      # The reply is cut, so later rows are never computed.
      rows = cursor.fetchmany(base.max_rows_needed(self._max_result_chars))
      cursor.close()
    return _typed(rows, statement)

  def _check(self, statement: Statement) -> None:
    """Raises `Refused` if MySQL refuses the statement for these tables."""
    if statement.reads_schema:
      with self._busy:
        self._connection.executescript(schema.make_views())
    if statement.tree is None:
      return
    refusal = names.refusal_of(
      statement.tree, self._columns_of, self._table_names(), base.DATABASE
    )
    if refusal is not None:
      raise Refused(refusal)
    if not groups.needs_check(statement.tree):
      return
    refusal = groups.refusal_of(statement.tree, self._columns_of, base.DATABASE)
    if refusal is not None:
      with self._busy:  # raises the errors that MySQL would raise first
        self._stop_at = float("inf")
        self._connection.execute(f"EXPLAIN {statement.sql}").close()
      raise Refused(refusal)

  def _table_names(self) -> list[str]:
    with self._busy:
      self._stop_at = float("inf")
      rows = self._connection.execute("SELECT name FROM sqlite_master")
      return [name for (name,) in rows]

  def _columns_of(self, table: str) -> list[str]:
    with self._busy:
      self._stop_at = float("inf")
      return [
        name
        for _, name, *_ in self._connection.execute(
          f"PRAGMA table_info({base.quoted(table)})"
        )
      ]

  async def _execute_slowly(self, statement: Statement, sql: str) -> str:
    stop_at = time.monotonic() + self._statement_limit_s
    try:
      rows = await asyncio.to_thread(self.run, statement, stop_at=stop_at)
      return self._cut(str(rows))
    except sqlite3.Error as error:
      if _was_stopped(error):
        return base.TIMED_OUT
      return self._cut(mysql_error(error, sql))

  def _create(self, table: Table) -> None:
    collation = _collation(table)
    columns = ", ".join(
      f"{base.quoted(column)} TEXT COLLATE {collation}"
      for column in table.sql_columns
    )
    marks = ", ".join("?" * len(table.columns))
    connection = self._connection
    try:
      connection.execute(f"CREATE TABLE {base.quoted(table.name)} ({columns})")
      connection.execute("BEGIN")
      connection.executemany(
        f"INSERT INTO {base.quoted(table.name)} VALUES ({marks})", table.rows
      )
      connection.execute("COMMIT")
    except sqlite3.Error as error:
      raise EnvironmentFault(
        f"SQLite refuses the table {table.name!r}: {error}"
      ) from error

  def _restrict(self) -> None:
    self._connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
    self._connection.execute("PRAGMA temp_store = MEMORY")
    self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    self._connection.set_progress_handler(self._is_over, STEPS_PER_CHECK)

  def _is_over(self) -> bool:
    return self._closed or time.monotonic() >= self._stop_at

  def _describe(self, statement: Statement) -> list[Row]:
    with self._busy:
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

  def _cut(self, text: str) -> str:
    return base.cut(text, self._max_result_chars)


def _collation(table: Table) -> str:
  """Returns SQLite's collation if it suffices: one in Python is slower."""
  plain = all(_PLAIN(cell) for row in table.rows for cell in row)
  return "NOCASE" if plain else collation.NAME


def _typed(rows: list[Row], statement: Statement) -> list[Row]:
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


def _was_stopped(error: sqlite3.Error) -> bool:
  # Errors that Python's module raises by itself have no code.
  return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT
