"""Tests the rules of an episode."""

import json
import unittest

from agentrl_jax.data.records import Message, Status, ToolCall
from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.grading import tables_hash
from environments.dbbench.problem import DBProblem, Table
from environments.dbbench.prompts import (
  BAD_CALL,
  NO_ARGUMENT,
  NO_CALL,
  NO_VALUES,
  UNKNOWN_CALL,
)
from environments.dbbench.session import DBSession
from environments.options import DBBenchOptions

TABLE = Table("t", ("a", "b"), (("x", "1"), ("y", "2")))
QUESTION = DBProblem("counting", (TABLE,), "How many?", label=("2",))
MUTATION = DBProblem(
  "UPDATE", (TABLE,), "Set!", gold_sql="UPDATE t SET b = '7'"
)


def say(*calls: tuple[str, str]) -> Message:
  """Returns an answer with these calls, numbered from 0."""
  return Message(
    "assistant",
    tool_calls=tuple(
      ToolCall(name, arguments, id=str(i))
      for i, (name, arguments) in enumerate(calls)
    ),
  )


def run(sql: object) -> tuple[str, str]:
  return "execute_sql", json.dumps({"query": sql})


def commit(*answers: object) -> tuple[str, str]:
  return "commit_final_answer", json.dumps({"answers": answers})


class SessionTest(unittest.IsolatedAsyncioTestCase):
  async def begin(self, problem=QUESTION, **rules) -> DBSession:
    self.engine = SQLiteEngine()
    database = await self.enterAsyncContext(self.engine.open(problem.tables))
    session = DBSession(
      problem, database, DBBenchOptions(**rules), gold_hash=self.gold_hash
    )
    await session.reset()
    return session

  async def gold_hash(self, problem) -> str:
    async with self.engine.open(problem.tables) as database:
      await database.execute(problem.gold_sql)
      return await database.hash_of(problem.tables)

  async def test_statements_are_answered_with_their_calls_id(self):
    session = await self.begin()
    step = await session.step(say(run("SELECT a FROM t"), run("SELECT 1")))
    self.assertIs(step.status, Status.RUNNING)
    self.assertEqual(
      step.messages,
      (
        Message("tool", "[('x',), ('y',)]", tool_call_id="0"),
        Message("tool", "[(1,)]", tool_call_id="1"),
      ),
    )

  async def test_the_right_answer_ends_with_one(self):
    session = await self.begin()
    step = await session.step(say(commit("2.0")))
    self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))
    self.assertEqual(step.metrics["right/counting"], 1.0)

  async def test_a_wrong_answer_ends_with_zero(self):
    session = await self.begin()
    step = await session.step(say(commit("3")))
    self.assertEqual((step.status, step.reward), (Status.COMPLETED, 0.0))

  async def test_calls_run_up_to_the_commit(self):
    session = await self.begin(MUTATION)
    step = await session.step(
      say(run("UPDATE t SET b = 7"), commit(), run("DELETE FROM t"))
    )
    self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))
    self.assertEqual([m.content for m in step.messages], ["[]"])
    self.assertEqual(step.metrics["num_statements"], 1.0)

  async def test_a_mutation_is_graded_by_the_tables(self):
    for sql, reward in {
      "UPDATE t SET b = '7'": 1.0,
      "UPDATE t SET b = '7' WHERE a = 'x'": 0.0,
      "DROP TABLE t": 0.0,
      "SELECT 1": 0.0,
    }.items():
      session = await self.begin(MUTATION)
      await session.step(say(run(sql)))
      with self.subTest(sql=sql):
        self.assertEqual((await session.step(say(commit()))).reward, reward)

  async def test_a_given_hash_needs_no_gold_sql(self):
    table_hash = tables_hash([[("x", "1")]])
    problem = DBProblem("DELETE", (TABLE,), "Delete!", table_hash=table_hash)
    session = await self.begin(problem)
    await session.step(say(run("DELETE FROM t WHERE b = 2")))
    self.assertEqual((await session.step(say(commit()))).reward, 1.0)

  async def test_an_answer_without_calls_gets_a_reply(self):
    session = await self.begin()
    step = await session.step(Message("assistant", "The answer is 2."))
    self.assertEqual(step.messages, (Message("user", NO_CALL),))

  async def test_bad_calls_get_a_reply(self):
    session = await self.begin(max_rounds=100)
    for call, reply in (
      (("execute_sql", '{"query": "SELECT 1"'), BAD_CALL),
      (("execute_sql", "[]"), NO_VALUES.format("list")),
      (("execute_sql", "null"), NO_VALUES.format("NoneType")),
      (("execute_sql", "{}"), NO_ARGUMENT),
      (("execute_sql", '{"query": "\\ud800"}'), BAD_CALL),
      (run(["SELECT 1"]), "'list' object has no attribute 'encode'"),
      (run(None), "[]"),
      (("finish", '{"answers": []}'), UNKNOWN_CALL),
      (("commit_final_answer", "{}"), BAD_CALL),
      (("commit_final_answer", "no json"), BAD_CALL),
      (("finish", '{"answers": ["2"]}'), UNKNOWN_CALL),
      (("finish", "{}"), UNKNOWN_CALL),
      (("finish", "{"), BAD_CALL),
    ):
      with self.subTest(call=call):
        step = await session.step(say(call))
        self.assertEqual(
          step.messages, (Message("tool", reply, tool_call_id="0"),)
        )
        self.assertIs(step.status, Status.RUNNING)

  async def test_the_first_argument_counts_whatever_its_name(self):
    session = await self.begin()
    step = await session.step(say(("execute_sql", '{"sql": "SELECT 1"}')))
    self.assertEqual(step.messages[0].content, "[(1,)]")
    step = await session.step(say(("commit_final_answer", '{"answer": "2"}')))
    self.assertEqual(step.reward, 1.0)

  async def test_the_number_of_rounds_is_limited(self):
    session = await self.begin(max_rounds=2)
    first = await session.step(say(run("SELECT 1")))
    last = await session.step(say(run("SELECT 1")))
    self.assertIs(first.status, Status.RUNNING)
    self.assertIs(last.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(last.reward, 0.0)

  async def test_a_commit_in_the_last_round_counts(self):
    session = await self.begin(max_rounds=1)
    step = await session.step(say(commit("2")))
    self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))

  async def test_quirks_reach_the_answer_rule(self):
    zero = DBProblem("counting", (TABLE,), "How many?", label=("0",))
    for quirks in (False, True):
      session = await self.begin(zero, upstream_quirks=quirks)
      step = await session.step(say(commit("")))
      self.assertEqual(step.reward, float(quirks))
