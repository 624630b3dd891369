"""Runs statements on a MariaDB server; a session costs some 10 ms.

Each session has a database and a user, who has all rights in that database and
none outside; both are dropped at the end. Errors of a statement are replies;
failures of the server raise `EnvironmentFault`.
"""

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pymysql
from pymysql.constants import CR, SERVER_STATUS

from agentrl_jax.errors import EnvironmentFault
from environments.dbbench.engines import base
from environments.dbbench.engines.mariadb_server import (
  Address,
  PrivateServer,
  read_address,
)
from environments.dbbench.grading import Row, tables_hash
from environments.dbbench.mysql import groups, names
from environments.dbbench.mysql.dialect import parsed
from environments.dbbench.mysql.syntax import NotMySQL, Refused
from environments.dbbench.problem import Table

GRACE_S = 5.0  # for the server to enforce the limit itself
STATEMENT_TIMEOUT = 1969  # MariaDB's error for max_statement_time
UNKNOWN_COLUMN, AMBIGUOUS_COLUMN = 1054, 1052
# MariaDB's names of clauses in errors, and MySQL's.
_CLAUSES = {
  "SELECT": "field list",
  "SET": "field list",
  "INSERT INTO": "field list",
  "VALUES": "field list",
  "WHERE": "where clause",
  "ON": "on clause",
  "GROUP BY": "group statement",
  "HAVING": "having clause",
  "ORDER BY": "order clause",
}
# Not strict, because the reference hashes were computed that way. Accents do
# not count, as in MySQL 8's default collation.
SESSION_SETTINGS = "SET sql_mode = 'NO_ENGINE_SUBSTITUTION'"
COLLATION = "utf8mb4_unicode_520_ci"


class MariaDBEngine(base.Engine):
  """Creates databases on a server, which it starts at first use if need be."""

  def __init__(
    self,
    server: str | Address = "",
    *,
    max_result_chars: int = 800,
    statement_limit_s: float = 60.0,
  ):
    if isinstance(server, str) and server:
      server = read_address(server)
    self._address: Address | None = server or None
    self._own_server = None if server else PrivateServer()
    self._starting = threading.Lock()
    self._max_result_chars = max_result_chars
    self._statement_limit_s = statement_limit_s

  @contextlib.asynccontextmanager
  async def open(self, tables: Sequence[Table]) -> AsyncIterator[base.Database]:
    """Opens a database with these tables; may wait for the server to start."""
    address = await asyncio.to_thread(self._running)
    database = MariaDBDatabase(
      address,
      max_result_chars=self._max_result_chars,
      statement_limit_s=self._statement_limit_s,
    )
    try:
      await asyncio.to_thread(database.create, tables)
      yield database
    finally:
      await asyncio.to_thread(database.drop)

  async def close(self) -> None:
    """Stops the server if the engine started it."""
    if self._own_server is not None:
      await asyncio.to_thread(self._own_server.stop)
      self._address = None

  def _running(self) -> Address:
    with self._starting:
      if self._address is None and self._own_server is not None:
        self._address = self._own_server.start()
      if self._address is None:
        raise EnvironmentFault("no MariaDB server: neither given nor started")
      return self._address


class MariaDBDatabase(base.Database):
  """One database on a server, and the connection of its user.

  `create`, `run`, `read` and `drop` block. They run one at a time, in any
  thread.
  """

  def __init__(
    self,
    administrator: Address,
    *,
    max_result_chars: int,
    statement_limit_s: float,
  ):
    self._administrator = administrator
    self._max_result_chars = max_result_chars
    self._limit_s = statement_limit_s
    self._name = f"dbbench_{secrets.token_hex(8)}"
    self._password = secrets.token_hex(8)
    self._connection: Any = None
    self._busy = threading.Lock()

  def create(self, tables: Sequence[Table]) -> None:
    """Creates database, user and tables."""
    with self._busy:
      self._administer(
        f"CREATE DATABASE {self._name} CHARACTER SET utf8mb4 "
        f"COLLATE {COLLATION}",
        f"CREATE USER {self._name} IDENTIFIED BY '{self._password}'",
        f"GRANT ALL ON {self._name}.* TO {self._name}",
      )
      self._connection = self._connect()
      try:
        with self._connection.cursor() as cursor:
          for table in tables:
            _fill(cursor, table)
      except pymysql.err.MySQLError as error:
        raise EnvironmentFault(
          f"MariaDB refuses the tables {[t.name for t in tables]}: {error}"
        ) from error

  def drop(self) -> None:
    """Stops a running statement and drops database and user."""
    if self._connection is not None:
      self._kill(self._connection.thread_id())
    with self._busy:
      if self._connection is not None:
        self._connection._force_close()
      self._administer(
        f"DROP DATABASE IF EXISTS {self._name}",
        f"DROP USER IF EXISTS {self._name}",
      )

  async def execute(self, sql: str) -> str:
    """Runs one statement; the server enforces the time limit."""
    return base.cut(
      await asyncio.to_thread(self.run, sql), self._max_result_chars
    )

  async def hash_of(self, tables: Sequence[Table]) -> str:
    """Returns the hash of the tables; waits for the server."""
    return await asyncio.to_thread(
      lambda: tables_hash([self.read(table) for table in tables])
    )

  def run(self, sql: str) -> str:
    """Runs one statement and returns the reply."""
    start = time.monotonic()
    with self._busy:
      try:
        refusal = self._refusal(sql)
        return refusal or str(self._fetched(sql))
      except pymysql.err.MySQLError as error:
        if not _lost(error):
          return _error_text(error)
        late = time.monotonic() - start >= self._limit_s
        self._reconnect()
        if late:
          return base.TIMED_OUT
        raise EnvironmentFault(f"lost MariaDB's connection: {error}") from error

  def read(self, table: Table) -> list[Row]:
    """Returns all rows of a table; none if it or a column is gone."""
    columns = ", ".join(map(base.quoted, table.sql_columns))
    name = f"{base.quoted(self._name)}.{base.quoted(table.name)}"
    sql = f"SELECT {columns} FROM {name}"
    with (
      self._busy,
      contextlib.closing(self._administrator.connect()) as reader,
    ):
      try:
        with reader.cursor() as cursor:
          cursor.execute(sql)
          return list(cursor.fetchall())
      except pymysql.err.MySQLError as error:
        if _lost(error):
          raise EnvironmentFault(
            f"lost MariaDB while grading: {error}"
          ) from error
        return []

  def _refusal(self, sql: str) -> str | None:
    """Returns MySQL 8's error where MariaDB has none or another, else None."""
    try:
      tree = parsed(sql)
    except NotMySQL:
      return None  # the server has the better error
    except Refused as error:
      return str(error).replace(f"{base.DATABASE}.", f"{self._name}.")
    refusal = names.refusal_of_form(tree)
    if refusal is not None or not groups.needs_check(tree):
      return refusal
    refusal = groups.refusal_of(tree, self._columns_of, self._name)
    if refusal is not None:
      self._fetched(f"EXPLAIN {sql}")  # raises errors that come first
    return refusal

  def _columns_of(self, table: str) -> list[str]:
    with self._connection.cursor() as cursor:
      try:
        cursor.execute(f"SHOW COLUMNS FROM {base.quoted(table)}")
      except pymysql.err.MySQLError as error:
        if _lost(error):
          raise
        return []
      return [str(row[0]) for row in cursor.fetchall()]

  def _fetched(self, sql: str) -> list[Row]:
    most = base.max_rows_needed(self._max_result_chars)
    # Set each time, because the policy may have changed it.
    with self._connection.cursor() as setter:
      setter.execute("SET max_statement_time = %s", (self._limit_s,))
    cursor = self._connection.cursor(pymysql.cursors.SSCursor)
    try:
      cursor.execute(sql)
      rows = list(cursor.fetchmany(most))
      if len(rows) == most:  # the reply shows no more
        self._administer(f"KILL QUERY {self._connection.thread_id()}")
    finally:
      with contextlib.suppress(pymysql.err.OperationalError):  # it was killed
        cursor.close()
    if self._connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
      self._connection.commit()
    return rows

  def _connect(self) -> Any:
    connection = self._administrator.connect(
      user=self._name,
      password=self._password,
      database=self._name,
      read_timeout=self._limit_s + GRACE_S,
      write_timeout=self._limit_s + GRACE_S,
    )
    with connection.cursor() as cursor:
      cursor.execute(SESSION_SETTINGS)
    return connection

  def _reconnect(self) -> None:
    self._kill(self._connection.thread_id())
    self._connection._force_close()
    self._connection = self._connect()

  def _kill(self, thread_id: int) -> None:
    # The statement or the connection may have ended already.
    with contextlib.suppress(pymysql.err.OperationalError):
      self._administer(f"KILL {thread_id}")

  def _administer(self, *statements: str) -> None:
    connection = self._administrator.connect()
    with contextlib.closing(connection), connection.cursor() as cursor:
      for statement in statements:
        cursor.execute(statement)


def _fill(cursor: Any, table: Table) -> None:
  columns = ", ".join(
    f"{base.quoted(column)} TEXT" for column in table.sql_columns
  )
  cursor.execute(f"CREATE TABLE {base.quoted(table.name)} ({columns})")
  marks = ", ".join(["%s"] * len(table.columns))
  if table.rows:
    row = f"({marks})"
    cursor.execute(
      # The driver formats with %, so a % in a name is doubled.
      f"INSERT INTO {base.quoted(table.name).replace('%', '%%')} VALUES "
      + ", ".join([row] * len(table.rows)),
      [cell for cells in table.rows for cell in cells],
    )


def _lost(error: pymysql.err.MySQLError) -> bool:
  code = error.args[0] if error.args else 0
  return code in (0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST)


def _error_text(error: pymysql.err.MySQLError) -> str:
  """Returns the error as MySQL's connector prints it."""
  code, *rest = error.args
  if code == STATEMENT_TIMEOUT:
    return base.TIMED_OUT
  state = getattr(error, "sqlstate", None) or "HY000"  # since PyMySQL 1.2
  message = str(rest[0]) if rest else ""
  if code == AMBIGUOUS_COLUMN:
    message = message.replace(" in SELECT is ", " in field list is ")
  if code == UNKNOWN_COLUMN:
    start, in_, clause = message.rpartition(" in ")
    message = f"{start}{in_}'{_CLAUSES.get(clause.strip(chr(39)), clause)}'"
  return f"{code} ({state}): {message.replace('MariaDB', 'MySQL')}"
