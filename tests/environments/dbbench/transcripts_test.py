"""Compares replies with those recorded from AgentBench's workers.

The rows of the tables are AgentBench's test set, so they are not known. An
episode shows the name and the headers of its table, and replies show rows:
`witness` builds a small table for which a recorded reply is right, so that the
statement can be run again.
"""

import ast
import collections
import dataclasses
import gzip
import json
import re
import unittest
from decimal import Decimal

import pytest
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from agentrl_jax.data.records import Message, Status, message_from_json
from environments.dbbench.engines.mariadb import MariaDBEngine
from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.grading import tables_hash
from environments.dbbench.problem import DBProblem, Table
from environments.dbbench.session import DBSession
from environments.options import DBBenchOptions
from tests.environments.dbbench import data

_TABLE = re.compile(
  r"The name of this table is (.*?), and the headers of this table are "
  r"(.*)\.\nQuestion: ",
  re.DOTALL,
)
_DATABASE = re.compile("dbbench_[0-9a-f_]+")
_AGGREGATES = (exp.Sum, exp.Avg, exp.Max, exp.Min)


@dataclasses.dataclass(frozen=True)
class Episode:
  """A recorded episode with its statements and their replies."""

  index: int
  status: str
  messages: tuple[Message, ...]
  replies: tuple[tuple[str, str], ...]  # statement, reply
  table: Table  # without rows

  @property
  def is_complete(self) -> bool:
    """True if every statement was recorded with its reply."""
    calls = sum(len(m.tool_calls) for m in self.messages)
    tools = sum(m.role == "tool" for m in self.messages)
    return self.status == "completed" and calls == tools + 1


def load_episodes():
  with gzip.open(data.transcripts(), "rt", encoding="utf-8") as lines:
    return [_episode(json.loads(line)["output"]) for line in lines]


def unnamed(reply):
  """Removes the random part of the database's name."""
  return _DATABASE.sub("dbbench", reply)


def _episode(output):
  messages = tuple(map(message_from_json, output["result"]["messages"]))
  name, headers = _TABLE.search(messages[1].content).groups()
  replies, asked = [], {}
  for message in messages:
    if message.role == "assistant":
      asked = {call.id: call for call in message.tool_calls}
    elif message.role == "tool":
      arguments = json.loads(asked.pop(message.tool_call_id).arguments)
      replies.append((next(iter(arguments.values())), message.content))
  return Episode(
    output["index"],
    output["status"],
    messages,
    tuple(replies),
    Table(name, tuple(headers.split(",")), ()),
  )


def witness(table, sql, reply):
  """Returns the table with rows for which `reply` is right, else None.

  Works for statements that select or aggregate columns under conditions.
  """
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
  matching = _matching_cells(table, condition.this if condition else None)
  if matching is None:
    return None
  columns = {name.lower(): i for i, name in enumerate(table.columns)}
  selected = [_selected_cells(table, columns, tree, row) for row in rows]
  if None in selected:
    return None
  witnesses = []
  for row, count in selected:
    cells = [""] * len(table.columns)
    for position, cell in (matching | row).items():
      cells[position] = cell
    witnesses += [tuple(cells)] * count
  return dataclasses.replace(table, rows=tuple(witnesses))


def _selected_cells(table, columns, tree, row):
  """Returns the cells of one row of a reply, and the number of such rows."""
  if tree.is_star:
    return dict(enumerate(row)), 1
  cells, count = {}, 1
  for item, cell in zip(tree.expressions, row, strict=True):
    item = item.unalias()
    if isinstance(item, exp.Count) and not item.find(exp.Distinct):
      count = cell
    elif isinstance(item, _AGGREGATES) and cell is not None:
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


def _matching_cells(table, condition):
  """Returns cells that meet the condition; None if it is too complex."""
  if condition is None:
    return {}
  if isinstance(condition, exp.And):
    parts = [_matching_cells(table, part) for part in condition.flatten()]
    if any(part is None for part in parts):
      return None
    return {key: cell for part in parts for key, cell in part.items()}
  if isinstance(condition, exp.Paren | exp.Or):
    return _matching_cells(table, condition.this)
  column = condition.this
  if not isinstance(column, exp.Column):
    return None
  value = _example(condition)
  names = [name.lower() for name in table.columns]
  if value is None or column.name.lower() not in names:
    return None
  return {names.index(column.name.lower()): value}


def _example(condition):
  """Returns a value that meets a comparison with a constant."""
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


class RepliesTest(unittest.IsolatedAsyncioTestCase):
  maxDiff = None
  sorts_groups = False  # MariaDB does, MySQL 8 does not
  refuses = False  # SQLite takes names and forms that MySQL refuses

  def make_engine(self):
    return SQLiteEngine()

  async def compare(self, episodes):
    """Compares every reply whose table is known, and counts them by kind."""
    engine = self.make_engine()
    self.addAsyncCleanup(engine.close)
    counts = collections.Counter()
    for episode in episodes:
      async with engine.open([episode.table]) as database:
        for sql, recorded in episode.replies:
          if recorded.startswith("1") and not self.refuses:
            continue
          reply = unnamed(await database.execute(sql))
          if recorded.startswith("[("):
            counts["rows"] += await self.compare_rows(
              engine, episode, sql, recorded, reply
            )
          else:
            recorded = unnamed(recorded)
            with self.subTest(episode=episode.index, sql=sql):
              # The quoted part of a syntax error depends on the parser.
              self.assertEqual(
                reply.split(" near '")[0], recorded.split(" near '")[0]
              )
            counts["others"] += 1
    return counts

  async def compare_rows(self, engine, episode, sql, recorded, reply):
    """Returns whether the rows of a reply are known; they must be equal."""
    if self.sorts_groups and "GROUP BY" in sql:
      return False
    if reply != recorded:  # equal replies tell of the table, not its rows
      table = witness(episode.table, sql, recorded)
      if table is None:
        return False
      async with engine.open([table]) as database:
        reply = await database.execute(sql)
    with self.subTest(episode=episode.index, sql=sql):
      self.assertEqual(reply, recorded)
    return True

  @pytest.mark.slow
  async def test_every_reply_whose_table_is_known(self):
    counts = await self.compare(load_episodes())
    self.assertGreater(counts["others"], 150)
    self.assertGreaterEqual(counts["rows"], 80)  # of 90


@pytest.mark.mariadb
class RepliesOfMariaDBTest(RepliesTest):
  sorts_groups = True
  refuses = True

  def make_engine(self):
    data.needs_mariadb()
    return MariaDBEngine()

  @pytest.mark.slow
  async def test_every_reply_whose_table_is_known(self):
    counts = await self.compare(load_episodes()[::8])
    self.assertGreater(counts["others"], 20)

  @pytest.mark.full
  async def test_in_all_episodes(self):
    await super().test_every_reply_whose_table_is_known()


def comparable(messages):
  """Returns the texts without the part that a syntax error quotes."""
  texts = [unnamed(m.content) for m in messages]
  return [text.split(" near '")[0] for text in texts]


class SessionsTest(unittest.IsolatedAsyncioTestCase):
  async def test_episodes_that_change_tables_are_replayed(self):
    """Replays the episodes whose replies hold no rows."""
    num_played = 0
    for episode in load_episodes():
      if episode.is_complete and all(r == "[]" for _, r in episode.replies):
        with self.subTest(episode=episode.index):
          await self.play(episode)
        num_played += 1
    self.assertGreater(num_played, 50)

  async def play(self, episode):
    text = episode.messages[1].content
    description, question = text.split("\nQuestion: ")
    problem = DBProblem(
      "UPDATE",
      (episode.table,),
      question.removesuffix("\n"),
      description=description.partition("question: ")[2],
      table_hash=tables_hash([[]]),
    )
    engine = SQLiteEngine()
    async with engine.open(problem.tables) as database:
      session = DBSession(problem, database, DBBenchOptions(), gold_hash=None)
      step = await session.reset()
      self.assertEqual(step.messages, episode.messages[:2])
      for i, message in enumerate(episode.messages):
        if message.role != "assistant":
          continue
        step = await session.step(
          Message("assistant", tool_calls=message.tool_calls)
        )
        recorded = episode.messages[i + 1 : i + 1 + len(step.messages)]
        self.assertEqual(comparable(step.messages), comparable(recorded))
    self.assertIs(step.status, Status.COMPLETED)
    self.assertEqual(step.status.value, episode.status)
