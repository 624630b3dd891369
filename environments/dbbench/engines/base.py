"""What runs the SQL: an engine, and one private database per session.

Engines answer in the words of MySQL's Python connector: a list of tuples as
text, "[]" for a statement without rows, an error as text. A statement that is
wrong, or too slow, is the policy's doing and gets an answer; only a server
that cannot be reached raises `EnvironmentFault`.
"""

import abc
import contextlib
from collections.abc import Sequence

from environments.dbbench.grading import Row, tables_hash
from environments.dbbench.problem import Table

DATABASE = "dbbench"  # its name, where no server gives it another
TIMED_OUT = "Error: SQL execution timed out."
MIN_ROW_CHARS = 6  # "(1,), ": no row is written in fewer


class Database(abc.ABC):
  """The tables of one session, which nobody else sees."""

  @abc.abstractmethod
  async def execute(self, sql: str) -> str:
    """Runs one statement and says what came of it; waits for its end.

    Cancelling stops the statement.
    """

  @abc.abstractmethod
  async def rows(self, table: Table) -> list[Row]:
    """All rows of `table` as it is now; none if it or a column is gone."""

  async def hash_of(self, tables: Sequence[Table]) -> str:
    """AgentBench's hash of the tables as they are now."""
    return tables_hash([await self.rows(table) for table in tables])


class Engine(abc.ABC):
  """A maker of databases."""

  @abc.abstractmethod
  def open(
    self, tables: Sequence[Table]
  ) -> contextlib.AbstractAsyncContextManager[Database]:
    """A fresh database with these tables; leaving the context drops it."""

  @abc.abstractmethod
  async def close(self) -> None:
    """Frees what the engine itself holds; it may not be used again."""


def cut(text: str, max_chars: int) -> str:
  """The text, or its beginning and the mark that AgentBench leaves."""
  if len(text) <= max_chars:
    return text
  return text[:max_chars] + "[TRUNCATED]"


def max_rows_needed(max_chars: int) -> int:
  """So many rows fill a reply of `max_chars`; more would not be seen."""
  return max_chars // MIN_ROW_CHARS + 2
