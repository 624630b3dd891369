"""Implements MySQL 8's ONLY_FULL_GROUP_BY, which is on by default.

A grouped query may select grouped expressions, aggregates, and columns that
depend functionally on grouped columns. Neither SQLite nor MariaDB has this rule
or its errors. See MySQL 8.0 Reference Manual, sections 14.19.3 and 14.19.4.

Dependences come from equalities in WHERE and ON, since no table has a key.
Statements with unknown tables or columns pass: another error names those.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from environments.dbbench.mysql.syntax import nodes_of

_GROUPED = (
  "1055 (42000): Expression #{n} of {clause} is not in GROUP BY clause and "
  "contains nonaggregated column '{column}' which is not functionally "
  "dependent on columns in GROUP BY clause; this is incompatible with "
  "sql_mode=only_full_group_by"
)
_NO_GROUPS = (
  "1140 (42000): In aggregated query without GROUP BY, expression #{n} of "
  "{clause} contains nonaggregated column '{column}'; this is incompatible "
  "with sql_mode=only_full_group_by"
)
_DISTINCT = (
  "3065 (HY000): Expression #{n} of {clause} is not in SELECT list, references "
  "column '{column}' which is not in SELECT list; this is incompatible with "
  "DISTINCT"
)

Schema = Callable[[str], Sequence[str]]  # the columns of a table; () if none
_Place = tuple[str, str]  # source and column, in lower case


def needs_check(tree: exp.Expr) -> bool:
  """Checks whether the statement has a query that the rule is about."""
  return any(
    select.args.get("group")
    or (select.args.get("distinct") and select.args.get("order"))
    or aggregates(select)
    for select in nodes_of(tree, exp.Select)
  )


def refusal_of(tree: exp.Expr, schema: Schema, database: str) -> str | None:
  """Returns the error for the first bad query, inner ones first, else None."""
  for select in reversed(nodes_of(tree, exp.Select)):
    sources = sources_of(select, schema)
    if sources is None:
      continue
    refusal = Query(select, sources, database).refusal()
    if refusal is not None:
      return refusal
  return None


@dataclasses.dataclass(frozen=True)
class QuerySource:
  """A table or a derived table of FROM."""

  name: str
  columns: Sequence[str]
  keys: frozenset[str] | None = None  # columns that determine all others


class Query:
  """One SELECT whose sources are all known."""

  def __init__(
    self, select: exp.Select, sources: Sequence[QuerySource], database: str
  ):
    self._select = select
    self._database = database
    self._sources = {source.name.lower(): source for source in sources}
    self.aliases: dict[str, exp.Expr] = {
      expression.alias.lower(): expression.this
      for expression in select.expressions
      if isinstance(expression, exp.Alias)
    }
    group = select.args.get("group")
    self._groups = [self._group(e) for e in group.expressions] if group else []

  def refusal(self) -> str | None:
    """Returns the error if MySQL refuses the query, else None."""
    select = self._select
    if select.args.get("group"):
      return self._first_nonaggregated(_GROUPED, with_order=True)
    if aggregates(select):  # one row needs no order
      return self._first_nonaggregated(_NO_GROUPS, with_order=False)
    if select.args.get("distinct") and select.args.get("order"):
      return self._first_unselected()
    return None

  def _first_nonaggregated(
    self, message: str, *, with_order: bool
  ) -> str | None:
    """Returns the error for the first column with several values per group."""
    keys = {self._key(group) for group in self._groups}
    dependent = self._dependent()
    clauses = [("SELECT list", list(self._selected()))]
    order = self._select.args.get("order")
    if order is not None and with_order:
      terms = [o.this for o in order.expressions if self._has_columns(o.this)]
      clauses.append(("ORDER BY clause", terms))
    for clause, expressions in clauses:
      for n, expression in enumerate(expressions, 1):
        for place in self._free_columns(expression, keys):
          if place not in dependent:
            return self._error(message, n, clause, place)
    return None

  def _first_unselected(self) -> str | None:
    """Returns the error for ORDER BY a column that DISTINCT drops."""
    keys = {self._key(e) for e in self._selected()}
    order = self._select.args["order"]
    for n, ordered in enumerate(order.expressions, 1):
      if not self._has_columns(ordered.this):
        continue
      for place in self._free_columns(ordered.this, keys):
        return self._error(_DISTINCT, n, "ORDER BY clause", place)
    return None

  def is_known_to_having(self, column: exp.Column) -> bool:
    """Checks whether HAVING may name the column outside of an aggregate.

    It may if the column is selected, grouped or of an outer query.
    """
    if not column.table and column.name.lower() in self.aliases:
      return True
    place = self.place_of(column)
    if place is None:
      return bool(self._select.parent)
    known = [*self._selected(), *self._groups]
    return place in map(self.place_of, known)

  def _has_columns(self, term: exp.Expr) -> bool:
    """Checks that a term of ORDER BY is neither a position nor an alias."""
    if isinstance(term, exp.Literal):
      return False
    return not (
      isinstance(term, exp.Column)
      and not term.table
      and term.name.lower() in self.aliases
    )

  def _selected(self) -> Iterator[exp.Expr]:
    """Yields the expressions of the SELECT list, with stars expanded."""
    for expression in self._select.expressions:
      if not expression.is_star:
        yield expression.unalias()
        continue
      table = getattr(expression, "table", "").lower()
      for name, source in self._sources.items():
        if table in ("", name):
          for column in source.columns:
            yield exp.column(column, table=source.name)

  def _group(self, expression: exp.Expr) -> exp.Expr:
    """Resolves a term of GROUP BY, which may be a position or an alias."""
    if isinstance(expression, exp.Literal) and not expression.is_string:
      number = int(expression.name) if expression.name.isdigit() else 0
      selected = list(self._selected())
      return selected[number - 1] if 0 < number <= len(selected) else expression
    if isinstance(expression, exp.Column) and self.place_of(expression) is None:
      alias = self.aliases.get(expression.name.lower())
      return expression if alias is None else alias
    return expression

  def _free_columns(self, node: exp.Expr, keys: set[str]) -> Iterator[_Place]:
    """Yields the columns outside of aggregates and of expressions in `keys`."""
    if isinstance(node, exp.Query | exp.Subquery | exp.AnyValue):
      return
    if isinstance(node, exp.AggFunc) and not isinstance(
      node.parent, exp.Window
    ):
      return
    if self._key(node) in keys:
      return
    if isinstance(node, exp.Column):
      place = self.place_of(node)
      if place is not None:
        yield place
      return
    for child in node.iter_expressions():
      yield from self._free_columns(child, keys)

  def _dependent(self) -> set[_Place]:
    """Returns the columns that depend functionally on grouped columns."""
    dependent = {
      place
      for group in self._groups
      if isinstance(group, exp.Column) and (place := self.place_of(group))
    }
    pairs: list[tuple[_Place, _Place]] = []
    for left, right in self._equalities():
      a, b = self.place_of(left), self.place_of(right)
      if a and b:
        pairs += [(a, b), (b, a)]
      elif a and _is_text(right):
        dependent.add(a)
      elif b and _is_text(left):
        dependent.add(b)
    while more := self._follow(dependent, pairs) - dependent:
      dependent |= more
    return dependent

  def _follow(
    self, dependent: set[_Place], pairs: Sequence[tuple[_Place, _Place]]
  ) -> set[_Place]:
    """Returns the columns that depend on `dependent` in one step."""
    followed = {b for a, b in pairs if a in dependent}
    for name, source in self._sources.items():
      if source.keys is not None and all(
        (name, key) in dependent for key in source.keys
      ):
        followed |= {(name, column.lower()) for column in source.columns}
    return followed

  def _equalities(self) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """Yields the sides of each equality that holds in every row."""
    where = self._select.args.get("where")
    conditions = [where.this] if where else []
    for join in self._select.args.get("joins") or ():
      if join.args.get("on"):
        conditions.append(join.args["on"])
    while conditions:
      condition = conditions.pop().unnest()
      if isinstance(condition, exp.And):
        conditions += [condition.left, condition.right]
      elif isinstance(condition, exp.EQ):
        yield condition.left.unnest(), condition.right.unnest()

  def place_of(self, node: exp.Expr) -> _Place | None:
    """Returns the place of a column; None if no source of the query has it."""
    if not isinstance(node, exp.Column):
      return None
    name, table = node.name.lower(), node.table.lower()
    for source in [table] if table else self._sources:
      known = self._sources.get(source)
      if known and name in map(str.lower, known.columns):
        return source, name
    return None

  def _key(self, node: exp.Expr) -> str:
    """Returns a text that is the same for equal expressions."""
    node = node.copy().unnest()
    for column in nodes_of(node, exp.Column):
      place = self.place_of(column)
      if place is not None:
        named = exp.column(place[1], table=place[0], quoted=True)
        if column is node:
          return named.sql("mysql")
        column.replace(named)
    return node.sql("mysql").lower()

  def _error(self, message: str, n: int, clause: str, place: _Place) -> str:
    source = self._sources[place[0]]
    column = next(c for c in source.columns if c.lower() == place[1])
    return message.format(
      n=n, clause=clause, column=f"{self._database}.{source.name}.{column}"
    )


def sources_of(select: exp.Select, schema: Schema) -> list[QuerySource] | None:
  """Returns the sources of FROM and its joins; None if one is not known."""
  sources = [_source_of(n, select, schema) for n in source_nodes(select)]
  known = [source for source in sources if source is not None]
  return known if len(known) == len(sources) else None


def source_nodes(select: exp.Select) -> list[exp.Expr]:
  """Returns the tables and subqueries of FROM and its joins."""
  from_ = select.args.get("from_")
  nodes = [from_.this] if from_ else []
  return nodes + [join.this for join in select.args.get("joins") or ()]


def _source_of(
  node: exp.Expr, select: exp.Select, schema: Schema
) -> QuerySource | None:
  if isinstance(node, exp.Subquery):
    return _of_query(node.alias, node.unnest())
  if not isinstance(node, exp.Table):
    return None
  for with_ in _withs(select):
    for named in with_.expressions:
      if named.alias.lower() == node.name.lower():
        return _of_query(node.alias_or_name, named.this)
  columns = () if node.db else schema(node.name)
  return QuerySource(node.alias_or_name, columns) if columns else None


def _withs(node: exp.Expr | None) -> Iterator[exp.Expr]:
  """Yields the WITH clauses that a query can use, inner ones first."""
  while node is not None:
    if with_ := node.args.get("with_"):
      yield with_
    node = node.parent


def _of_query(name: str, query: exp.Expr) -> QuerySource | None:
  if not isinstance(query, exp.Select) or query.is_star:
    return None
  columns = [e.alias_or_name for e in query.expressions]
  if not all(columns):
    return None
  return QuerySource(name, columns, _keys_of(query))


def _keys_of(query: exp.Select) -> frozenset[str] | None:
  """Returns the grouped columns; None if the query does not select them all."""
  group = query.args.get("group")
  if not group:
    return None
  selected = {
    e.unalias().name.lower(): e.alias_or_name.lower()
    for e in query.expressions
    if isinstance(e.unalias(), exp.Column)
  }
  keys = [selected.get(e.name.lower()) for e in group.expressions]
  return frozenset(key for key in keys if key) if all(keys) else None


def aggregates(select: exp.Select) -> bool:
  """Checks whether the query has an aggregate outside of its subqueries."""
  nodes: list[exp.Expr] = [*select.expressions]
  nodes += [e for key in ("having", "order") if (e := select.args.get(key))]
  while nodes:
    node = nodes.pop()
    if isinstance(node, exp.Query | exp.Subquery):
      continue
    if (
      isinstance(node, exp.AggFunc)
      and not isinstance(node, exp.AnyValue)
      and not isinstance(node.parent, exp.Window)
    ):
      return True
    nodes += node.iter_expressions()
  return False


def _is_text(node: exp.Expr) -> bool:
  """Checks for a text literal: equality with it leaves a column one value.

  Equality with a number does not: '7' and '7.0' both equal 7.
  """
  return isinstance(node, exp.Literal) and node.is_string
