"""Tests MySQL statements on SQLite: replies, limits and restrictions."""

import asyncio
import contextlib
import os
import signal
import tempfile
import unittest
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.errors import EnvironmentFault
from environments.dbbench.engines import connector, sqlite_process
from environments.dbbench.engines.base import TIMED_OUT
from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.engines.sqlite_connection import Connection
from environments.dbbench.engines.sqlite_process import LOST, OUT_OF_MEMORY
from environments.dbbench.mysql.syntax import TooComplex
from environments.dbbench.problem import Table
from environments.options import DBBenchOptions
from tests.clocks import until
from tests.environments.dbbench.engines.long_statements import LONG_STATEMENTS

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


_engine = SQLiteEngine()  # whose process takes a second to start


def limited(database, limit_s):
  """Limits the time of the database's further statements."""
  database._options = DBBenchOptions(statement_limit_s=limit_s)


def tearDownModule():
  asyncio.run(_engine.close())


class StatementsTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.database = await self.enterAsyncContext(_engine.open([SHOPS]))

  async def test_statements_beyond_sqlglot_are_syntax_errors(self):
    for sql in (
      "SELECT shop FROM `old shops` WHERE YEAR() = 2020",
      "INSERT INTO SELECT `old shops` ('shop') VALUES ('x')",
    ):
      with self.subTest(sql=sql):
        reply = await self.database.execute(sql)
        self.assertRegex(reply, r"\A1064 \(42000\)")

  async def test_odd_characters_are_answered(self):
    for sql in ("SELECT '\0'", "SELECT 'a' -- \0", "SELECT '\U0001f600'", "\0"):
      with self.subTest(sql=sql):
        reply = await self.database.execute(sql)
        self.assertRegex(reply, r"\A(\[\(|1\d\d\d \()")

  async def test_missing_columns_and_tables_have_no_rows(self):
    await self.database.execute("ALTER TABLE `old shops` DROP COLUMN price")
    self.assertEqual(await self.database.hash_of([SHOPS]), "None")
    await self.database.execute("DROP TABLE `old shops`")
    self.assertEqual(await self.database.hash_of([SHOPS]), "None")

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
    reply = await self.database.execute("SELECT COUNT(*) FROM `old shops`")
    self.assertEqual(reply, "[(3,)]")


_WORDS = """
SELECT INSERT INTO UPDATE DELETE FROM WHERE SET VALUES ( ) , * ; = > - +
`old shops` shop price nope 'x' " ` ' 1 1e400 COUNT SUM( CAST( AS SIGNED CASE
WHEN END ORDER BY LIMIT GROUP HAVING UNION JOIN IN NOT NULL WITH IF(
"""


class AnythingTest(unittest.TestCase):
  @given(st.lists(st.sampled_from(_WORDS.split()), max_size=12))
  @settings(max_examples=40, deadline=None)
  def test_random_words_are_answered(self, words):
    database = Connection(is_quick=True)
    database.fill([SHOPS])
    with contextlib.closing(database), contextlib.suppress(TooComplex):
      reply = database.answer(" ".join(words))
      self.assertRegex(reply, r"\A(\[|\d{4} \()")


class QuickTest(unittest.TestCase):
  """Statements that may take long end within a budget, and change nothing."""

  def test_long_statements_are_given_up(self):
    database = Connection(is_quick=True)
    self.addCleanup(database.close)
    for name, statements in LONG_STATEMENTS.items():
      with self.subTest(name):
        database.fill([SHOPS])
        before = database.hash_of([SHOPS])
        with self.assertRaises(TooComplex):
          for sql in statements:
            database.answer(sql)
        if len(statements) == 1:
          self.assertEqual(database.hash_of([SHOPS]), before)

  def test_short_statements_are_answered(self):
    database = Connection(is_quick=True)
    self.addCleanup(database.close)
    for sql in (
      "SELECT " + "(" * 10 + "1" + ")" * 10,
      "SELECT " + "-" * 20 + " 1",
      "SELECT shop FROM `old shops` WHERE price IN (1, '7', 45, 'x', 128)",
      "SELECT REPEAT('x', 200), MOD('7 km', 4), price LIKE '%2%' "
      "FROM `old shops`",
      "SELECT a.shop FROM `old shops` a JOIN `old shops` b ON a.city = b.city "
      "JOIN `old shops` c ON b.city = c.city WHERE a.price > b.price",
    ):
      with self.subTest(sql):
        database.fill([SHOPS])
        self.assertRegex(database.answer(sql), r"\A(\[\(|1\d\d\d)")

  def test_large_tables_are_hashed_elsewhere(self):
    numbers = Table("n", ("i",), tuple((str(i),) for i in range(3000)))
    database = Connection(is_quick=True)
    self.addCleanup(database.close)
    database.fill([numbers])
    with self.assertRaises(TooComplex):
      database.hash_of([numbers])


class LimitsTest(unittest.IsolatedAsyncioTestCase):
  async def test_long_replies_are_cut(self):
    async with SQLiteEngine(DBBenchOptions(max_result_chars=30)).open(
      [SHOPS]
    ) as database:
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


class LongStatementsTest(unittest.IsolatedAsyncioTestCase):
  @contextlib.asynccontextmanager
  async def open(self, limit_s: float = 60):
    async with _engine.open([SHOPS]) as database:
      limited(database, limit_s)
      yield database

  async def test_a_long_statement_ends(self):
    async with self.open() as database:
      self.assertEqual(await database.execute(LONG), "[(200000,)]")
      insert = "INSERT INTO `old shops` " + LONG.replace("COUNT(*)", "1, 2, 3")
      self.assertEqual(await database.execute(f"{insert} LIMIT 9000"), "[]")
      reply = await database.execute("SELECT COUNT(*) FROM `old shops`")
      self.assertEqual(reply, "[(9003,)]")

  async def test_an_endless_statement_changes_nothing(self):
    insert = "INSERT INTO `old shops` " + ENDLESS.replace(
      "SELECT COUNT(*) FROM n", "SELECT i, i, i FROM n WHERE i < 3"
    )
    async with self.open(0.2) as database, self.open() as other:
      before = await database.hash_of([SHOPS])
      endless = asyncio.create_task(database.execute(insert))
      num_answers = 0
      while not endless.done():
        self.assertEqual(await other.execute("SELECT 1"), "[(1,)]")
        num_answers += 1
        await asyncio.sleep(0)
      self.assertEqual(endless.result(), TIMED_OUT)
      self.assertGreater(num_answers, 10)
      self.assertEqual(await database.execute("SELECT 1"), "[(1,)]")
      self.assertEqual(await database.hash_of([SHOPS]), before)

  async def test_statements_have_so_much_memory(self):
    async with self.open() as database:
      reply = await database.execute(
        "SELECT * FROM `old shops` a, `old shops` b, `old shops` c, "
        "`old shops` d, `old shops` e, `old shops` f, `old shops` g "
        "ORDER BY REPEAT('x', 99999)"
      )
      self.assertEqual(reply, OUT_OF_MEMORY)

  async def test_a_view_in_place_of_a_table_is_graded(self):
    async with self.open() as database:
      before = await database.hash_of([SHOPS])
      await database.execute("ALTER TABLE `old shops` RENAME TO s")
      view = "CREATE VIEW `old shops` AS "
      await database.execute(f"{view} SELECT * FROM s")
      self.assertEqual(await database.hash_of([SHOPS]), before)
      await database.execute("DROP VIEW `old shops`")
      await database.execute(
        view + ENDLESS.replace("COUNT(*)", "i AS shop, i AS city, i AS price")
      )
      limited(database, 0.2)
      self.assertEqual(await database.hash_of([SHOPS]), "")

  async def test_cancellation_ends_a_statement(self):
    async with self.open() as database:
      pids = []
      begin = sqlite_process._begin

      async def noted(end):
        pids.append(await begin(end))
        return pids[-1]

      with mock.patch.object(sqlite_process, "_begin", noted):
        endless = asyncio.create_task(database.execute(ENDLESS))
        await until(lambda: pids)
        endless.cancel()
        with contextlib.suppress(asyncio.CancelledError):
          await endless
      await until(lambda: not os.path.exists(f"/proc/{pids[0]}"))

  async def test_a_fork_that_dies_is_the_statements_fault(self):
    async with self.open() as database:
      begin = sqlite_process._begin

      async def killed(end):
        pid = await begin(end)
        os.kill(pid, signal.SIGKILL)
        return pid

      with mock.patch.object(sqlite_process, "_begin", killed):
        self.assertEqual(await database.execute(LONG), LOST)
      self.assertEqual(await database.execute(LONG), "[(200000,)]")

  async def test_the_process_starts_again(self):
    async with self.open() as database:
      await database.execute(LONG)
      process = _engine._process
      process._finalizer.peek()[2][0].kill()
      process._finalizer.peek()[2][0].wait()
      self.assertEqual(await database.execute(LONG), "[(200000,)]")

  async def test_a_process_that_hangs_is_replaced(self):
    async with self.open() as database:
      await database.execute(LONG)
      _engine._process._finalizer.peek()[2][0].send_signal(signal.SIGSTOP)
      with (
        mock.patch.object(sqlite_process, "START_S", 0.05),
        self.assertRaisesRegex(EnvironmentFault, "has not forked"),
      ):
        await database.execute(LONG)
      self.assertEqual(await database.execute(LONG), "[(200000,)]")

  async def test_a_process_that_cannot_start_is_a_fault(self):
    of_unknown_size = (
      f"from {sqlite_process.__name__} import main; "
      "from unittest import mock\n"
      "with mock.patch('builtins.open', side_effect=OSError): main()"
    )
    for place, name, value, message in (
      (sqlite_process.sys, "executable", "/nowhere", "does not start"),
      (sqlite_process, "_PROGRAM", of_unknown_size, "has ended"),
      (sqlite_process, "_PROGRAM", "import nothing_there", "long SQL statem"),
    ):
      async with SQLiteEngine().open([SHOPS]) as database:
        with (
          self.subTest(message),
          mock.patch.object(place, name, value),
          self.assertRaisesRegex(EnvironmentFault, message),
        ):
          await database.execute(LONG)

  @pytest.mark.slow
  async def test_long_statements_end_in_a_score(self):
    for name, statements in LONG_STATEMENTS.items():
      with self.subTest(name):
        async with self.open(1) as database, self.open() as other:
          task = asyncio.create_task(_play(database, statements))
          while not task.done():
            self.assertEqual(await other.execute("SELECT 1"), "[(1,)]")
            await asyncio.sleep(0.01)
          self.assertIsInstance(await task, str)


class LoopsTest(unittest.TestCase):
  def test_several_loops_can_wait_one_after_the_other(self):
    async def answers():
      async with _engine.open([SHOPS]) as database:
        statements = [database.execute(LONG) for _ in range(2)]
        return await asyncio.gather(*statements)

    with mock.patch.object(sqlite_process, "MAX_FORKS", 1):
      for _ in range(2):
        self.assertEqual(asyncio.run(answers()), ["[(200000,)]"] * 2)


async def _play(database, statements) -> str:
  for sql in statements:
    await connector.execute(database, sql)
  return await database.hash_of([SHOPS])


class ConnectionTest(unittest.TestCase):
  def test_bad_tables_are_a_fault(self):
    twice = Table("t", ("a",), ())
    with (
      contextlib.closing(Connection()) as connection,
      self.assertRaisesRegex(EnvironmentFault, "'t'"),
    ):
      connection.fill([twice, twice])

  def test_a_filled_connection_has_nothing_of_its_last_tables(self):
    other = Table("t", ("a",), (("1",),))
    with contextlib.closing(Connection(is_quick=True)) as connection:
      connection.fill([SHOPS])
      connection.answer("DELETE FROM `old shops`")
      connection.answer("SELECT * FROM information_schema.tables")
      connection.fill([other])
      self.assertEqual(connection.answer("SHOW TABLES"), "[('t',)]")
      connection.fill([SHOPS])
      self.assertEqual(len(connection.read(SHOPS)), 3)

  def test_the_schema_is_that_of_the_tables_it_was_filled_with(self):
    columns = "SELECT column_name FROM information_schema.columns"
    with contextlib.closing(Connection(is_quick=True)) as connection:
      for width in range(1, 40):
        table = Table("t", tuple(f"c{i}" for i in range(width)), ())
        connection.fill([table])
        expected = str([(column,) for column in table.columns])
        self.assertEqual(connection.answer(columns), expected)
        self.assertEqual(connection.answer("SELECT * FROM t"), "[]")
