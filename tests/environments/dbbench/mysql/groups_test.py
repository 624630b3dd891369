"""Tests ONLY_FULL_GROUP_BY by the examples of MySQL 8's manual."""

import unittest

from environments.dbbench.engines.sqlite import SQLiteEngine
from environments.dbbench.problem import Table

TABLE = Table(
  "t",
  ("name", "city", "age"),
  (("Ann", "Oslo", "7"), ("Ben", "oslo", "45"), ("Cara", "Rome", "128")),
)
# Statement, code, number of the expression, clause, column.
REFUSED = (
  ("SELECT name, COUNT(*) FROM t GROUP BY city", 1055, 1, "name"),
  ("SELECT city, age + 1 FROM t GROUP BY city", 1055, 2, "age"),
  ("SELECT * FROM t GROUP BY city", 1055, 1, "name"),
  ("SELECT city, x.* FROM t x GROUP BY city", 1055, 2, "name"),
  ("SELECT IF(COUNT(*) > 2, city, name) FROM t GROUP BY city", 1055, 1, "name"),
  ("SELECT LOWER(city) FROM t GROUP BY UPPER(city)", 1055, 1, "city"),
  ("SELECT name FROM t WHERE city = 7 GROUP BY age", 1055, 1, "name"),
  ("SELECT name, city FROM t WHERE age = 7 GROUP BY name", 1055, 2, "city"),
  ("SELECT a FROM (SELECT age a FROM t GROUP BY city) d", 1055, 1, "age"),
  ("SELECT name, MAX(age) FROM t", 1140, 1, "name"),
  ("SELECT COUNT(*), city FROM t WHERE name = 7", 1140, 2, "city"),
  ("SELECT *, COUNT(*) FROM t", 1140, 1, "name"),
  ("INSERT INTO t SELECT name, city, MAX(age) FROM t", 1140, 1, "name"),
)
ORDERED = (
  ("SELECT city FROM t GROUP BY city ORDER BY age", 1055, 1, "age"),
  ("SELECT DISTINCT city FROM t ORDER BY city, age", 3065, 2, "age"),
  ("SELECT DISTINCT UPPER(city) FROM t ORDER BY city", 3065, 1, "city"),
)
ALLOWED = """
SELECT city, COUNT(*) FROM t GROUP BY city
SELECT CITY, MAX(age) + 1 m FROM t GROUP BY City HAVING m > 1 ORDER BY m
SELECT city FROM t GROUP BY city ORDER BY COUNT(*) DESC, city
SELECT UPPER(city), COUNT(*) FROM t GROUP BY UPPER(city)
SELECT UPPER(city) u, COUNT(*) FROM t GROUP BY u
SELECT UPPER(city), COUNT(*) FROM t GROUP BY 1
SELECT CONCAT(city, '!'), 3, 'x' FROM t GROUP BY t.city
SELECT name, MAX(age) FROM t WHERE name = 'Ann' AND age > 3
SELECT name FROM t WHERE 'Oslo' = city AND name = 'Ann' GROUP BY city
SELECT y.name, COUNT(*) FROM t x JOIN t y ON x.name = y.name GROUP BY x.name
SELECT c, m FROM (SELECT city c, MAX(age) m FROM t GROUP BY city) d GROUP BY c
SELECT city, ANY_VALUE(name) FROM t GROUP BY city
SELECT name, ROW_NUMBER() OVER (ORDER BY age) FROM t
SELECT COUNT(*) FROM t ORDER BY name
SELECT DISTINCT city c FROM t ORDER BY c
SELECT DISTINCT city c FROM t ORDER BY city
SELECT DISTINCT city, age FROM t ORDER BY age + 0
SELECT name FROM t WHERE age = (SELECT MAX(age) FROM t)
SELECT name, (SELECT MAX(age) FROM t) FROM t
""".strip().split("\n")
MODE = "incompatible with sql_mode=only_full_group_by"


class GroupsTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.database = await self.enterAsyncContext(SQLiteEngine().open([TABLE]))

  async def test_errors_name_the_nonaggregated_column(self):
    clauses = ((REFUSED, "SELECT list"), (ORDERED, "ORDER BY clause"))
    for statements, clause in clauses:
      for sql, code, number, column in statements:
        with self.subTest(sql=sql):
          reply = await self.database.execute(sql)
          self.assertRegex(
            reply,
            rf"^{code} \(\w+\): .*xpression #{number} of {clause} .*"
            rf"column 'dbbench\.\w+\.{column}'.* incompatible with ",
          )
    self.assertEqual(
      await self.database.execute("SELECT COUNT(*) FROM t"), "[(3,)]"
    )

  async def test_messages(self):
    for sql, words in (
      (
        "SELECT name, COUNT(*) FROM t GROUP BY city",
        "1055 (42000): Expression #1 of SELECT list is not in GROUP BY clause "
        "and contains nonaggregated column 'dbbench.t.name' which is not "
        "functionally dependent on columns in GROUP BY clause; this is " + MODE,
      ),
      (
        "SELECT x.name, MAX(age) FROM t x",
        "1140 (42000): In aggregated query without GROUP BY, expression #1 of "
        "SELECT list contains nonaggregated column 'dbbench.x.name'; this is "
        + MODE,
      ),
      (
        "SELECT DISTINCT city FROM t ORDER BY age",
        "3065 (HY000): Expression #1 of ORDER BY clause is not in SELECT list, "
        "references column 'dbbench.t.age' which is not in SELECT list; this "
        "is incompatible with DISTINCT",
      ),
    ):
      self.assertEqual(await self.database.execute(sql), words)

  async def test_allowed_statements(self):
    for sql in ALLOWED:
      with self.subTest(sql=sql):
        self.assertRegex(await self.database.execute(sql), r"^\[\(")

  async def test_unknown_names_are_reported_first(self):
    for sql, reply in (
      ("SELECT name, nope FROM t GROUP BY city", "1054 (42S22): Unknown colu"),
      ("SELECT name, MAX(age) FROM nope", "1146 (42S02): Table 'dbbench.nop"),
    ):
      self.assertTrue((await self.database.execute(sql)).startswith(reply))

  async def test_changed_tables_are_known(self):
    await self.database.execute("ALTER TABLE t ADD COLUMN extra TEXT")
    reply = await self.database.execute("SELECT extra, MAX(age) FROM t")
    self.assertIn("'dbbench.t.extra'", reply)
