"""A scripted baseline, which does not understand the question.

It reads the name of the table in the opening, and the rows in replies, and
looks for words of the table in the question.
"""

import ast
import contextlib
import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import GENERIC, ScriptedPolicies, ScriptedPolicy

_TABLE = re.compile(r"name of this table is (\S+?),")
_HEADERS = re.compile(r"headers of this table are ([^\n]+?)\.?\n")


class NamedCell(ScriptedPolicy):
  """Commits the cell where a named column meets a named row.

  Reads the table; takes the first row with a cell that is written in the
  question, else the first row; and commits its cell in the first column whose
  name is written in the question, else in the last column.
  """

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Reads the table first, then commits."""
    opening = next(m.content for m in messages if m.role == "user")
    about, _, question = opening.rpartition("Question: ")
    if messages[-1].role == "user":
      return self.call("execute_sql", query=_read_table(about))
    rows = rows_of(messages[-1].content)
    named = [row for row in rows if any(_names(question, c) for c in row)]
    row = [*named, *rows, [messages[-1].content]][0]
    headers = _HEADERS.search(about)
    columns = headers[1].split(",") if headers else []
    places = [i for i, c in enumerate(columns) if _names(question, c.strip())]
    place = min([*places, len(row) - 1][0], len(row) - 1)
    return self.call("commit_final_answer", answers=[row[place]])


def rows_of(reply: str) -> list[list[str]]:
  """Returns the complete rows with cells in a reply, which may be cut off."""
  with contextlib.suppress(ValueError, SyntaxError):
    found = ast.literal_eval(reply[: reply.rfind(")") + 1].rstrip("]") + "]")
    return [[str(cell) for cell in row] for row in found if row]
  return []


def _read_table(opening: str) -> str:
  table = _TABLE.search(opening)
  return f"SELECT * FROM `{table[1] if table else 'information'}`"


def _names(question: str, text: str) -> bool:
  """Tests if the question has the text as whole words."""
  return re.search(rf"\b{re.escape(text)}\b", question) is not None


POLICIES: ScriptedPolicies = {**GENERIC, "named_cell": NamedCell}
