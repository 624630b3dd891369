"""Names that MySQL does not know where SQLite would: refused in its words.

Aliases of the SELECT list are no names in WHERE and ON; HAVING knows what is
shown or grouped by, and nothing else; a query in FROM has a name of its own;
names of tables have a case.
"""

from collections.abc import Collection, Iterator

from sqlglot import exp

from environments.dbbench.mysql.groups import Query, Schema, sources_of

_UNKNOWN = "1054 (42S22): Unknown column '{}' in '{}'"
_NO_ALIAS = "1248 (42000): Every derived table must have its own alias"
_NO_TABLE = "1146 (42S02): Table '{}.{}' doesn't exist"


def refusal_of(
  tree: exp.Expr, schema: Schema, tables: Collection[str], database: str
) -> str | None:
  """What MySQL says to the first name that it does not know, if any."""
  for table in tree.find_all(exp.Table):
    if _is_other_case(table, tables):
      return _NO_TABLE.format(database, table.name)
  for select in tree.find_all(exp.Select):
    sources = sources_of(select, schema)
    if sources is None:
      continue
    query = Query(select, sources, database)
    for clause, column in _misread(select, query):
      return _UNKNOWN.format(_written(column), clause)
  return None


def refusal_of_form(tree: exp.Expr) -> str | None:
  """What MySQL says to names that are wrong whatever the tables are."""
  if isinstance(tree, exp.Insert) and isinstance(tree.this, exp.Schema):
    seen: set[str] = set()
    for column in tree.this.expressions:
      if column.name.lower() in seen:
        return f"1110 (42000): Column '{column.name}' specified twice"
      seen.add(column.name.lower())
  target = _target(tree)
  if target and any(target == name for name in _read_beside(tree)):
    return (
      f"1093 (HY000): You can't specify target table '{target}' for update in "
      "FROM clause"
    )
  for select in tree.find_all(exp.Select):
    refusal = _of_sources(select)
    if refusal is not None:
      return refusal
  return None


def _of_sources(select: exp.Select) -> str | None:
  """Of what FROM lists: queries without a name, and names that are two."""
  names: set[str] = set()
  for node in _listed(select):
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


def _listed(select: exp.Select) -> list[exp.Expr]:
  from_ = select.args.get("from_")
  nodes = [from_.this] if from_ else []
  return nodes + [join.this for join in select.args.get("joins") or ()]


def _target(tree: exp.Expr) -> str:
  """The table that a statement changes and so may not read beside it."""
  if isinstance(tree, exp.Update | exp.Delete):
    return tree.this.name if isinstance(tree.this, exp.Table) else ""
  if isinstance(tree, exp.Insert) and isinstance(tree.expression, exp.Values):
    return str(tree.find(exp.Table).name)  # type: ignore[union-attr]
  return ""


def _read_beside(tree: exp.Expr) -> Iterator[str]:
  """The tables that subqueries read, but for queries in FROM: those are made
  before anything is changed.
  """
  for select in tree.find_all(exp.Select):
    inside = select.find_ancestor(exp.From, exp.Join)
    if inside is None:
      for node in _listed(select):
        if isinstance(node, exp.Table):
          yield node.name


def _is_other_case(table: exp.Table, tables: Collection[str]) -> bool:
  """Whether there is such a table only if case does not count."""
  return table.name not in tables and table.name.lower() in {
    name.lower() for name in tables
  }


def _misread(
  select: exp.Select, query: Query
) -> Iterator[tuple[str, exp.Column]]:
  """Columns that SQLite would find, and MySQL does not."""
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
  """The columns of a clause, but for those within queries of its own."""
  if node is None or isinstance(node, exp.Query | exp.Subquery):
    return
  if isinstance(node, exp.AggFunc) and not in_aggregates:
    return
  if isinstance(node, exp.Column):
    yield node
    return
  for child in node.iter_expressions():
    yield from _columns(child, in_aggregates=in_aggregates)


def _written(column: exp.Column) -> str:
  return f"{column.table}.{column.name}" if column.table else column.name
