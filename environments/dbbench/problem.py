"""Defines a DBBench problem, and loads problems from AgentBench's files.

A line of the files holds a table or a list of tables, a question, and
`answer_md5` (mutations) or `label` (the rest). The gold SQL of SELECT rows is
often wrong, so it is never used for grading.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from agentrl_jax.env.options import require_file
from agentrl_jax.errors import ConfigError

MUTATIONS = frozenset({"INSERT", "UPDATE", "DELETE"})
_HASH = re.compile(r"[0-9a-f]{32}(_[0-9a-f]{32})*")


@dataclasses.dataclass(frozen=True)
class Table:
  """One table; every cell is text, as in AgentBench."""

  name: str
  columns: tuple[str, ...]
  rows: tuple[tuple[str, ...], ...]

  def __post_init__(self) -> None:
    width = len(self.columns)
    for row in self.rows:
      if len(row) != width:
        raise ValueError(
          f"table {self.name!r} has {width} columns, but a row of {len(row)}: "
          f"{row!r}"
        )

  @property
  def sql_columns(self) -> tuple[str, ...]:
    """Column names that a database accepts: not empty and all different.

    A few of AgentBench's tables have headers that MySQL refuses.
    """
    names: list[str] = []
    for position, column in enumerate(self.columns, 1):
      name = column.rstrip()
      if not name or name.lower() in (known.lower() for known in names):
        name = f"{name}_{position}".lstrip("_")
      names.append(name)
    return tuple(names)


@dataclasses.dataclass(frozen=True)
class DBProblem:
  """One question about some tables, with the data that grades it.

  A mutation is graded by `table_hash`; if that is empty, by the hash of fresh
  tables after `gold_sql` has run. Any other answer is graded by `label`.
  """

  type: str  # AgentBench's: INSERT, UPDATE, DELETE, counting, other, ...
  tables: tuple[Table, ...]
  question: str
  description: str = ""  # of the tables, as the policy reads it
  evidence: str = ""
  gold_sql: str = ""
  label: tuple[str, ...] = ()
  table_hash: str = ""

  @property
  def is_mutation(self) -> bool:
    """True if the tables are graded, and not the answer."""
    return self.type in MUTATIONS


def load_problems(path: str | pathlib.Path) -> tuple[DBProblem, ...]:
  """Loads the problems of a `.jsonl` file, or of a `.json` file with a list."""
  path = pathlib.Path(path)
  require_file(
    path,
    "DBBench's source",
    "AgentBench's dev.jsonl or standard.jsonl, or none to generate tasks",
  )
  text = path.read_text(encoding="utf-8")
  try:
    if path.suffix == ".json":
      entries = json.loads(text)
    else:
      # splitlines() would also split at U+2028, which cells contain.
      entries = [json.loads(line) for line in text.split("\n") if line.strip()]
    return tuple(_problem(entry) for entry in entries)
  except (LookupError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{str(path)!r} does not hold DBBench problems ({error!r}); each entry "
      "needs type, description and table {table_name, table_info}"
    ) from error


def _problem(entry: Mapping[str, Any]) -> DBProblem:
  tables = entry["table"]
  kind = str(entry["type"][0])
  sql = entry.get("sql") or {}
  label = entry.get("label") or ()
  if kind in MUTATIONS and not sql:
    sql = {"query": label[0] if label else ""}
  # MySQL's reply holds the hash: "[('0123...',)]".
  table_hash = _HASH.search(str(entry.get("answer_md5") or ""))
  return DBProblem(
    type=kind,
    tables=tuple(
      _table(t) for t in (tables if isinstance(tables, list) else [tables])
    ),
    question=str(entry["description"]),
    description=str(entry.get("add_description", "")),
    evidence=str(entry.get("evidence", "")),
    gold_sql=str(sql.get("query", "")),
    label=tuple(str(item) for item in label),
    table_hash=table_hash.group() if table_hash else "",
  )


def _table(body: Mapping[str, Any]) -> Table:
  info = body["table_info"]
  return Table(
    name=str(body["table_name"]),
    columns=tuple(str(column["name"]) for column in info["columns"]),
    rows=tuple(tuple(str(cell) for cell in row) for row in info["rows"]),
  )
