"""Tests replies to arguments of `execute_sql` against recorded ones.

The replies were recorded with AgentBench's `MySQLDatabase.execute` on
mysql-connector-python 9.3.0 and 9.7.0 (the same on both) and MariaDB 10.11.
"""

import unittest

from environments.dbbench.engines import connector
from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.problem import Table

TABLE = Table("t", ("a", "b"), (("1", "x"), ("2", "y")))
REFUSED = "1064 (42000): "


class ConnectorTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.database = await self.enterAsyncContext(SQLiteEngine().open([TABLE]))

  async def check(self, replies):
    for argument, reply in replies:
      with self.subTest(argument=argument):
        self.assertEqual(
          await connector.execute(self.database, argument), reply
        )

  async def test_arguments_that_are_no_text(self):
    await self.check(
      [
        (["SELECT 1"], "'list' object has no attribute 'encode'"),
        ([None], "'list' object has no attribute 'encode'"),
        ({"a": 1}, "'dict' object has no attribute 'encode'"),
        (5, "'int' object has no attribute 'encode'"),
        (1.5, "'float' object has no attribute 'encode'"),
        (True, "'bool' object has no attribute 'encode'"),
        *((nothing, "[]") for nothing in ([], {}, 0, None, False, "")),
      ]
    )

  async def test_arguments_without_a_statement(self):
    empty = "1065 (42000): Query was empty"
    await self.check(
      [(" ", empty), (";", empty), (" ;\n; ", empty)]
      + [(comment, "[]") for comment in ("-- hi", "/* c */", "# c", "-- c\n;")]
    )

  async def test_several_statements_run_and_the_first_is_answered(self):
    await self.check(
      [
        ("SELECT 1;;", "[(1,)]"),
        ("SELECT 1; -- c", "[(1,)]"),
        ("SELECT 1; SELECT 2", "[(1,)]"),
        ("INSERT INTO t VALUES ('3','z'); SELECT * FROM t", "[]"),
        ("SELECT a FROM t", "[('1',), ('2',), ('3',)]"),
        ("UPDATE t SET b='q'; DELETE FROM t WHERE a = 1", "[]"),
        ("SELECT * FROM t", "[('2', 'q'), ('3', 'q')]"),
        ("SELECT 'a;b', `a` FROM t; ;", "[('a;b', '2'), ('a;b', '3')]"),
      ]
    )

  async def test_statements_after_a_failure_do_not_run(self):
    for sql, near in (
      ("INSERT INTO t VALUES ('6','w'); bogus", "bogus"),
      ("bogus; DELETE FROM t", "bogus; DELETE FROM t"),
    ):
      reply = await connector.execute(self.database, sql)
      self.assertTrue(reply.startswith(REFUSED), reply)
      self.assertIn(f"near '{near}' at line 1", reply)
    await self.check(
      [
        ("SELECT a FROM t WHERE b = 'w'", "[('6',)]"),
        ("SELECT 1; SELECT 2; bogus; DELETE FROM t", "[(1,)]"),
        ("SELECT COUNT(*) FROM t", "[(3,)]"),
        (
          "SELECT 1; SELECT * FROM nope; DELETE FROM t",
          "1146 (42S02): Table 'dbbench.nope' doesn't exist",
        ),
        ("SELECT COUNT(*) FROM t", "[(3,)]"),
      ]
    )

  async def test_an_unclosed_quote_contains_the_statements_that_follow(self):
    reply = await connector.execute(self.database, "SELECT 'a; DELETE FROM t")
    self.assertIn("near ''a; DELETE FROM t'", reply)
    await self.check([("SELECT COUNT(*) FROM t", "[(2,)]")])
