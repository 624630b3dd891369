"""Tests MySQL statements on SQLite: replies, limits and restrictions."""

import asyncio
import contextlib
import os
import tempfile
import threading
import unittest
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.errors import EnvironmentFault
from environments.dbbench.engines.base import TIMED_OUT
from environments.dbbench.engines.sqlite import SQLiteDatabase, SQLiteEngine
from environments.dbbench.problem import Table
from tests.clocks import until, wait_until

SHOPS = Table(
  "old shops",
  ("shop", "city", "price"),
  (
    ("Blue Bear", "Oslo", "7"),
    ("Red Lion", "Rome", "45"),
    ("Gold Star", "rome", "128"),
  ),
)
# Never ends by itself.
ENDLESS = (
  "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
  "SELECT COUNT(*) FROM n"
)
# More steps than the event loop allows, and less than a second.
LONG = ENDLESS.replace("FROM n) ", "FROM n WHERE i < 200000) ")


class StatementsTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.database = await self.enterAsyncContext(SQLiteEngine().open([SHOPS]))

  async def test_replies_are_the_connectors(self):
    for sql, reply in {
      "SELECT shop, price FROM `old shops` WHERE price > 9": (
        "[('Red Lion', '45'), ('Gold Star', '128')]"
      ),
      "SELECT shop FROM `old shops` WHERE city = 'ROME' LIMIT 1": (
        "[('Red Lion',)]"
      ),
      "SELECT MAX(price) FROM `old shops`": "[('7',)]",
      "SELECT MAX(price + 0) FROM `old shops`": "[(128.0,)]",
      "SELECT COUNT(*), SUM(price) FROM `old shops`": "[(3, 180.0)]",
      "SELECT SUM(CAST(price AS SIGNED)) FROM `old shops`": (
        "[(Decimal('180'),)]"
      ),
      "SELECT AVG(price) FROM `old shops` WHERE city = 'Bonn'": "[(None,)]",
      "SELECT shop FROM `old shops` WHERE city = 'Bonn'": "[]",
      "SHOW TABLES;": "[('old shops',)]",
      "DESCRIBE `old shops`": (
        "[('shop', 'text', 'YES', '', None, ''), "
        "('city', 'text', 'YES', '', None, ''), "
        "('price', 'text', 'YES', '', None, '')]"
      ),
      "BEGIN": "[]",
      "DELETE FROM `old shops`": "[]",
      "ROLLBACK": "[]",
      "SELECT COUNT(*) FROM `old shops`": "[(0,)]",
    }.items():
      with self.subTest(sql=sql):
        self.assertEqual(await self.database.execute(sql), reply)

  async def test_errors_are_mysqls(self):
    for sql, reply in {
      "SELECT * FROM shops": (
        "1146 (42S02): Table 'dbbench.shops' doesn't exist"
      ),
      "DESCRIBE shops": "1146 (42S02): Table 'dbbench.shops' doesn't exist",
      "SELECT nope FROM `old shops`": (
        "1054 (42S22): Unknown column 'nope' in 'field list'"
      ),
      "INSERT INTO `old shops` (nope) VALUES (1)": (
        "1054 (42S22): Unknown column 'nope' in 'field list'"
      ),
      "INSERT INTO `old shops` VALUES (1)": (
        "1136 (21S01): Column count doesn't match value count at row 1"
      ),
      "CREATE TABLE `old shops` (a TEXT)": (
        "1050 (42S01): Table 'old shops' already exists"
      ),
      "SELECT SLEEP(5)": "1305 (42000): FUNCTION dbbench.SLEEP does not exist",
      "SELECT * FROM old shops WHERE a b": (
        "1064 (42000): You have an error in your SQL syntax; check the manual "
        "that corresponds to your MySQL server version for the right syntax "
        "to use near 'b' at line 1"
      ),
    }.items():
      with self.subTest(sql=sql):
        self.assertEqual(await self.database.execute(sql), reply)

  async def test_odd_characters_are_answered(self):
    for sql in ("SELECT '\0'", "SELECT 'a' -- \0", "SELECT '\U0001f600'", "\0"):
      with self.subTest(sql=sql):
        reply = await self.database.execute(sql)
        self.assertRegex(reply, r"\A(\[\(|1\d\d\d \()")

  async def test_missing_columns_and_tables_have_no_rows(self):
    await self.database.execute("ALTER TABLE `old shops` DROP COLUMN price")
    self.assertEqual(await self.database.rows(SHOPS), [])
    await self.database.execute("DROP TABLE `old shops`")
    self.assertEqual(await self.database.rows(SHOPS), [])

  async def test_statements_cannot_leave_the_database(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    for sql in (
      f"ATTACH DATABASE '{folder}/x' AS x",
      f"VACUUM INTO '{folder}/x'",
      "SELECT LOAD_EXTENSION('x')",
      f"SELECT WRITEFILE('{folder}/x', 'x')",
      "SELECT HEX(ZEROBLOB(100000000))",
    ):
      with self.subTest(sql=sql):
        reply = await self.database.execute(sql)
        self.assertRegex(reply, r"\A1\d\d\d \(")
    self.assertEqual(os.listdir(folder), [])

  async def test_the_size_of_a_database_is_limited(self):
    reply = await self.database.execute(
      "INSERT INTO `old shops` "
      + ENDLESS.replace(
        "SELECT COUNT(*)", "SELECT REPEAT('x', 90000), 'x', 'y'"
      ).replace("FROM n) ", "FROM n WHERE i < 1000) ")
    )
    self.assertEqual(reply, "1105 (HY000): database or disk is full")
    self.assertEqual(await self.database.rows(SHOPS), list(SHOPS.rows))


_WORDS = """
SELECT INSERT INTO UPDATE DELETE FROM WHERE SET VALUES ( ) , * ; = > - +
`old shops` shop price nope 'x' " ` ' 1 1e400 COUNT SUM( CAST( AS SIGNED CASE
WHEN END ORDER BY LIMIT GROUP HAVING UNION JOIN IN NOT NULL WITH IF(
"""


class AnythingTest(unittest.TestCase):
  @given(st.lists(st.sampled_from(_WORDS.split()), max_size=12))
  @settings(max_examples=100, deadline=None)
  def test_whatever_a_policy_writes_is_answered(self, words):
    database = SQLiteDatabase([SHOPS], statement_limit_s=1)
    try:
      reply = asyncio.run(database.execute(" ".join(words)))
    finally:
      database.close()
    self.assertRegex(reply, r"\A(\[|\d{4} \(|Error: )")


class LimitsTest(unittest.IsolatedAsyncioTestCase):
  async def test_long_replies_are_cut(self):
    async with SQLiteEngine(max_result_chars=30).open([SHOPS]) as database:
      reply = await database.execute("SELECT * FROM `old shops`")
      full_reply = str(list(SHOPS.rows))
      self.assertEqual(reply, full_reply[:30] + "[TRUNCATED]")
      exact = await database.execute("SELECT 'aaaaaaaaaaaaaaaaaaaaaaa'")
      self.assertEqual(len(exact), 30)

  async def test_unseen_rows_change_nothing(self):
    numbers = Table("n", ("i",), tuple((str(i),) for i in range(1000)))
    async with SQLiteEngine().open([numbers]) as database:
      reply = await database.execute("SELECT COUNT(i) FROM n GROUP BY i")
    self.assertEqual(reply, str([(1,)] * 1000)[:800] + "[TRUNCATED]")

  async def test_a_long_statement_ends_in_a_thread(self):
    async with SQLiteEngine().open([SHOPS]) as database:
      self.assertEqual(await database.execute(LONG), "[(200000,)]")

  async def test_an_endless_statement_gets_a_reply(self):
    async with SQLiteEngine(statement_limit_s=0.05).open([SHOPS]) as database:
      self.assertEqual(await database.execute(ENDLESS), TIMED_OUT)
      self.assertEqual(await database.execute("SELECT 1"), "[(1,)]")

  async def test_a_stopped_statement_changes_nothing(self):
    insert = "INSERT INTO `old shops` " + ENDLESS.replace(
      "SELECT COUNT(*)", "SELECT i, i, i"
    )
    async with SQLiteEngine(statement_limit_s=0.05).open([SHOPS]) as database:
      self.assertEqual(await database.execute(insert), TIMED_OUT)
      self.assertEqual(await database.rows(SHOPS), list(SHOPS.rows))

  async def test_leaving_stops_a_running_statement(self):
    async with asyncio.timeout(30):
      async with SQLiteEngine(statement_limit_s=600).open([SHOPS]) as database:
        endless = asyncio.ensure_future(database.execute(ENDLESS))
        await until(lambda: database._busy.locked())
        self.assertFalse(endless.done())  # and the event loop is not blocked
        endless.cancel()
    with contextlib.suppress(asyncio.CancelledError):
      await endless
    self.assertTrue(endless.cancelled())


class DatabaseTest(unittest.TestCase):
  def test_closing_stops_a_statement_that_is_about_to_start(self):
    database = SQLiteDatabase([SHOPS], statement_limit_s=600)
    connection = mock.Mock(wraps=database._connection)
    connection.interrupt = lambda: None  # as if called before the statement
    database._connection = connection
    endless = threading.Thread(
      target=lambda: asyncio.run(database.execute(ENDLESS))
    )
    endless.start()
    wait_until(lambda: connection.execute.called)
    database.close()  # raises if the statement goes on
    endless.join(10)
    self.assertFalse(endless.is_alive())

  def test_bad_tables_are_a_fault(self):
    twice = Table("t", ("a",), ())
    with self.assertRaisesRegex(EnvironmentFault, "'t'"):
      SQLiteDatabase([twice, twice])

  def test_databases_are_separate(self):
    before = threading.active_count()
    first, second = SQLiteDatabase([SHOPS]), SQLiteDatabase([SHOPS])
    with contextlib.closing(first), contextlib.closing(second):
      asyncio.run(first.execute("DELETE FROM `old shops`"))
      self.assertEqual(first.read(SHOPS), [])
      self.assertEqual(len(second.read(SHOPS)), 3)
    self.assertEqual(threading.active_count(), before)
