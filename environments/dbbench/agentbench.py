"""Reads AgentBench's DBBench files: one problem per line of JSON.

The files are not part of this project. A line holds one table or a list of
them, a question, and `answer_md5` (mutations) or `label` (the rest). The gold
SQL of AgentBench's SELECT rows is often wrong; it is kept, never graded by.
"""

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import ConfigError
from environments.dbbench.problem import MUTATIONS, Problem, Table

HASH = re.compile(r"[0-9a-f]{32}(_[0-9a-f]{32})*")


def load_problems(path: str | pathlib.Path) -> tuple[Problem, ...]:
  """The problems of a `.jsonl` file, or of a `.json` file with a list."""
  path = pathlib.Path(path)
  if not path.is_file():
    raise ConfigError(
      f"DBBench's source is {str(path)!r}, which is not a file; give the path "
      "of AgentBench's dev.jsonl or standard.jsonl, or none to generate tasks"
    )
  text = path.read_text(encoding="utf-8")
  try:
    if path.suffix == ".json":
      entries = json.loads(text)
    else:
      # Not splitlines(): cells hold U+2028 and its like.
      entries = [json.loads(line) for line in text.split("\n") if line.strip()]
    return tuple(_problem(entry) for entry in entries)
  except (LookupError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{str(path)!r} does not hold DBBench problems ({error!r}); each entry "
      "needs type, description and table {table_name, table_info}"
    ) from error


def _problem(entry: Mapping[str, Any]) -> Problem:
  tables = entry["table"]
  kind = str(entry["type"][0])
  sql = entry.get("sql") or {}
  label = entry.get("label") or ()
  if kind in MUTATIONS and not sql:
    sql = {"query": label[0] if label else ""}
  return Problem(
    type=kind,
    tables=tuple(
      _table(t) for t in (tables if isinstance(tables, list) else [tables])
    ),
    question=str(entry["description"]),
    description=str(entry.get("add_description", "")),
    evidence=str(entry.get("evidence", "")),
    gold_sql=str(sql.get("query", "")),
    label=tuple(str(item) for item in label),
    table_hash=_hash_in(str(entry.get("answer_md5") or "")),
  )


def _hash_in(text: str) -> str:
  """The hash alone, where the file has MySQL's reply: "[('0123...',)]"."""
  match = HASH.search(text)
  return match.group() if match else ""


def _table(body: Mapping[str, Any]) -> Table:
  info = body["table_info"]
  return Table(
    name=str(body["table_name"]),
    columns=tuple(str(column["name"]) for column in info["columns"]),
    rows=tuple(tuple(str(cell) for cell in row) for row in info["rows"]),
  )
