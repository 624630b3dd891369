"""Handles the argument of `execute_sql` as AgentBench's connector does.

mysql-connector-python 9 sends several statements at once, and AgentBench reads
the result of the first. The server runs them up to the first failure. If the
second statement fails, its error is the reply, because AgentBench reads it in
place of the result of COMMIT.
"""

import asyncio
import time

from environments.dbbench.engines.base import Database
from environments.dbbench.mysql.syntax import BLANK, EMPTY, split

NO_ROWS = "[]"
NOT_TEXT = "'{}' object has no attribute 'encode'"
MAX_CHARS = 100_000  # of all statements; more are not taken apart
LIMIT_S = 60.0  # for all statements; none starts later


async def execute(database: Database, argument: object) -> str:
  """Runs the policy's argument and returns the reply."""
  if not argument:
    return NO_ROWS  # the connector sends nothing
  if not isinstance(argument, str):
    return NOT_TEXT.format(type(argument).__name__)
  try:
    argument.encode()
  except UnicodeEncodeError as error:
    return str(error)
  if len(argument) > MAX_CHARS:
    return await database.execute(argument)  # which refuses it unread
  bounds = split(argument)
  if not bounds:
    is_empty = not argument.strip(BLANK)
    return EMPTY if is_empty else NO_ROWS  # a comment alone is no error
  return await _execute_all(database, argument, bounds)


async def _execute_all(
  database: Database, sql: str, bounds: list[tuple[int, int]]
) -> str:
  replies: list[str] = []
  stop_at = time.monotonic() + LIMIT_S
  for start, end in bounds:
    reply = await database.execute(sql[start:end])
    if reply.startswith("1064 ") and sql[end:].strip(BLANK):
      # The server's error quotes the statements that follow, too.
      reply = await database.execute(sql[start:])
    replies.append(reply)
    if not reply.startswith("[") or time.monotonic() > stop_at:
      break
    await asyncio.sleep(0)  # let other tasks run
  second_failed = len(replies) == 2 and not replies[1].startswith("[")
  return replies[1] if second_failed else replies[0]
