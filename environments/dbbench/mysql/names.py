"""Refuses names that SQLite resolves and MySQL does not, with MySQL's errors.

- WHERE and ON do not know the aliases of the SELECT list.
- HAVING knows selected and grouped columns only.
- A derived table needs an alias.
- Names of tables are case-sensitive.
"""

from collections.abc import Collection, Iterator

from sqlglot import exp

from environments.dbbench.mysql.groups import (
  Query,
  Schema,
  source_nodes,
  sources_of,
)
from environments.dbbench.mysql.syntax import nodes_of

_UNKNOWN = "1054 (42S22): Unknown column '{}' in '{}'"
_NO_ALIAS = "1248 (42000): Every derived table must have its own alias"
_NO_TABLE = "1146 (42S02): Table '{}.{}' doesn't exist"


def refusal_of(
  tree: exp.Expr, schema: Schema, tables: Collection[str], database: str
) -> str | None:
  """Returns the error for the first unknown name, else None."""
  for table in nodes_of(tree, exp.Table):
    if _is_other_case(table, tables):
      return _NO_TABLE.format(database, table.name)
  for select in nodes_of(tree, exp.Select):
    sources = sources_of(select, schema)
    if sources is None:
      continue
    query = Query(select, sources, database)
    for clause, column in _unknown_columns(select, query):
      name = f"{column.table}.{column.name}" if column.table else column.name
      return _UNKNOWN.format(name, clause)
  return None


def refusal_of_form(tree: exp.Expr) -> str | None:
  """Returns the error for names that are wrong in any database, else None."""
  if isinstance(tree, exp.Insert) and isinstance(tree.this, exp.Schema):
    seen: set[str] = set()
    for column in tree.this.expressions:
      if column.name.lower() in seen:
        return f"1110 (42000): Column '{column.name}' specified twice"
      seen.add(column.name.lower())
  target = _target(tree)
  if target and target in _read_tables(tree):
    return (
      f"1093 (HY000): You can't specify target table '{target}' for update in "
      "FROM clause"
    )
  for select in nodes_of(tree, exp.Select):
    refusal = _refusal_of_sources(select)
    if refusal is not None:
      return refusal
  return None


def _refusal_of_sources(select: exp.Select) -> str | None:
  """Returns the error for FROM: no alias, or the same alias twice."""
  names: set[str] = set()
  for node in source_nodes(select):
    is_query = isinstance(node, exp.Subquery) and isinstance(
      node.this, exp.Query
    )
    if is_query and not node.alias:
      return _NO_ALIAS
    name = node.alias_or_name
    if name and name in names:
      return f"1066 (42000): Not unique table/alias: '{name}'"
    names.add(name)
  return None


def _target(tree: exp.Expr) -> str:
  """Returns the table that a statement changes and must not read."""
  if isinstance(tree, exp.Update | exp.Delete):
    return tree.this.name if isinstance(tree.this, exp.Table) else ""
  if isinstance(tree, exp.Insert) and isinstance(tree.expression, exp.Values):
    return str(tree.find(exp.Table).name)  # type: ignore[union-attr]
  return ""


def _read_tables(tree: exp.Expr) -> Iterator[str]:
  """Yields the tables that subqueries read.

  Derived tables do not count: MySQL materializes them before the change.
  """
  for select in nodes_of(tree, exp.Select):
    if select.find_ancestor(exp.From, exp.Join) is None:
      for node in source_nodes(select):
        if isinstance(node, exp.Table):
          yield node.name


def _is_other_case(table: exp.Table, tables: Collection[str]) -> bool:
  """Checks whether only a table of the name in another case exists."""
  return table.name not in tables and table.name.lower() in {
    name.lower() for name in tables
  }


def _unknown_columns(
  select: exp.Select, query: Query
) -> Iterator[tuple[str, exp.Column]]:
  """Yields clause and column where only SQLite finds the column."""
  conditions = [("where clause", select.args.get("where"))]
  conditions += [
    ("on clause", join.args.get("on"))
    for join in select.args.get("joins") or ()
  ]
  for clause, condition in conditions:
    for column in _columns(condition):
      is_alias = not column.table and column.name.lower() in query.aliases
      if is_alias and query.place_of(column) is None:
        yield clause, column
  for column in _columns(select.args.get("having"), in_aggregates=False):
    if not query.is_known_to_having(column):
      yield "having clause", column


def _columns(
  node: exp.Expr | None, *, in_aggregates: bool = True
) -> Iterator[exp.Column]:
  """Yields the columns of a clause, without those of its subqueries."""
  if node is None or isinstance(node, exp.Query | exp.Subquery):
    return
  if isinstance(node, exp.AggFunc) and not in_aggregates:
    return
  if isinstance(node, exp.Column):
    yield node
    return
  for child in node.iter_expressions():
    yield from _columns(child, in_aggregates=in_aggregates)
