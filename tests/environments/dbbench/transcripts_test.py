"""Compares replies with those recorded from AgentBench's workers."""

import collections
import unittest

import pytest

from agentrl_jax.data.messages import Message
from agentrl_jax.data.trajectory import Status
from environments.dbbench.engines.mariadb import MariaDBEngine
from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.grading import tables_hash
from environments.dbbench.problem import Problem
from environments.dbbench.session import DBSession, Rules
from tests.environments.dbbench import transcripts
from tests.environments.dbbench.data import needs_mariadb


class RepliesTest(unittest.IsolatedAsyncioTestCase):
  maxDiff = None
  sorts_groups = False  # MariaDB does, MySQL 8 does not
  num_equal = 238  # of the 243 replies without rows, to the byte

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
          reply = transcripts.unnamed(await database.execute(sql))
          if recorded.startswith("[("):
            counts["rows"] += await self.compare_rows(
              engine, episode, sql, recorded, reply
            )
          else:
            recorded = transcripts.unnamed(recorded)
            with self.subTest(episode=episode.index, sql=sql):
              # The quoted part of a syntax error depends on the parser.
              self.assertEqual(
                reply.split(" near '")[0], recorded.split(" near '")[0]
              )
            counts["others"] += 1
            counts["equal"] += reply == recorded
    return counts

  async def compare_rows(self, engine, episode, sql, recorded, reply):
    """Returns whether the rows of a reply are known; they must be equal."""
    if self.sorts_groups and "GROUP BY" in sql:
      return False
    if reply != recorded:  # equal replies tell of the table, not its rows
      table = transcripts.witness(episode.table, sql, recorded)
      if table is None:
        return False
      async with engine.open([table]) as database:
        reply = await database.execute(sql)
    with self.subTest(episode=episode.index, sql=sql):
      self.assertEqual(reply, recorded)
    return True

  async def test_every_reply_whose_table_is_known(self):
    counts = await self.compare(transcripts.load())
    self.assertEqual(counts["others"], 243)
    self.assertGreaterEqual(counts["equal"], self.num_equal)
    self.assertGreaterEqual(counts["rows"], 80)  # of 90


@pytest.mark.mariadb
class RepliesOfMariaDBTest(RepliesTest):
  sorts_groups = True
  num_equal = 231

  def make_engine(self):
    needs_mariadb()
    return MariaDBEngine()

  async def test_every_reply_whose_table_is_known(self):
    counts = await self.compare(transcripts.load()[::8])
    self.assertGreater(counts["others"], 20)

  @pytest.mark.full
  async def test_in_all_episodes(self):
    await super().test_every_reply_whose_table_is_known()


def comparable(messages):
  """Returns the texts without the part that a syntax error quotes."""
  texts = [transcripts.unnamed(m.content) for m in messages]
  return [text.split(" near '")[0] for text in texts]


class SessionsTest(unittest.IsolatedAsyncioTestCase):
  async def test_episodes_that_change_tables_are_replayed(self):
    """Replays the episodes whose replies hold no rows."""
    num_played = 0
    for episode in transcripts.load():
      if episode.is_whole and all(r[:2] != "[(" for _, r in episode.replies):
        with self.subTest(episode=episode.index):
          await self.play(episode)
        num_played += 1
    self.assertGreater(num_played, 150)

  async def play(self, episode):
    text = episode.messages[1].content
    description, question = text.split("\nQuestion: ")
    problem = Problem(
      "UPDATE",
      (episode.table,),
      question.removesuffix("\n"),
      description=description.partition("question: ")[2],
      table_hash=tables_hash([[]]),
    )
    engine = SQLiteEngine()
    async with engine.open(problem.tables) as database:
      session = DBSession(problem, database, Rules(), gold_hash=None)
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


if __name__ == "__main__":
  unittest.main()
