"""Statements that a policy may write and that would take long, by kind.

They are about the table `old shops` (shop, city, price). The last statement of
each kind does not fit into the budget of an event loop.
"""

_TABLE = "`old shops`"
_NUMBERS = (
  "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) "
)
_ENDLESS = _NUMBERS.replace(" LIMIT {}", "")
_PRODUCT = ", ".join(f"{_TABLE} t{i}" for i in range(12))
_BOMB = "REPEAT('x', 90000)"


def _nested(before: str, after: str, count: int) -> str:
  return before * count + "price" + after * count


def _view(name: str, query: str) -> list[str]:
  return [f"ALTER TABLE {_TABLE} RENAME TO s", f"CREATE VIEW {name} AS {query}"]


LONG_STATEMENTS: dict[str, list[str]] = {
  "joins that sqlglot reads 2^n times": [
    f"SELECT 1 FROM {_TABLE}" + "".join(f" JOIN t t{i}" for i in range(20))
  ],
  "parentheses": ["SELECT " + _nested("(", ")", 3000)],
  "CASE": ["SELECT " + _nested("CASE WHEN 1 THEN ", " END", 100)],
  "NOT": ["SELECT " + _nested("NOT ", "", 500)],
  "minus": ["SELECT " + _nested("- ", "", 500)],
  "AND": ["SELECT 1 WHERE " + " AND ".join(["price = 1"] * 1000)],
  "a long list": [
    f"SELECT shop FROM {_TABLE} WHERE price IN ({', '.join('7' * 4000)})"
  ],
  "lists in lists": [
    "SELECT "
    + "CONCAT(" * 6
    + "shop"
    + " IN (1, 'x', 2, 'y'))" * 6
    + f" FROM {_TABLE}"
  ],
  "UPDATE that reads what it sets": [
    f"UPDATE {_TABLE} SET "
    + ", ".join(
      f"{a} = CONCAT({', '.join([b] * 8)})"
      for a, b in [("shop", "city"), ("city", "shop")] * 5
    )
  ],
  "unions": [" UNION ALL ".join(["SELECT 1"] * 1000)],
  "a long literal": ["SELECT '" + "x" * 19_000 + "'"],
  "REPEAT": [f"SELECT LENGTH(REPEAT({_BOMB}, 90000)) FROM {_PRODUCT}"],
  "MOD of a text": ["SELECT MOD(REPEAT('1', 100000), 3)"],
  "LPAD": ["SELECT LPAD('x', 99999, REPEAT('y', 9999))"],
  "REPLACE": [f"SELECT REPLACE({_BOMB}, CONCAT({_BOMB}, 'y'), 'z')"],
  "CONCAT": [f"SELECT MAX(CONCAT(t1.shop, t2.city)) FROM {_PRODUCT}"],
  "GROUP_CONCAT": [f"SELECT GROUP_CONCAT({_BOMB}) FROM {_PRODUCT}"],
  "HEX": [f"SELECT HEX(HEX({_BOMB}))"],
  "a large blob": ["SELECT HEX(RANDOMBLOB(300000000))"],
  "LIKE": [
    f"SELECT COUNT(*) FROM {_PRODUCT} WHERE shop LIKE '%a%a%a%a%b'",
    f"SELECT {_BOMB} LIKE CONCAT(REPEAT('%x', 40000), 'y')",
  ],
  "FIND_IN_SET": ["SELECT FIND_IN_SET('y', REPEAT('x,', 40000))"],
  "CONV": [
    "SELECT CONV(REPEAT('9', 4000), 10, 2), CONV(REPEAT('z', 90000), 36, 2)"
  ],
  "JSON": ["SELECT JSON_VALID(REPEAT('[', 90000))"],
  "dates": ["SELECT DATE_FORMAT('2000-01-01', REPEAT('%M', 40000))"],
  "STR_TO_DATE": ["SELECT STR_TO_DATE(REPEAT('1', 9999), REPEAT('%Y', 9999))"],
  "deviations": [
    _NUMBERS.format(900_000) + "SELECT STDDEV(i), VAR_SAMP(i) FROM n"
  ],
  "recursion": [_ENDLESS + "SELECT COUNT(*) FROM n"],
  "a product": [f"SELECT COUNT(*) FROM {_PRODUCT}"],
  "an ordered product": [f"SELECT * FROM {_PRODUCT} ORDER BY t5.shop"],
  "a random order": [f"SELECT t1.shop FROM {_PRODUCT} ORDER BY RAND()"],
  "comparisons of long texts": [
    f"SELECT DISTINCT {_BOMB} COLLATE utf8mb4_general_ci = CONCAT({_BOMB}, 'y')"
  ],
  "doubling": [f"INSERT INTO {_TABLE} SELECT * FROM {_TABLE}"] * 13,
  "columns": [
    "CREATE TABLE w (" + ", ".join(f"c{i} TEXT" for i in range(900)) + ")",
    "SELECT * FROM w a, w b",
  ],
  "ALTER": [f"ALTER TABLE {_TABLE} ADD COLUMN c{i} TEXT" for i in range(3)],
  "indexes": [f"CREATE INDEX i{i} ON {_TABLE} (shop)" for i in range(3)],
  "views of views": [
    *_view("v0", "SELECT * FROM s"),
    *(
      f"CREATE VIEW v{i} AS SELECT a.* FROM v{i - 1} a, v{i - 1} b"
      for i in range(1, 9)
    ),
    "SELECT COUNT(*) FROM v8",
  ],
  "an endless view in place of the table": _view(
    _TABLE, _ENDLESS + "SELECT i AS shop, i AS city, i AS price FROM n"
  ),
  "a large view in place of the table": _view(
    _TABLE, "SELECT a.* FROM s a, s b, s c, s d, s e, s f, s g, s h, s i, s j"
  ),
  "generated columns": [
    "CREATE TABLE g (c0 TEXT, "
    + ", ".join(
      f"c{i} TEXT GENERATED ALWAYS AS (CONCAT(c{i - 1}, c{i - 1}))"
      for i in range(1, 30)
    )
    + ")",
    "INSERT INTO g (c0) VALUES ('x')",
    "SELECT * FROM g",
  ],
  "common table expressions": [
    f"WITH c0 AS (SELECT shop FROM {_TABLE}), "
    + ", ".join(
      f"c{i} AS (SELECT a.shop FROM c{i - 1} a, c{i - 1} b)"
      for i in range(1, 8)
    )
    + " SELECT COUNT(*) FROM c7"
  ],
  "many long cells": [
    "SELECT " + ", ".join(["REPEAT('x', 9000)"] * 40) + f" FROM {_PRODUCT}"
  ],
}
