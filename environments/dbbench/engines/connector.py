"""The argument of `execute_sql` as AgentBench's connector takes it.

mysql-connector-python 9 sends several statements at once, and AgentBench reads
the result of the first. The server runs them all, up to one that fails; what
the second fails of is the reply, since it is read in place of an answer to
COMMIT.
"""

import asyncio
import time

from environments.dbbench.engines.base import Database
from environments.dbbench.mysql.syntax import BLANK, EMPTY, split

NO_ROWS = "[]"
NOT_TEXT = "'{}' object has no attribute 'encode'"
LIMIT_S = 60.0  # for all statements together: then no other is begun


async def execute(database: Database, argument: object) -> str:
  """Runs what the policy gave for a statement, and says what came of it."""
  if not argument:
    return NO_ROWS  # the connector sends nothing
  if not isinstance(argument, str):
    return NOT_TEXT.format(type(argument).__name__)
  parts = split(argument)
  if not parts:
    is_empty = not argument.strip(BLANK)
    return EMPTY if is_empty else NO_ROWS  # nothing but a comment is no error
  return await _execute_all(database, argument, parts)


async def _execute_all(
  database: Database, sql: str, parts: list[tuple[int, int]]
) -> str:
  replies: list[str] = []
  stop_at = time.monotonic() + LIMIT_S
  for start, end in parts:
    reply = await database.execute(sql[start:end])
    if reply.startswith("1064 ") and sql[end:].strip(BLANK):
      # It is refused again, but quotes all that follows.
      reply = await database.execute(sql[start:])
    replies.append(reply)
    if not reply.startswith("[") or time.monotonic() > stop_at:
      break
    await asyncio.sleep(0)  # others have their turn
  is_second = len(replies) == 2 and not replies[1].startswith("[")
  return replies[1] if is_second else replies[0]
