"""What AgentBench's workers replied is replied here, to the byte."""

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
  sorts_groups = False  # which MySQL 8 does not, and MariaDB does

  def make_engine(self):
    return SQLiteEngine()

  async def count_same(self, attempts):
    """Asks for every reply whose table is known; says how many those are."""
    engine = self.make_engine()
    self.addAsyncCleanup(engine.close)
    num_known = {"rows": 0, "others": 0}
    for attempt in attempts:
      async with engine.open([attempt.table]) as database:
        for sql, reply in attempt.replies:
          found = transcripts.unnamed(await database.execute(sql))
          if not reply.startswith("[("):
            with self.subTest(attempt=attempt.index, sql=sql):
              self.assertEqual(found, transcripts.unnamed(reply))
            num_known["others"] += 1
          else:
            num_known["rows"] += await self.is_same(
              engine, attempt, sql, reply, found
            )
    return num_known

  async def is_same(self, engine, attempt, sql, reply, found):
    """Whether the rows of a reply are known; if so, it must be right."""
    if self.sorts_groups and "GROUP BY" in sql:
      return False
    if found != reply:  # else it is about the table, not its rows
      table = transcripts.witness(attempt.table, sql, reply)
      if table is None:
        return False
      async with engine.open([table]) as database:
        found = await database.execute(sql)
    with self.subTest(attempt=attempt.index, sql=sql):
      self.assertEqual(found, reply)
    return True

  async def test_every_reply_whose_table_is_known(self):
    num_known = await self.count_same(transcripts.load())
    self.assertEqual(num_known["others"], 243)
    self.assertGreaterEqual(num_known["rows"], 80)  # of 90


@pytest.mark.mariadb
class RepliesOfMariaDBTest(RepliesTest):
  sorts_groups = True

  def make_engine(self):
    needs_mariadb()
    return MariaDBEngine()

  async def test_every_reply_whose_table_is_known(self):
    num_known = await self.count_same(transcripts.load()[::8])
    self.assertGreater(num_known["others"], 20)

  @pytest.mark.full
  async def test_in_all_attempts(self):
    await super().test_every_reply_whose_table_is_known()


class SessionsTest(unittest.IsolatedAsyncioTestCase):
  async def test_attempts_at_changes_are_played_to_their_end(self):
    """Where replies tell no rows, all of an attempt can be played again."""
    num_played = 0
    for attempt in transcripts.load():
      if attempt.is_whole and all(r[:2] != "[(" for _, r in attempt.replies):
        with self.subTest(attempt=attempt.index):
          await self.play(attempt)
        num_played += 1
    self.assertGreater(num_played, 150)

  async def play(self, attempt):
    text = attempt.messages[1].content
    description, question = text.split("\nQuestion: ")
    problem = Problem(
      "UPDATE",
      (attempt.table,),
      question.removesuffix("\n"),
      description=description.partition("question: ")[2],
      table_hash=tables_hash([[]]),
    )
    engine = SQLiteEngine()
    async with engine.open(problem.tables) as database:
      session = DBSession(problem, database, Rules(), gold_hash=None)
      step = await session.reset()
      self.assertEqual(step.messages, attempt.messages[:2])
      for i, message in enumerate(attempt.messages):
        if message.role != "assistant":
          continue
        step = await session.step(
          Message("assistant", tool_calls=message.tool_calls)
        )
        told = attempt.messages[i + 1 : i + 1 + len(step.messages)]
        self.assertEqual(
          [transcripts.unnamed(m.content) for m in step.messages],
          [transcripts.unnamed(m.content) for m in told],
        )
    self.assertIs(step.status, Status.COMPLETED)
    self.assertEqual(step.status.value, attempt.status)


if __name__ == "__main__":
  unittest.main()
