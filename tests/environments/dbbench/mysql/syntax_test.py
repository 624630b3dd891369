"""Tests which statements are refused, against MySQL 8.0 and MariaDB."""

import itertools
import random
import re
import unittest

import pymysql
import pytest

from environments.dbbench.mysql.dialect import parsed
from environments.dbbench.mysql.syntax import Refused, tokens
from tests.environments.dbbench.data import mariadb_address

# Statement -> the part that error 1064 quotes. Some were recorded on MySQL.
STOPS = {
  "UPDATE t SET a = 2 WHERE Rank = 6;": "= 6",
  "UPDATE t SET Rank = 19 WHERE a = 'x';": "Rank = 19 WHERE a = 'x'",
  "UPDATE table SET a = 1": "table SET a = 1",
  "SELECT a FROM t WHERE Rank IN (8,9) AND b = 1": "IN (8,9) AND b = 1",
  "SELECT a FROM t WHERE Match > 16": "> 16",
  "SELECT a FROM t WHERE System = 'x' LIMIT 1": "System = 'x' LIMIT 1",
  "SELECT (Nov + Dec) / 12 FROM t": "Dec) / 12 FROM t",
  "SELECT MIN(LEFT(Release, 4)) FROM t": "Release, 4)) FROM t",
  "SELECT AVG(a) FROM t WHERE Time\\/Retired IS NOT NULL": (
    "\\/Retired IS NOT NULL"
  ),
  "UPDATE t SET a = '1' WHERE Tie no = 1;": "no = 1",
  "SELECT a FROM t WHERE b = 15.10 (100) AND c = 1": "(100) AND c = 1",
  "INSERT INTO my data (a) VALUES (1)": "data (a) VALUES (1)",
  "INSERT INTO t (a, b c) VALUES (1, 2)": "c) VALUES (1, 2)",
  "INSERT INTO t (a, 2007) VALUES (1, 2)": "2007) VALUES (1, 2)",
  "INSERT INTO t (a, %, b) VALUES (1, 2, 3)": "%, b) VALUES (1, 2, 3)",
  'SELECT "a" FROM "t" WHERE 1': '"t" WHERE 1',
  "SELECT a FROM 't'": "'t'",
  "SELECT a, FROM t": "FROM t",
  "SELECT a, , b FROM t": " b FROM t",  # behind the comma
  "SELECT a, * FROM t": "* FROM t",
  "SELECT a FROM t WHERE": "",
  "SELECT a FROM t WHERE a = 'it's'": "s'",
  "SELECT COUNT() FROM t": ") FROM t",
  "SELECT a FROM t ORDER b": "b",
  "SELECT CAST(a AS INT) FROM t": "INT) FROM t",
  "SELECT a FROM t LIMIT 'x'": "'x'",
  "SELECT a FROM t; SELECT b FROM t": "SELECT b FROM t",
  "DELETE t WHERE a = 1": "WHERE a = 1",
  "select top 3 a from t": "3 a from t",
  "SELECT a FROM t x FULL OUTER JOIN u ON 1": "FULL OUTER JOIN u ON 1",
  "SELECT a FROM t LIMIT -1": "-1",
  "SELECT a FROM t OFFSET 2": "2",
  "SELECT a FROM t FETCH FIRST 1 ROWS ONLY": "FETCH FIRST 1 ROWS ONLY",
  "SELECT a::int FROM t": "::int FROM t",
  "SELECT a FROM t WHERE b ILIKE 'x%'": "ILIKE 'x%'",
  "SELECT a FROM t WHERE b == 1": "= 1",
  "SELECT [a] FROM t": "[a] FROM t",
  "SELECT MAX(a, b) FROM t": "b) FROM t",
  "INSERT INTO t ('a') VALUES (1)": "'a') VALUES (1)",
  "UPDATE t SET 'a' = 1": "'a' = 1",
  "UPDATE t SET a = 1 SET b = 2": "SET b = 2",
  "UPDATE t SET a = 1 LIMIT 1, 2": " 2",
  "SELECT FROM t": "FROM t",
  "SELECT a FROM t GROUP BY": "",
}
# Valid statements that a careless parser refuses.
VALID = """
SELECT `Rank`, t.rank, `t`.`system`, count, `a b`.c FROM t AS system_
SELECT 1st, 2nd FROM 3rd WHERE t.4th = 5 AND Time.1 > .5
SELECT COUNT(*) count, SUM(DISTINCT a) 'the sum', MAX(b) AS "max" FROM t
SELECT *, a FROM t
SELECT t.*, d.t.* FROM t, d.t
SELECT DATE, TIME, YEAR, MONTH, DAY, STATUS, NAME, TYPE, POSITION, LEVEL FROM t
SELECT YEAR(date), LEFT(a, 2), REPLACE(a, ',', ''), IF(a, 1, 0), MOD(7, 3)
SELECT a FROM t WHERE a = -1 AND NOT b OR !c XOR d IS NOT TRUE AND e IS NULL
SELECT 'a' 'b' "c", N'd', _utf8mb4'e', x'41', 0x41, b'01', 1e3, 1.5e-3, .5
SELECT CASE a WHEN 1 THEN 2 END, CASE WHEN a THEN b ELSE c END FROM t
SELECT ROW_NUMBER() OVER (PARTITION BY a ORDER BY b DESC) AS r FROM t
SELECT SUM(a) OVER w, RANK() OVER (ORDER BY a) FROM t WINDOW w AS (ORDER BY b)
SELECT SUBSTRING(a FROM 2 FOR 3), TRIM(LEADING '0' FROM a), POSITION('x' IN a)
SELECT EXTRACT(YEAR FROM a), EXTRACT(YEAR_MONTH FROM a), CONVERT(a, SIGNED)
SELECT CAST(REPLACE(a, ',', '') AS DECIMAL(10, 2)), CONVERT(a USING utf8mb4)
SELECT DATE_ADD(a, INTERVAL 1 DAY), NOW() - INTERVAL 1 MONTH, CURRENT_DATE
SELECT GROUP_CONCAT(DISTINCT a ORDER BY b DESC, c SEPARATOR ';') FROM t
SELECT a FROM t WHERE (a, b) IN ((1, 2), (3, 4)) AND c NOT BETWEEN 1 AND 2
SELECT a FROM t WHERE a >= ALL (SELECT b FROM u) AND EXISTS (SELECT 1 FROM u)
SELECT (SELECT MAX(a) FROM t) - (SELECT MIN(a) FROM t) AS spread
SELECT a FROM (SELECT a FROM t) AS x JOIN u USING (a) LEFT JOIN v ON v.b = u.b
SELECT a FROM t JOIN (u CROSS JOIN v) ON t.a = u.a, w
(SELECT a FROM t ORDER BY a LIMIT 1) UNION ALL (SELECT b FROM u) ORDER BY 1
WITH RECURSIVE n (i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT i FROM n
SELECT a -- comment
SELECT a /* comment */ FROM t # comment
SELECT a FROM t LIMIT 5 OFFSET 2
SELECT a FROM t WHERE MATCH (a, b) AGAINST ('x' IN BOOLEAN MODE)
SELECT a->'$.b', a->>'$.c' FROM t
INSERT INTO t VALUES (1, NULL, DEFAULT, -3, 'x', (SELECT 1)), ROW(2)
INSERT INTO t () VALUES ()
INSERT INTO t SET a = 1, b = DEFAULT ON DUPLICATE KEY UPDATE a = VALUES(a)
INSERT IGNORE INTO d.t (a, `b`) SELECT a, b FROM u
REPLACE INTO t VALUE (1)
UPDATE t SET t.a = a + 1, b = 'x' WHERE c LIKE '%x' ESCAPE '|' LIMIT 1
UPDATE t JOIN u ON t.a = u.a SET t.b = u.b
DELETE FROM t WHERE a REGEXP '^x' ORDER BY b LIMIT 1
DELETE t FROM t JOIN u ON t.a = u.a WHERE u.b = 1
SHOW TABLES
""".strip().split("\n")
_WORDS = (
  "FROM WHERE AND ( ) = SELECT BY ORDER GROUP AS x 'y' 1 * . IN LIKE SET "
  'VALUES INTO ; - + IS NULL "q" `z` ON JOIN table name key ASC'
)


def refusal_of(sql):
  """Returns the error of a statement that cannot be parsed, else None."""
  try:
    parsed(sql)
  except Refused as error:
    return str(error)
  return None


class RefusalTest(unittest.TestCase):
  def test_error_1064_quotes_the_statement_from_where_mysql_stops(self):
    for sql, near in STOPS.items():
      with self.subTest(sql=sql):
        self.assertEqual(
          refusal_of(sql),
          "1064 (42000): You have an error in your SQL syntax; check the "
          "manual that corresponds to your MySQL server version for the right "
          f"syntax to use near '{near}' at line 1",
        )

  def test_valid_statements_are_not_refused(self):
    for sql in VALID:
      with self.subTest(sql=sql):
        self.assertIsNone(refusal_of(sql))

  def test_lines_are_counted(self):
    self.assertTrue(refusal_of("SELECT a,\nb\nRank\n").endswith("at line 3"))
    self.assertTrue(
      refusal_of("SELECT a FROM t\nWHERE").endswith("near '' at line 2")
    )

  def test_eighty_bytes_are_quoted(self):
    for filling, left in (("x" * 99, 79), ("\u00e9" * 99, 39)):
      refusal = refusal_of(f"SELECT a FROM t WHERE (]{filling}")
      self.assertIn(f"near ']{filling[:left]}' at", refusal)

  def test_empty_statements_are_refused_with_an_error_of_their_own(self):
    for sql in ("", " ; ", "\n"):
      self.assertEqual(refusal_of(sql), "1065 (42000): Query was empty")

  def test_nonsense_is_refused_without_a_crash(self):
    for sql in (
      "(" * 9999,
      "SELECT " + "-" * 9999,
      "NOT " * 4999,
      "'" * 9999,
      "SELECT DATE_ADD(, , INTERVAL 1 DAY)",
      "SELECT DATE_ADD(a, INTERVAL DAY) ASC",
    ):
      self.assertIsNotNone(refusal_of(sql))


@pytest.mark.mariadb
class BesideMariaDBTest(unittest.TestCase):
  """Compares random faults in valid statements with a server's verdict."""

  @classmethod
  def setUpClass(cls):
    connection = mariadb_address().connect()
    cls.addClassCleanup(connection.close)
    cls.cursor = connection.cursor()
    cls.cursor.execute("CREATE OR REPLACE DATABASE d")
    cls.addClassCleanup(cls.cursor.execute, "DROP DATABASE d")
    cls.cursor.execute("USE d")

  def error_of(self, sql):
    """Returns the code of MariaDB's error, or None."""
    try:
      self.cursor.execute(sql)
      self.cursor.fetchall()
    except pymysql.err.MySQLError as error:
      return error.args[0]
    return None

  @pytest.mark.slow
  def test_statements_that_run_are_not_refused(self):
    for sql in VALID:
      if self.error_of(sql) is None:
        with self.subTest(sql=sql):
          self.assertIsNone(refusal_of(sql))

  @pytest.mark.slow
  def test_statements_with_faults_are_refused(self):
    rng = random.Random(0)
    verdicts = []
    for _ in range(500):
      sql = _spoilt(rng, rng.choice(VALID))
      error, refusal = self.error_of(sql), refusal_of(sql)
      if error is None:
        with self.subTest(sql=sql):
          self.assertIsNone(refusal)
      elif error == 1064:
        verdicts.append(refusal is not None)
    self.assertGreater(len(verdicts), 200)
    self.assertGreater(sum(verdicts) / len(verdicts), 0.8)


def _spoilt(rng, sql):
  """Removes, inserts, changes or swaps one or two words of the statement."""
  starts = [token.start for token in tokens(sql)]
  words = [
    sql[start:end].strip()
    for start, end in itertools.pairwise([*starts, len(sql)])
  ]
  for _ in range(rng.choice((1, 1, 2))):
    at, other = rng.randrange(len(words)), rng.randrange(len(words))
    new = rng.choice(_WORDS.split())
    words = rng.choice(
      (
        words[:at] + words[at + 1 :] or words,
        [*words[:at], new, *words[at:]],
        [*words[:at], new, *words[at + 1 :]],
        [*words[:at], words[other], *words[at + 1 :]],
      )
    )
  return re.sub(r"(\w) \(", r"\1(", " ".join(words))
