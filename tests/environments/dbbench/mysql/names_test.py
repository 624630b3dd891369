"""Tests names that MySQL 8 refuses; messages are those of its manual."""

import unittest

from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.problem import Table

TABLES = (
  Table("people", ("id", "name"), (("1", "Ann"), ("2", "Ben"))),
  Table("bills", ("person", "amount"), (("1", "7"), ("1", "9"))),
)
SEVERAL_ROWS = "1242 (21000): Subquery returns more than 1 row"
TARGET = (
  "1093 (HY000): You can't specify target table 'people' for update in FROM "
  "clause"
)
REFUSED = {
  "SELECT id AS n FROM people WHERE n > 1": (
    "1054 (42S22): Unknown column 'n' in 'where clause'"
  ),
  "SELECT id FROM people HAVING name = 'Ann'": (
    "1054 (42S22): Unknown column 'name' in 'having clause'"
  ),
  "SELECT COUNT(*) FROM (SELECT id FROM people)": (
    "1248 (42000): Every derived table must have its own alias"
  ),
  "SELECT id FROM People": "1146 (42S02): Table 'dbbench.People' doesn't exist",
  "SELECT 1 FROM people, people": (
    "1066 (42000): Not unique table/alias: 'people'"
  ),
  "SELECT id FROM other.people": "1049 (42000): Unknown database 'other'",
  "USE other": "1049 (42000): Unknown database 'other'",
  "INSERT INTO people (id, ID) VALUES (1, 2)": (
    "1110 (42000): Column 'ID' specified twice"
  ),
  "UPDATE people SET id = 3 WHERE id = (SELECT MAX(id) FROM people)": TARGET,
  "DELETE FROM people WHERE id IN (SELECT id FROM people)": TARGET,
  "INSERT INTO people (id) VALUES ((SELECT MAX(id) FROM people))": TARGET,
  "SELECT name FROM people WHERE id = (SELECT person FROM bills)": SEVERAL_ROWS,
  "SELECT (SELECT amount FROM bills b WHERE b.person = p.id) FROM people p": (
    SEVERAL_ROWS
  ),
  "SELECT LEN(name) FROM people": (
    "1305 (42000): FUNCTION dbbench.LEN does not exist"
  ),
  "SELECT 1 FROM information_schema.nope": (
    "1109 (42S02): Unknown table 'nope' in information_schema"
  ),
}
ANSWERED = {
  "SELECT id AS n FROM people HAVING n > 1": "[('2',)]",
  "SELECT id AS name FROM people WHERE name = 'Ann'": "[('1',)]",
  "SELECT (SELECT MAX(amount) FROM bills WHERE person = p.id) FROM people p": (
    "[('9',), (None,)]"
  ),
  "SELECT name FROM people WHERE id = (SELECT person FROM bills LIMIT 1)": (
    "[('Ann',)]"
  ),
  "SELECT name FROM dbbench.people WHERE dbbench.people.id = 1": "[('Ann',)]",
  "SELECT DATABASE()": "[('dbbench',)]",
  "SELECT TABLE_NAME FROM information_schema.TABLES "
  "WHERE TABLE_SCHEMA = DATABASE()": "[('bills',), ('people',)]",
  "SELECT column_name, ordinal_position FROM INFORMATION_SCHEMA.COLUMNS c "
  "WHERE c.table_name = 'people' ORDER BY 2": "[('id', 1), ('name', 2)]",
  "SHOW TABLES LIKE 'p%'": "[('people',)]",
  "SHOW FULL TABLES": "[('bills', 'BASE TABLE'), ('people', 'BASE TABLE')]",
  "DESC people name": "[('name', 'text', 'YES', '', None, '')]",
  "SHOW INDEX FROM people": "[]",
  "UPDATE people SET name = 'x' WHERE id = "
  "(SELECT m FROM (SELECT MAX(id) m FROM people) t)": "[]",
  "DELETE p FROM people p JOIN bills b ON p.id = b.person": "[]",
  "SELECT * FROM people": "[('2', 'x')]",
}


class NamesTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.database = await self.enterAsyncContext(SQLiteEngine().open(TABLES))

  async def test_refused_statements(self):
    before = await self.database.hash_of(TABLES)
    for sql, reply in REFUSED.items():
      with self.subTest(sql=sql):
        self.assertEqual(await self.database.execute(sql), reply)
    self.assertEqual(await self.database.hash_of(TABLES), before)

  async def test_valid_statements(self):
    for sql, reply in ANSWERED.items():
      with self.subTest(sql=sql):
        self.assertEqual(await self.database.execute(sql), reply)

  async def test_information_schema_follows_changes(self):
    await self.database.execute("CREATE TABLE extra (a TEXT)")
    await self.database.execute("DROP TABLE bills")
    reply = await self.database.execute(
      "SELECT TABLE_NAME FROM information_schema.TABLES"
    )
    self.assertEqual(reply, "[('extra',), ('people',)]")
