"""Runs MySQL statements on SQLite in memory: half a millisecond per session.

A statement first runs on the event loop, within a budget of some milliseconds.
If it needs more, it runs from its beginning in a process of its own, up to the
time limit. So do statements of databases whose schema the policy has changed.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from environments.dbbench.engines import base
from environments.dbbench.engines.sqlite_connection import Connection
from environments.dbbench.engines.sqlite_process import (
  FAILURES,
  Job,
  SQLiteProcess,
)
from environments.dbbench.mysql.syntax import TooComplex
from environments.dbbench.problem import Table
from environments.options import DBBenchOptions

MAX_IDLE = 16  # connections


class SQLiteEngine(base.DatabaseEngine):
  """Creates in-memory databases, one per session."""

  def __init__(self, options: DBBenchOptions = DBBenchOptions()):  # noqa: B008
    self._options = options
    self._process = SQLiteProcess()
    self._idle: list[Connection] = []

  @contextlib.asynccontextmanager
  async def open(self, tables: Sequence[Table]) -> AsyncIterator[base.Database]:
    """Opens a database with these tables; see `DatabaseEngine.open`."""
    connection = self._idle.pop() if self._idle else self._connect()
    connection.fill(tables)
    try:
      yield SQLiteDatabase(connection, self._process, self._options)
    finally:
      if len(self._idle) < MAX_IDLE:
        self._idle.append(connection)
      else:
        connection.close()

  async def close(self) -> None:
    """Ends the process of long statements."""
    self._process.close()
    while self._idle:
      self._idle.pop().close()

  def _connect(self) -> Connection:
    return Connection(
      is_quick=True, max_result_chars=self._options.max_result_chars
    )


class SQLiteDatabase(base.Database):
  """One in-memory database."""

  def __init__(
    self,
    connection: Connection,
    process: SQLiteProcess,
    options: DBBenchOptions,
  ):
    self._connection = connection
    self._process = process
    self._options = options

  async def execute(self, sql: str) -> str:
    """Runs one MySQL statement; see `Database.execute`."""
    with contextlib.suppress(TooComplex):
      return self._connection.answer(sql)
    return await self._run(self._job(sql=sql))

  async def hash_of(self, tables: Sequence[Table]) -> str:
    """Returns the hash of the tables; see `Database.hash_of`."""
    with contextlib.suppress(TooComplex):
      return self._connection.hash_of(tables)
    names = [(table.name, table.columns) for table in tables]
    reply = await self._run(self._job(tables=names))
    return "" if reply in FAILURES else reply

  def _job(self, **work: Any) -> Job:
    return Job(
      limit_s=self._options.statement_limit_s,
      max_pages=self._connection.max_pages,
      max_result_chars=self._options.max_result_chars,
      **work,
    )

  async def _run(self, job: Job) -> str:
    """Runs a job in a process of its own; cancellation ends it."""
    before = self._connection.dump()
    reply, after = await self._process.run(job, before)
    if after != before:
      self._connection.reload(before, after)
    return reply
