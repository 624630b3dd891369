"""Defines engines, which run SQL in one private database per session.

Replies are those of MySQL's Python connector: a list of tuples as text, "[]"
for a statement without rows, an error as text. Wrong and slow statements are
the policy's faults and get a reply, and whatever they leave behind gets a hash;
only a server that cannot be reached raises `EnvironmentFault`.
"""

import abc
import contextlib
from collections.abc import Sequence

from environments.dbbench.problem import Table

DATABASE = "dbbench"  # as messages call it
TIMED_OUT = "Error: SQL execution timed out."
MIN_ROW_CHARS = 6  # of "(1,), ", the shortest row


class Database(abc.ABC):
  """The private tables of one session."""

  @abc.abstractmethod
  async def execute(self, sql: str) -> str:
    """Runs one statement, waits for its end and returns the reply.

    Cancellation stops the statement.
    """

  @abc.abstractmethod
  async def hash_of(self, tables: Sequence[Table]) -> str:
    """Returns AgentBench's hash of the current tables.

    A table is empty if it or a column is gone. The hash is "" if the tables
    cannot be read within the limits, which is the policy's doing.
    """


class DatabaseEngine(abc.ABC):
  """Creates databases."""

  @abc.abstractmethod
  def open(
    self, tables: Sequence[Table]
  ) -> contextlib.AbstractAsyncContextManager[Database]:
    """Opens a database with these tables; leaving the context drops it."""

  async def close(self) -> None:  # noqa: B027 - SQLite has none
    """Frees the resources of the engine; it cannot be used again."""


def cut(text: str, max_chars: int) -> str:
  """Cuts long text as AgentBench does, with a mark at the end."""
  if len(text) <= max_chars:
    return text
  return text[:max_chars] + "[TRUNCATED]"


def max_rows_needed(max_chars: int) -> int:
  """Returns how many rows fill a reply of `max_chars` at most."""
  return max_chars // MIN_ROW_CHARS + 2


def quoted(name: str) -> str:
  """Quotes the name of a table or column."""
  return "`" + name.replace("`", "``") + "`"
