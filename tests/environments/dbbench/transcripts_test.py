"""Compares replies with those recorded from AgentBench's workers.

The rows of the tables are AgentBench's test set, so they are not known. An
episode shows the name and the headers of its table.
"""

import dataclasses
import gzip
import json
import re
import unittest

import pytest

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


def unquoted(reply):
  """The text without the database's name and what a syntax error quotes."""
  return _DATABASE.sub("dbbench", reply).split(" near '")[0]


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


class RepliesTest(unittest.IsolatedAsyncioTestCase):
  """Replies that hold no rows follow from the table's name and headers."""

  maxDiff = None
  refuses = False  # SQLite takes names and forms that MySQL refuses

  def make_engine(self):
    return SQLiteEngine()

  @pytest.mark.slow
  async def test_replies_without_rows(self):
    engine, num_compared = self.make_engine(), 0
    self.addAsyncCleanup(engine.close)
    for episode in load_episodes():
      async with engine.open([episode.table]) as database:
        for sql, recorded in episode.replies:
          is_refusal = recorded.startswith("1") and not self.refuses
          if is_refusal or recorded.startswith("[("):
            continue
          reply = await database.execute(sql)
          num_compared += 1
          with self.subTest(episode=episode.index, sql=sql):
            self.assertEqual(unquoted(reply), unquoted(recorded))
    self.assertGreater(num_compared, 150)


@pytest.mark.mariadb
@pytest.mark.full
class RepliesOfMariaDBTest(RepliesTest):
  refuses = True

  def make_engine(self):
    data.needs_mariadb()
    return MariaDBEngine()


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
        self.assertEqual(
          [unquoted(m.content) for m in step.messages],
          [unquoted(m.content) for m in recorded],
        )
    self.assertIs(step.status, Status.COMPLETED)
    self.assertEqual(step.status.value, episode.status)
