"""Runs statements on a MariaDB server; a session costs some 10 ms.

Each session has a database and two users, who are dropped with it:

- The policy's may do in the database what needs no other, and nothing outside.
- The grader's may read the database. It reads with limits of its own after the
  policy's connection has been killed, with all that it held.

Errors of a statement are replies, and so is the loss of a connection to a
server that answers others. Only a server that answers nobody raises
`EnvironmentFault`.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

import pymysql
from pymysql.constants import CR, ER, SERVER_STATUS

from agentrl_jax.errors import EnvironmentFault
from environments.dbbench.engines import base
from environments.dbbench.engines.mariadb_server import (
  Address,
  PrivateServer,
  read_address,
)
from environments.dbbench.grading import Row, tables_hash
from environments.dbbench.problem import Table
from environments.options import DBBenchOptions

_log = logging.getLogger(__name__)

GRACE_S = 5.0  # for the server to enforce the limit itself
MAX_THREADS = 256  # that wait for the server
MAX_GRADED_ROWS = 200_000  # of a table; more are wrong
LOCK_WAIT_S = 3  # for each lock that a killed connection held
ADMIN_LIMIT_S = 60  # of a statement of the administrator
XA_STATE = 1399  # MariaDB's error for COMMIT within a distributed transaction
RIGHTS = (
  "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, "
  "CREATE VIEW, SHOW VIEW, CREATE TEMPORARY TABLES, LOCK TABLES, TRIGGER, "
  "CREATE ROUTINE, ALTER ROUTINE, EXECUTE"
)
LOST = "2013 (HY000): Lost connection to MySQL server during query"
STATEMENT_TIMEOUT = 1969  # MariaDB's error for max_statement_time
UNKNOWN_COLUMN, AMBIGUOUS_COLUMN = 1054, 1052
_LOST = (0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, 4031)
# A database, table or column that the policy has dropped.
_GONE = (ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR)
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
SESSION_SETTINGS = "SET sql_mode = 'NO_ENGINE_SUBSTITUTION,ONLY_FULL_GROUP_BY'"
COLLATION = "utf8mb4_unicode_520_ci"


class MariaDBEngine(base.DatabaseEngine):
  """Creates databases on a server, which it starts at first use if need be."""

  def __init__(
    self,
    server: str | Address = "",
    options: DBBenchOptions = DBBenchOptions(),  # noqa: B008
  ):
    if isinstance(server, str) and server:
      server = read_address(server)
    self._address: Address | None = server or None
    self._own_server = None if server else PrivateServer()
    self._starting = threading.Lock()
    self._options = options
    self._threads: concurrent.futures.ThreadPoolExecutor | None = None

  @contextlib.asynccontextmanager
  async def open(self, tables: Sequence[Table]) -> AsyncIterator[base.Database]:
    """Opens a database with these tables; may wait for the server to start."""
    if self._threads is None:
      # Statements may sleep, which must not keep others from a thread. Named as
      # the pools of event loops are, since it grows as they do.
      self._threads = concurrent.futures.ThreadPoolExecutor(
        MAX_THREADS, thread_name_prefix="asyncio_mariadb"
      )
    threads = self._threads
    address = await _in_thread(threads, self._running)
    database = MariaDBDatabase(address, threads, self._options)
    try:
      await _in_thread(threads, lambda: database.create(tables))
      yield database
    finally:
      await _in_thread(threads, database.drop)

  async def close(self) -> None:
    """Stops the server if the engine started it."""
    if self._own_server is not None:
      await asyncio.to_thread(self._own_server.stop)
      self._address = None
    if self._threads is not None:
      self._threads.shutdown(wait=False)
      self._threads = None

  def _running(self) -> Address:
    with self._starting:
      server = self._own_server
      if server is not None and not server.is_up:
        server.stop()  # it may have died
        self._address = server.start()
      if self._address is None:
        raise EnvironmentFault("no MariaDB server: neither given nor started")
      return self._address


class MariaDBDatabase(base.Database):
  """One database on a server, and the connection of its user.

  `create`, `run`, `hash_tables` and `drop` block. They run one at a time, in
  any thread.
  """

  def __init__(
    self,
    administrator: Address,
    threads: concurrent.futures.Executor,
    options: DBBenchOptions,
  ):
    self._administrator = administrator
    self._threads = threads
    self._max_result_chars = options.max_result_chars
    self._limit_s = options.statement_limit_s
    self._name = f"dbbench_{secrets.token_hex(8)}"
    self._grader = f"{self._name}_grader"
    self._password = secrets.token_hex(8)
    self._grader_password = secrets.token_hex(8)
    self._connection: Any = None
    self._busy = threading.Lock()

  def create(self, tables: Sequence[Table]) -> None:
    """Creates database, users and tables."""
    with self._busy:
      self._administer(
        f"CREATE DATABASE {self._name} CHARACTER SET utf8mb4 "
        f"COLLATE {COLLATION}",
        f"CREATE USER {self._name} IDENTIFIED BY '{self._password}', "
        f"{self._grader} IDENTIFIED BY '{self._grader_password}'",
        f"GRANT {RIGHTS} ON {self._name}.* TO {self._name}",
        f"GRANT SELECT ON {self._name}.* TO {self._grader}",
      )
      self._connect()
      try:
        with self._connection.cursor() as cursor:
          for table in tables:
            _fill(cursor, table)
      except pymysql.err.MySQLError as error:
        raise EnvironmentFault(
          f"MariaDB refuses the tables {[t.name for t in tables]}: {error}"
        ) from error

  def drop(self) -> None:
    """Stops a running statement and drops database and users.

    A database that a lock outlives, with its owner dead, stays behind.
    """
    if self._connection is not None:
      self._kill(self._connection.thread_id())
    with self._busy:
      self._disconnect()
      try:
        self._administer(
          f"DROP USER IF EXISTS {self._name}, {self._grader}",
          f"DROP DATABASE IF EXISTS {self._name}",
        )
      except pymysql.err.MySQLError as error:
        if _lost(error):
          raise EnvironmentFault(f"lost MariaDB: {error}") from error
        _log.warning("the database %s stays behind: %s", self._name, error)

  async def execute(self, sql: str) -> str:
    """Runs one statement; the server enforces the time limit."""
    reply = await _in_thread(self._threads, lambda: self.run(sql))
    return base.cut(reply, self._max_result_chars)

  async def hash_of(self, tables: Sequence[Table]) -> str:
    """Returns the hash of the tables; waits for the server."""
    return await _in_thread(self._threads, lambda: self.hash_tables(tables))

  def run(self, sql: str) -> str:
    """Runs one statement and returns the reply."""
    start = time.monotonic()
    with self._busy:
      try:
        if self._connection is None:
          self._connect()
        return str(self._fetched(sql))
      except pymysql.err.MySQLError as error:
        if not _lost(error):
          return _error_text(error)
        late = time.monotonic() - start >= self._limit_s
        self._reconnect()
        return base.TIMED_OUT if late else LOST
      except ValueError as error:  # a character set that the driver cannot read
        self._reconnect()
        return str(error)

  def hash_tables(self, tables: Sequence[Table]) -> str:
    """Returns the hash of the tables, or "" if they cannot be read in time."""
    with self._busy:
      self._disconnect()  # which ends transactions and locks
      limits = (
        f"SET max_statement_time = {self._limit_s}, "
        f"lock_wait_timeout = {LOCK_WAIT_S}"
      )
      try:
        with self._opened(
          user=self._grader, password=self._grader_password
        ) as reader:
          reader.cursor().execute(limits)
          return tables_hash([self.read(reader, table) for table in tables])
      except (pymysql.err.MySQLError, ValueError, _TooManyRows) as error:
        self._administrator.connect().close()  # a fault if the server is gone
        _log.debug("the tables of %s cannot be graded: %s", self._name, error)
        return ""

  def read(self, reader: Any, table: Table) -> Iterator[Row]:
    """Yields the rows of a table; none if it or a column is gone."""
    columns = ", ".join(map(base.quoted, table.sql_columns))
    name = f"{base.quoted(self._name)}.{base.quoted(table.name)}"
    cursor = reader.cursor(pymysql.cursors.SSCursor)
    try:
      cursor.execute(
        f"SELECT {columns} FROM {name} LIMIT {MAX_GRADED_ROWS + 1}"
      )
    except pymysql.err.MySQLError as error:
      if error.args[0] in _GONE:
        return
      raise
    yield from itertools.islice(cursor, MAX_GRADED_ROWS)
    if list(cursor):  # the statement returns one more at most
      raise _TooManyRows

  def _fetched(self, sql: str) -> list[Row]:
    most = base.max_rows_needed(self._max_result_chars)
    # Set each time, because the policy may have changed it.
    with self._connection.cursor() as setter:
      setter.execute("SET max_statement_time = %s", (self._limit_s,))
    cursor = self._connection.cursor(pymysql.cursors.SSCursor)
    is_killed, deadline = False, time.monotonic() + self._limit_s + GRACE_S
    cursor.execute(sql)
    rows = list(cursor.fetchmany(most))
    if len(rows) == most:  # the reply shows no more
      self._administer(f"KILL QUERY {self._connection.thread_id()}")
    try:
      # A procedure may have further results; the driver skips only their heads.
      # The server's limit is not enough: a statement can set its own, and one
      # that sends results for ever never comes to the driver's.
      while cursor.fetchmany(most) or cursor.nextset():
        if not is_killed and time.monotonic() > deadline:
          self._kill(self._connection.thread_id())
          is_killed = True
    except pymysql.err.OperationalError as error:
      if is_killed:
        raise pymysql.err.OperationalError(CR.CR_SERVER_LOST) from error
      if len(rows) < most or error.args[0] != ER.QUERY_INTERRUPTED:
        raise
    cursor.close()
    if self._connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
      self._commit()
    return rows

  def _commit(self) -> None:
    """Commits as AgentBench does; ends a distributed transaction."""
    try:
      self._connection.commit()
    except pymysql.err.OperationalError as error:
      if error.args[0] == XA_STATE:
        self._leave_xa()
      raise

  def _leave_xa(self) -> None:
    """Rolls back a prepared transaction, which would outlive the connection.

    The server refuses those of others here.
    """
    with self._connection.cursor() as cursor:
      cursor.execute("XA RECOVER FORMAT = 'SQL'")
      for *_, name in cursor.fetchall():
        with contextlib.suppress(pymysql.err.OperationalError):
          cursor.execute(f"XA ROLLBACK {name}")
    self._reconnect()

  def _connect(self) -> None:
    # The policy may have changed its password, and dropped its database.
    self._administer(
      f"ALTER USER {self._name} IDENTIFIED BY '{self._password}'"
    )
    connection = self._administrator.connect(
      user=self._name,
      password=self._password,
      read_timeout=self._limit_s + GRACE_S,
      write_timeout=self._limit_s + GRACE_S,
    )
    self._connection = connection
    with connection.cursor() as cursor:
      cursor.execute(SESSION_SETTINGS)
      with contextlib.suppress(pymysql.err.OperationalError):
        cursor.execute(f"USE {self._name}")

  def _reconnect(self) -> None:
    self._disconnect()
    self._connect()

  def _disconnect(self) -> None:
    """Ends the connection on both sides; the server may need some time."""
    if self._connection is not None:
      self._kill(self._connection.thread_id())
      self._connection._force_close()
      self._connection = None

  def _kill(self, thread_id: int) -> None:
    # The statement or the connection may have ended already.
    with contextlib.suppress(pymysql.err.OperationalError):
      self._administer(f"KILL {thread_id}")

  def _administer(self, *statements: str) -> None:
    with self._opened() as connection, connection.cursor() as cursor:
      cursor.execute(
        f"SET lock_wait_timeout = {LOCK_WAIT_S}, "
        f"innodb_lock_wait_timeout = {LOCK_WAIT_S}, "
        f"max_statement_time = {ADMIN_LIMIT_S}"
      )
      for statement in statements:
        cursor.execute(statement)

  @contextlib.contextmanager
  def _opened(self, **account: str) -> Iterator[Any]:
    """Opens a connection of the administrator, or of another account."""
    timeout_s = max(self._limit_s, ADMIN_LIMIT_S) + GRACE_S
    connection = self._administrator.connect(read_timeout=timeout_s, **account)
    try:
      yield connection
    finally:
      connection._force_close()  # reads no rows that are left


class _TooManyRows(Exception):
  """A table has more rows than are graded."""


T = TypeVar("T")


async def _in_thread(
  threads: concurrent.futures.Executor, function: Callable[[], T]
) -> T:
  return await asyncio.get_running_loop().run_in_executor(threads, function)


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
  # The driver's own errors, of packets that it did not expect, have no code.
  return code in _LOST or not isinstance(code, int)


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
