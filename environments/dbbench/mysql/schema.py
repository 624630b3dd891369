"""Provides information_schema and SHOW on SQLite.

The tables of information_schema are temporary views, created when a statement
first names one. Each has MySQL 8's columns, as far as tables without keys fill
them; TABLE_ROWS is NULL, because MySQL's is only an estimate.
"""

import re

from sqlglot import exp

from environments.dbbench.engines.base import DATABASE
from environments.dbbench.mysql.syntax import StatementRefused, nodes_of

_SCHEMA = "information_schema"
_TEXT = "utf8mb4"
_COLLATION = "utf8mb4_0900_ai_ci"
_TABLES = f"""
  SELECT 'def' AS TABLE_CATALOG, '{DATABASE}' AS TABLE_SCHEMA,
    name AS TABLE_NAME,
    CASE type WHEN 'view' THEN 'VIEW' ELSE 'BASE TABLE' END AS TABLE_TYPE,
    'InnoDB' AS ENGINE, 10 AS VERSION, 'Dynamic' AS ROW_FORMAT,
    NULL AS TABLE_ROWS, 0 AS AVG_ROW_LENGTH, 16384 AS DATA_LENGTH,
    0 AS MAX_DATA_LENGTH, 0 AS INDEX_LENGTH, 0 AS DATA_FREE,
    NULL AS AUTO_INCREMENT, NULL AS CREATE_TIME, NULL AS UPDATE_TIME,
    NULL AS CHECK_TIME, '{_COLLATION}' AS TABLE_COLLATION, NULL AS CHECKSUM,
    '' AS CREATE_OPTIONS, '' AS TABLE_COMMENT
  FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name
"""
_COLUMNS = f"""
  SELECT 'def' AS TABLE_CATALOG, '{DATABASE}' AS TABLE_SCHEMA,
    t.name AS TABLE_NAME, c.name COLLATE NOCASE AS COLUMN_NAME,
    c.cid + 1 AS ORDINAL_POSITION, c.dflt_value AS COLUMN_DEFAULT,
    CASE c."notnull" WHEN 0 THEN 'YES' ELSE 'NO' END AS IS_NULLABLE,
    LOWER(c.type) AS DATA_TYPE,
    CASE LOWER(c.type) WHEN 'text' THEN 65535 END AS CHARACTER_MAXIMUM_LENGTH,
    CASE LOWER(c.type) WHEN 'text' THEN 65535 END AS CHARACTER_OCTET_LENGTH,
    NULL AS NUMERIC_PRECISION, NULL AS NUMERIC_SCALE,
    NULL AS DATETIME_PRECISION,
    CASE LOWER(c.type) WHEN 'text' THEN '{_TEXT}' END AS CHARACTER_SET_NAME,
    CASE LOWER(c.type) WHEN 'text' THEN '{_COLLATION}' END AS COLLATION_NAME,
    LOWER(c.type) AS COLUMN_TYPE,
    CASE WHEN c.pk THEN 'PRI' ELSE '' END AS COLUMN_KEY, '' AS EXTRA,
    'select,insert,update,references' AS PRIVILEGES, '' AS COLUMN_COMMENT,
    '' AS GENERATION_EXPRESSION, NULL AS SRS_ID
  FROM sqlite_master t JOIN pragma_table_info(t.name) c
  WHERE t.type IN ('table', 'view') ORDER BY t.name, c.cid
"""
_SCHEMATA = f"""
  SELECT 'def' AS CATALOG_NAME, column1 AS SCHEMA_NAME,
    '{_TEXT}' AS DEFAULT_CHARACTER_SET_NAME,
    '{_COLLATION}' AS DEFAULT_COLLATION_NAME, NULL AS SQL_PATH,
    'NO' AS DEFAULT_ENCRYPTION
  FROM (VALUES ('{DATABASE}'), ('{_SCHEMA}'))
"""


def _empty(columns: str) -> str:
  """Returns a query with these columns and no rows."""
  nulls = ", ".join(f"NULL AS {name}" for name in columns.split())
  return f"SELECT {nulls} WHERE 0"


VIEWS = {
  "TABLES": _TABLES,
  "COLUMNS": _COLUMNS,
  "SCHEMATA": _SCHEMATA,
  "VIEWS": _empty(
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME VIEW_DEFINITION CHECK_OPTION "
    "IS_UPDATABLE DEFINER SECURITY_TYPE CHARACTER_SET_CLIENT "
    "COLLATION_CONNECTION"
  ),
  "STATISTICS": _empty(
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME NON_UNIQUE INDEX_SCHEMA INDEX_NAME "
    "SEQ_IN_INDEX COLUMN_NAME COLLATION CARDINALITY SUB_PART PACKED NULLABLE "
    "INDEX_TYPE COMMENT INDEX_COMMENT IS_VISIBLE EXPRESSION"
  ),
  "KEY_COLUMN_USAGE": _empty(
    "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME TABLE_CATALOG "
    "TABLE_SCHEMA TABLE_NAME COLUMN_NAME ORDINAL_POSITION "
    "POSITION_IN_UNIQUE_CONSTRAINT REFERENCED_TABLE_SCHEMA "
    "REFERENCED_TABLE_NAME REFERENCED_COLUMN_NAME"
  ),
  "TABLE_CONSTRAINTS": _empty(
    "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME TABLE_SCHEMA "
    "TABLE_NAME CONSTRAINT_TYPE ENFORCED"
  ),
  "REFERENTIAL_CONSTRAINTS": _empty(
    "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME "
    "UNIQUE_CONSTRAINT_CATALOG UNIQUE_CONSTRAINT_SCHEMA UNIQUE_CONSTRAINT_NAME "
    "MATCH_OPTION UPDATE_RULE DELETE_RULE TABLE_NAME REFERENCED_TABLE_NAME"
  ),
}
_DESCRIBES = re.compile(
  r"\s*(?:DESC|DESCRIBE|EXPLAIN)\s+(`[^`]+`|[\w$]+)\s+(`[^`]+`|'[^']*'|[\w$]+)"
  r"\s*;?\s*\Z",
  re.IGNORECASE,
)
# EXPLAIN takes these statements, and then describes no table.
_EXPLAINED = ("SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "TABLE")
# SHOW has no rows for these, or an error if it names an unknown table.
_NO_ROWS = ("INDEX", "WARNINGS", "ERRORS", "TRIGGERS", "VARIABLES", "EVENTS")


def resolve_names(tree: exp.Expr) -> bool:
  """Replaces tables of information_schema by views, in place.

  Removes the database's own name from tables and columns. Returns whether the
  statement reads a view. Raises `StatementRefused` for unknown tables and
  databases.
  """
  reads_views = False
  for table in nodes_of(tree, exp.Table):
    if table.db.lower() == _SCHEMA:
      reads_views = True
      name = table.name.upper()
      if name not in VIEWS:
        raise StatementRefused(
          f"1109 (42S02): Unknown table '{table.name}' in {_SCHEMA}"
        )
      alias = table.alias or table.name
      table.replace(
        exp.alias_(exp.to_table(f'"{_SCHEMA}.{name}"'), alias, table=True)
      )
    elif table.db == DATABASE:
      table.set("db", None)
    elif table.db:
      raise StatementRefused(f"1049 (42000): Unknown database '{table.db}'")
  for column in nodes_of(tree, exp.Column):
    if column.db.lower() == _SCHEMA or column.db == DATABASE:
      column.set("db", None)
  return reads_views


def make_views() -> str:
  """Returns the statements that create the views."""
  return "".join(
    f'CREATE TEMP VIEW IF NOT EXISTS "{_SCHEMA}.{name}" AS {query};'
    for name, query in VIEWS.items()
  )


def described_column(sql: str) -> tuple[str, str] | None:
  """Returns table and column pattern of `DESCRIBE table column`, else None."""
  match = _DESCRIBES.match(sql)
  if match is None or match[1].upper() in _EXPLAINED:
    return None
  return match[1].strip("`"), match[2].strip("`'")


def show_query(tree: exp.Show) -> str | None:
  """Returns the query that answers SHOW; None if it is not supported."""
  like = tree.args.get("like")
  if tree.name == "TABLES":
    kind = ", table_type" if tree.args.get("full") else ""
    return _listing(f"table_name{kind}", "TABLES", "table_name", like)
  if tree.name == "DATABASES":
    return _listing("schema_name", "SCHEMATA", "schema_name", like)
  if tree.name in _NO_ROWS:
    target = tree.args.get("target")
    table = f"`{target.name}`" if target is not None else "sqlite_master"
    return f"SELECT 1 FROM {table} WHERE 0"
  return None


def _listing(columns: str, view: str, name: str, like: exp.Expr | None) -> str:
  query = f'SELECT {columns} FROM "{_SCHEMA}.{view}"'
  if like is not None:
    query += f" WHERE {name} LIKE {like.sql('sqlite')}"
  return f"{query} ORDER BY {name}"
