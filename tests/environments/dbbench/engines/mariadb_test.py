"""Tests MariaDB's engine, and that SQLite's replies equal MariaDB's."""

import ast
import asyncio
import contextlib
import os
import unittest
from unittest import mock

import pytest

from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import EnvironmentFault
from environments.dbbench import DBBench
from environments.dbbench.engines import mariadb
from environments.dbbench.engines.base import TIMED_OUT
from environments.dbbench.engines.mariadb import LOST, MariaDBEngine
from environments.dbbench.problem import Table, load_problems
from environments.options import DBBenchOptions
from tests.environments.dbbench.data import (
  dev_rows,
  mariadb_address,
  needs_mariadb,
)

TABLE = Table(
  "t a",
  ("name", "city", "age", "note"),
  (
    ("Anna Reed", "Oslo", "7", "x"),
    ("Ben Hill", "oslo", "45", "3 km"),
    ("Cara", "Rome", "128", "1,200"),
    ("Dan", "Paris", "9.5", ""),
    ("Élan", "rome", "128", "-3"),
  ),
)
# By kind: statements, and the hash of the tables after them.
DISTURBANCES = {
  "locks": (["LOCK TABLES `t a` WRITE"], "as before"),
  "a prepared lock": (
    ["PREPARE s FROM 'LOCK TABLES `t a` WRITE'", "EXECUTE s"],
    "as before",
  ),
  "a handler": (["HANDLER `t a` OPEN"], "as before"),
  "a named lock": (["SELECT GET_LOCK('x', 1)"], "as before"),
  "a distributed transaction": (
    ["XA START 'x'", "DELETE FROM `t a`", "XA END 'x'", "XA PREPARE 'x'"],
    "None",
  ),
  "one in one statement": (
    [
      "BEGIN NOT ATOMIC XA START 'x'; DELETE FROM `t a`; XA END 'x'; "
      "XA PREPARE 'x'; END"
    ],
    "as before",
  ),
  "a view that sleeps": (
    [
      "DROP TABLE `t a`",
      "CREATE VIEW `t a` AS SELECT SLEEP(60) AS name, 1 AS city, 1 AS age, "
      "1 AS note",
    ],
    "",
  ),
  "a view with the grader's rights": (
    [
      "DROP TABLE `t a`",
      "CREATE FUNCTION f() RETURNS INT SQL SECURITY INVOKER "
      "RETURN (SELECT COUNT(*) FROM mysql.user)",
      "CREATE SQL SECURITY INVOKER VIEW `t a` AS "
      "SELECT f() AS name, 1 AS city, 1 AS age, 1 AS note",
    ],
    "",
  ),
  "another password": (
    ["SET PASSWORD = PASSWORD('x')", "KILL CONNECTION_ID()"],
    "as before",
  ),
  "no database": (["DROP SCHEMA DATABASE", "KILL CONNECTION_ID()"], "None"),
  "other settings": (
    [
      "SET sql_mode = 'ANSI_QUOTES', time_zone = '+13:00'",
      "SET character_set_results = binary, sql_select_limit = 1",
      "SET tx_isolation = 'SERIALIZABLE', autocommit = 0",
    ],
    "as before",
  ),
  "an event": (
    [
      "CREATE EVENT e ON SCHEDULE EVERY 1 SECOND DO DELETE FROM `t a`",
      "SET GLOBAL event_scheduler = ON",
    ],
    "as before",
  ),
  "rights that it lacks": (
    ["SHUTDOWN", "FLUSH TABLES WITH READ LOCK", "SET sql_log_bin = 0"],
    "as before",
  ),
}


def make_engine(*, statement_limit_s: float = 1.0) -> MariaDBEngine:
  return MariaDBEngine(
    mariadb_address(), DBBenchOptions(statement_limit_s=statement_limit_s)
  )


@pytest.mark.mariadb
class MariaDBEngineTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.engine = make_engine()
    self.database = await self.enterAsyncContext(self.engine.open([TABLE]))

  @pytest.mark.slow
  async def test_dev_hashes_are_reproduced(self):
    for problem in load_problems(dev_rows()):
      if not problem.is_mutation:
        continue
      with self.subTest(sql=problem.gold_sql):
        async with self.engine.open(problem.tables) as database:
          self.assertEqual(await database.execute(problem.gold_sql), "[]")
          after = await database.hash_of(problem.tables)
        self.assertEqual(after, problem.table_hash)

  async def test_hash_is_the_servers_own(self):
    columns = ", ".join(f"`{column}`" for column in TABLE.columns)
    reply = await self.database.execute(
      "SELECT MD5(GROUP_CONCAT(h ORDER BY h)) FROM (SELECT SUBSTRING("
      f"MD5(CONCAT_WS(',', {columns})), 1, 5) AS h FROM `t a`) AS hashes"
    )
    self.assertEqual(reply, f"[('{await self.database.hash_of([TABLE])}',)]")

  async def test_the_limit_cannot_be_lifted(self):
    await self.database.execute("SET max_statement_time = 0")
    self.assertEqual(await self.database.execute("SELECT SLEEP(60)"), TIMED_OUT)

  async def test_unseen_rows_are_not_read(self):
    reply = await self.database.execute("SELECT seq FROM seq_1_to_99999999999")
    self.assertTrue(reply.startswith("[(1,), (2,), "))
    self.assertEqual(len(reply), 800 + len("[TRUNCATED]"))
    self.assertEqual(await self.database.execute("SELECT 2"), "[(2,)]")

  async def test_statements_are_committed_at_once(self):
    for sql in ("BEGIN", "DELETE FROM `t a`", "ROLLBACK"):
      self.assertEqual(await self.database.execute(sql), "[]")
    self.assertEqual(await self.database.hash_of([TABLE]), "None")

  async def test_statements_cannot_leave_the_database(self):
    for sql, code in {
      "SHUTDOWN": 1227,
      "USE mysql": 1044,
      "SELECT * FROM mysql.user": 1142,
      "CREATE DATABASE other": 1044,
      "SELECT 1 INTO OUTFILE '/tmp/x'": 1227,
      "SELECT 1; SELECT 2": 1064,
    }.items():
      with self.subTest(sql=sql):
        reply = await self.database.execute(sql)
        self.assertTrue(reply.startswith(f"{code} (42000): "), reply)
    async with self.engine.open([TABLE]) as other:
      reply = await other.execute("SHOW DATABASES")
    self.assertEqual(reply.count("dbbench_"), 1)

  async def test_a_policy_cannot_disturb_grading_and_closing(self):
    for name, (statements, graded) in DISTURBANCES.items():
      with self.subTest(name):
        async with asyncio.timeout(30), self.engine.open([TABLE]) as database:
          before = await database.hash_of([TABLE])
          for sql in statements:
            await database.execute(sql.replace("DATABASE", database._name))
          after = await database.hash_of([TABLE])
          self.assertEqual(after, {"as before": before}.get(graded, graded))
          self.assertEqual(await database.execute("SELECT 1"), "[(1,)]")

  async def test_statements_end_connections_without_a_fault(self):
    for sql in ("KILL CONNECTION_ID()", "SET wait_timeout = 1"):
      with self.subTest(sql):
        await self.database.execute(sql)
        connection = self.database._connection
        self.database._kill(connection.thread_id())  # nobody waits a second
        self.assertEqual(await self.database.execute("SELECT 1"), LOST)
        self.assertEqual(await self.database.execute("SELECT 1"), "[(1,)]")

  async def test_characters_that_the_driver_cannot_read_get_a_reply(self):
    await self.database.execute("SET character_set_results = latin1")
    reply = await self.database.execute("SELECT 'é'")
    self.assertIn("can't decode", reply)
    self.assertEqual(await self.database.execute("SELECT 'é'"), "[('é',)]")

  async def test_every_result_of_a_procedure_is_read(self):
    sql = (
      "BEGIN NOT ATOMIC FOR i IN 1..200 DO SELECT i; END FOR; "
      "DELETE FROM `t a`; END"
    )
    self.assertEqual(await self.database.execute(sql), "[(1,)]")
    self.assertEqual(await self.database.execute("SELECT 2"), "[(2,)]")
    self.assertEqual(await self.database.hash_of([TABLE]), "None")

  async def test_endless_results_end_whatever_limit_they_set(self):
    endless = "BEGIN NOT ATOMIC WHILE 1 DO SELECT 1; END WHILE; END"
    unlimited = f"SET STATEMENT max_statement_time = 0 FOR {endless}"
    with mock.patch.object(mariadb, "GRACE_S", 0.5):
      for sql in (endless, unlimited):
        async with asyncio.timeout(60):
          self.assertEqual(await self.database.execute(sql), TIMED_OUT, sql)
        self.assertEqual(await self.database.execute("SELECT 2"), "[(2,)]")

  async def test_the_grader_reads_no_more_than_a_bound(self):
    with mock.patch.object(mariadb, "MAX_GRADED_ROWS", 4):
      self.assertEqual(await self.database.hash_of([TABLE]), "")

  @pytest.mark.slow
  async def test_a_transaction_that_outlives_its_connection(self):
    prepare = "XA START 'x'; UPDATE `t a` SET age = 9; XA END 'x'; XA PREPARE"
    async with asyncio.timeout(60), self.engine.open([TABLE]) as database:
      before = await database.hash_of([TABLE])
      await database.execute(
        f"BEGIN NOT ATOMIC {prepare} 'x'; KILL CONNECTION_ID(); END"
      )
      self.assertEqual(await database.hash_of([TABLE]), before)
    with mariadb_address().connect() as connection:
      connection.cursor().execute("XA ROLLBACK 'x'")

  @pytest.mark.slow
  async def test_the_death_of_the_server_is_a_fault(self):
    engine = MariaDBEngine()
    self.addAsyncCleanup(engine.close)
    with self.assertRaises(EnvironmentFault):
      async with engine.open([TABLE]) as database:
        engine._own_server._process.kill()
        engine._own_server._process.wait()
        with self.assertRaises(EnvironmentFault):
          await database.execute("SELECT 1")
        await database.hash_of([TABLE])
    async with engine.open([TABLE]) as database:  # on a server that is started
      self.assertEqual(await database.execute("SELECT 1"), "[(1,)]")

  async def test_leaving_drops_database_and_users(self):
    async with self.engine.open([TABLE]) as database:
      (row,) = ast.literal_eval(await database.execute("SELECT DATABASE()"))
      name = row[0]
      self.assertTrue(name.startswith("dbbench_"))
    connection = mariadb_address().connect()
    with connection, connection.cursor() as cursor:
      cursor.execute("SHOW DATABASES LIKE %s", (name,))
      self.assertEqual(cursor.fetchall(), ())
      users = "SELECT 1 FROM mysql.user WHERE user LIKE %s"
      cursor.execute(users, (f"{name}%",))
      self.assertEqual(cursor.fetchall(), ())

  async def test_leaving_stops_a_running_statement(self):
    engine = make_engine(statement_limit_s=600)
    async with asyncio.timeout(60):
      async with engine.open([TABLE]) as database:
        slow = asyncio.ensure_future(database.execute("SELECT SLEEP(600)"))
        await asyncio.sleep(0.1)
        self.assertFalse(slow.done())
        slow.cancel()
    with contextlib.suppress(asyncio.CancelledError):
      await slow
    self.assertTrue(slow.cancelled())

  @pytest.mark.slow
  async def test_bad_tables_are_a_fault(self):
    with self.assertRaisesRegex(EnvironmentFault, "'t a'"):
      async with self.engine.open([TABLE, TABLE]):
        pass


@pytest.mark.mariadb
class DBBenchOnMariaDBTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  num_tasks = 2
  # Properties of the tasks, which every engine shares.
  test_splits_share_no_problem = test_indices_are_stable = None
  test_expert_knows_the_mistakes_that_are_listed = None

  def make_environment(self):
    return DBBench(engine=make_engine())


@pytest.mark.mariadb
class OwnServerTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_the_server_starts_at_first_use_and_stops_on_close(self):
    needs_mariadb()
    engine = MariaDBEngine()
    async with engine.open([TABLE]) as database:
      reply = await database.execute("SELECT @@datadir")
    ((folder,),) = ast.literal_eval(reply)
    self.assertTrue(os.access(folder, os.R_OK))
    await engine.close()
    self.assertFalse(os.access(folder, os.F_OK))
