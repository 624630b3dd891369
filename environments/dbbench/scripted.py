"""Scripted baselines, which ignore the question.

They read the name of the table in the opening, and the rows in replies.
"""

import ast
import functools
import re
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import (
  Constant,
  RandomCall,
  ScriptedPolicies,
  ScriptedPolicy,
)

_TABLE = re.compile(r"name of this table is (\S+?),")


class WholeTable(ScriptedPolicy):
  """Reads the table, and commits a random cell or the number of rows."""

  def __init__(self, *, seed: int, counts_rows: bool = False):
    super().__init__(seed=seed)
    self._counts_rows = counts_rows

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Reads the table first, then commits."""
    if messages[-1].role == "user":
      table = _TABLE.search(messages[-1].content)
      name = table[1] if table else "information"
      return self.call("execute_sql", query=f"SELECT * FROM `{name}`")
    try:
      rows = ast.literal_eval(messages[-1].content)
      cells = [str(cell) for row in rows for cell in row]
    except (ValueError, SyntaxError, TypeError):
      rows, cells = [], re.findall(r"\w+", messages[-1].content)
    answer = str(len(rows)) if self._counts_rows else self.rng.choice(cells)
    return self.call("commit_final_answer", answers=[answer])


POLICIES: ScriptedPolicies = {
  "constant": functools.partial(
    Constant, tool="commit_final_answer", arguments={"answers": ["1"]}
  ),
  "random": RandomCall,
  "random_cell": WholeTable,
  "number_of_rows": functools.partial(WholeTable, counts_rows=True),
}
