"""Compares replies and tables of SQLite with those of MariaDB.

`conformance_statements.json` has the tables, the statements that give the same
on both engines by kind, and those that differ by reason; each of these must
still differ, so that the list stays true.
"""

import json
import pathlib
import re
import unittest

import pytest

from environments.dbbench.engines import connector
from environments.dbbench.engines.mariadb import MariaDBEngine
from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.problem import Table
from tests.environments.dbbench.data import mariadb_address

LISTED = json.loads(
  pathlib.Path(__file__).with_name("conformance_statements.json").read_text()
)


def _table(name, columns, rows):
  return Table(name, tuple(columns), tuple(map(tuple, rows)))


def _pairs(statements):
  return [(kind, sql) for kind, listed in statements.items() for sql in listed]


TABLES = (
  _table("people", *LISTED["people"]),
  _table("Paid Bills", *LISTED["bills"]),
)
EQUAL, DIFFERENT = _pairs(LISTED["equal"]), _pairs(LISTED["different"])
SAMPLE = 3  # of so many statements, one is tried in the short suite


@pytest.mark.mariadb
class ConformanceTest(unittest.IsolatedAsyncioTestCase):
  every = SAMPLE

  async def outcome(self, engine, sql):
    """Returns the reply, and the hash of the tables after the statement."""
    async with engine.open(TABLES) as database:
      name = getattr(database, "_name", "dbbench")
      reply = await connector.execute(
        database, sql.replace("dbbench.", f"{name}.")
      )
      reply = re.sub("dbbench_[0-9a-f]+", "dbbench", reply)
      if not reply.startswith("["):  # of an error, the code alone
        reply = reply.partition(" ")[0]
      return reply, await database.hash_of(TABLES)

  @pytest.mark.slow
  async def test_replies_and_tables_are_equal(self):
    mariadb, sqlite = MariaDBEngine(mariadb_address()), SQLiteEngine()
    self.addAsyncCleanup(mariadb.close)
    self.addAsyncCleanup(sqlite.close)
    for statements, check in (
      (EQUAL, self.assertEqual),
      (DIFFERENT, self.assertNotEqual),
    ):
      for kind, sql in statements[:: self.every]:
        with self.subTest(kind=kind, sql=sql):
          expected = await self.outcome(mariadb, sql)
          check(await self.outcome(sqlite, sql), expected)


@pytest.mark.full
class FullConformanceTest(ConformanceTest):
  every = 1


class ListTest(unittest.TestCase):
  def test_few_statements_differ(self):
    equal, different = ({sql for _, sql in x} for x in (EQUAL, DIFFERENT))
    self.assertFalse(equal & different)
    self.assertLess(len(different), 0.16 * len(equal | different))
