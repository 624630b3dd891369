"""Recorded attempts on AgentBench's workers, and the tables that they show.

The rows behind them are AgentBench's test set. An attempt tells the table's
name and headers, and its replies tell rows: where a statement selects columns
or adds them up under conditions, there is a small table for which the reply is
the right one. `witness` finds it, so that the reply can be asked for again.
"""

import ast
import dataclasses
import gzip
import json
import re
from decimal import Decimal

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from agentrl_jax.data.messages import Message, message_from_json
from environments.dbbench.problem import Table
from tests.environments.dbbench import data

_TABLE = re.compile(
  r"The name of this table is (.*?), and the headers of this table are "
  r"(.*)\.\nQuestion: ",
  re.DOTALL,
)
_DATABASE = re.compile("dbbench_[0-9a-f_]+")
_ADDED_UP = (exp.Sum, exp.Avg, exp.Max, exp.Min)


@dataclasses.dataclass(frozen=True)
class Attempt:
  """What was said, and which statement each reply followed on."""

  index: int
  status: str
  messages: tuple[Message, ...]
  replies: tuple[tuple[str, str], ...]  # statement, reply
  table: Table  # without rows

  @property
  def is_whole(self) -> bool:
    """Whether every statement was logged with its reply."""
    calls = sum(len(m.tool_calls) for m in self.messages)
    tools = sum(m.role == "tool" for m in self.messages)
    return self.status == "completed" and calls == tools + 1


def load():
  """The attempts."""
  with gzip.open(data.transcripts(), "rt", encoding="utf-8") as lines:
    return [_attempt(json.loads(line)["output"]) for line in lines]


def unnamed(reply):
  """A reply without the name of the database, which was drawn."""
  return _DATABASE.sub("dbbench", reply)


def _attempt(output):
  messages = tuple(map(message_from_json, output["result"]["messages"]))
  name, headers = _TABLE.search(messages[1].content).groups()
  replies, asked = [], {}
  for message in messages:
    if message.role == "assistant":
      asked = {call.id: call for call in message.tool_calls}
    elif message.role == "tool":
      arguments = json.loads(asked.pop(message.tool_call_id).arguments)
      replies.append((next(iter(arguments.values())), message.content))
  return Attempt(
    output["index"],
    output["status"],
    messages,
    tuple(replies),
    Table(name, tuple(headers.split(",")), ()),
  )


def witness(table, sql, reply):
  """The table with rows that make `reply` right; None if it cannot be seen."""
  try:
    rows = ast.literal_eval(reply)
    tree = parse_one(sql, dialect="mysql")
  except (ValueError, SyntaxError, SqlglotError):
    return None
  source = tree.args.get("from_") or tree.args.get("from")
  if not isinstance(tree, exp.Select) or source is None:
    return None
  if source.this.name.lower() != table.name.lower() or not rows:
    return None
  condition = tree.args.get("where")
  met = _met(table, condition.this if condition else None)
  if met is None:
    return None
  columns = {name.lower(): i for i, name in enumerate(table.columns)}
  shown = [_shown(table, columns, tree, row) for row in rows]
  if any(row is None for row in shown):
    return None
  made = []
  for row, count in shown:
    cells = [""] * len(table.columns)
    for position, cell in (met | row).items():
      cells[position] = cell
    made += [tuple(cells)] * count
  return dataclasses.replace(table, rows=tuple(made))


def _shown(table, columns, tree, row):
  """The cells that one row of a reply tells, and how many rows have them."""
  if tree.is_star:
    return dict(enumerate(row)), 1
  cells, count = {}, 1
  for item, cell in zip(tree.expressions, row, strict=True):
    item = item.unalias()
    if isinstance(item, exp.Count) and not item.find(exp.Distinct):
      count = cell
    elif isinstance(item, _ADDED_UP) and cell is not None:
      item = item.this
    if isinstance(item, exp.Column) and item.name.lower() in columns:
      cells[columns[item.name.lower()]] = _text(cell)
    elif item.find(exp.Distinct) or not isinstance(
      item, exp.Count | exp.Literal
    ):
      return None
  return cells, count


def _text(cell):
  if isinstance(cell, float | Decimal) and cell == int(cell):
    return str(int(cell))
  return str(cell)


def _met(table, condition):
  """Cells of a row that meets the condition, or None if it is not plain."""
  if condition is None:
    return {}
  if isinstance(condition, exp.And):
    parts = [_met(table, part) for part in condition.flatten()]
    if any(part is None for part in parts):
      return None
    return {key: cell for part in parts for key, cell in part.items()}
  if isinstance(condition, exp.Paren | exp.Or):
    return _met(table, condition.this)
  column = condition.this
  if not isinstance(column, exp.Column):
    return None
  value = _example(condition)
  names = [name.lower() for name in table.columns]
  if value is None or column.name.lower() not in names:
    return None
  return {names.index(column.name.lower()): value}


def _example(condition):
  """A value that meets a comparison with a constant."""
  other = condition.args.get("expression")
  if isinstance(condition, exp.In) and condition.expressions:
    other = condition.expressions[0]
  if isinstance(condition, exp.Between):
    other = condition.args["low"]
  if not isinstance(other, exp.Literal):
    return None
  if isinstance(condition, exp.EQ | exp.In | exp.GTE | exp.LTE | exp.Between):
    return other.name
  if isinstance(condition, exp.Like):
    return other.name.replace("%", "").replace("_", " ")
  try:
    step = {exp.GT: 1, exp.LT: -1}[type(condition)]
    return str(int(float(other.name)) + step)
  except (KeyError, ValueError):
    return None
