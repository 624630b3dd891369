"""Tests replies to listed statements; messages are those of MySQL 8's manual.

`statements.json` has, by section, tables and the replies to statements that run
on them one after the other.
"""

import json
import pathlib
import unittest

from absl.testing import parameterized

from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.problem import Table

LISTED = json.loads(
  pathlib.Path(__file__).with_name("statements.json").read_text()
)


class StatementsTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  @parameterized.named_parameters(
    (name, section) for name, section in LISTED["sections"].items()
  )
  async def test_replies(self, section):
    tables = [
      Table(name, tuple(columns), tuple(map(tuple, rows)))
      for name, (columns, *rows) in section["tables"].items()
    ]
    engine = SQLiteEngine()
    self.addAsyncCleanup(engine.close)
    async with engine.open(tables) as database:
      before = await database.hash_of(tables)
      replies = section["replies"]
      for sql, reply in replies.items():
        with self.subTest(sql=sql):
          self.assertEqual(await database.execute(sql), reply)
      if all(reply[0] == "1" for reply in replies.values()):  # errors alone
        self.assertEqual(await database.hash_of(tables), before)
