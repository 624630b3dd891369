"""Which statements MySQL 8's ONLY_FULL_GROUP_BY refuses, and in what words.

A grouped query may show what is one value per group: a grouped expression, what
follows from the grouped columns, an aggregate. The mode is on by default, and
neither SQLite nor MariaDB has MySQL's rule or words. See MySQL 8.0 Reference
Manual, section 14.19.3 and 14.19.4 (functional dependence).

What follows is told from equalities in WHERE and ON, as no table has a key.
Where a table or a column is not known, nothing is refused: another error names
it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

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
_Place = tuple[str, str]  # a column: the name of its source, and its own


def needs_check(tree: exp.Expr) -> bool:
  """Whether any query in the statement is of the kinds that may be refused."""
  return any(
    select.args.get("group")
    or (select.args.get("distinct") and select.args.get("order"))
    or aggregates(select)
    for select in tree.find_all(exp.Select)
  )


def refusal_of(tree: exp.Expr, schema: Schema, database: str) -> str | None:
  """What MySQL says to the first query that it refuses, inner ones first."""
  for select in reversed(list(tree.find_all(exp.Select))):
    sources = sources_of(select, schema)
    if sources is None:
      continue
    refusal = Query(select, sources, database).refusal()
    if refusal is not None:
      return refusal
  return None


@dataclasses.dataclass(frozen=True)
class Source:
  """A table, or a query in its place, as FROM names it."""

  name: str
  columns: Sequence[str]
  keys: frozenset[str] | None = None  # columns that determine all others


class Query:
  """One SELECT, its FROM known."""

  def __init__(
    self, select: exp.Select, sources: Sequence[Source], database: str
  ):
    self._select = select
    self._database = database
    self._sources = {source.name.lower(): source for source in sources}
    self.aliases: dict[str, exp.Expr] = {
      shown.alias.lower(): shown.this
      for shown in select.expressions
      if isinstance(shown, exp.Alias)
    }
    group = select.args.get("group")
    self._groups = [self._group(e) for e in group.expressions] if group else []

  def refusal(self) -> str | None:
    select = self._select
    if select.args.get("group"):
      return self._first_loose(_GROUPED, with_order=True)
    if aggregates(select):  # one row, whose order is no question
      return self._first_loose(_NO_GROUPS, with_order=False)
    if select.args.get("distinct") and select.args.get("order"):
      return self._first_unshown()
    return None

  def _first_loose(self, words: str, *, with_order: bool) -> str | None:
    """The first column that is not one value per group."""
    keys = {self._key(group) for group in self._groups}
    settled = self._settled()
    shown = list(self._shown())
    clauses = [("SELECT list", shown)]
    order = self._select.args.get("order")
    if order is not None and with_order:
      ordered = [o.this for o in order.expressions]
      clauses.append(("ORDER BY clause", [o for o in ordered if self._own(o)]))
    for clause, expressions in clauses:
      for n, expression in enumerate(expressions, 1):
        for place in self._loose(expression, keys):
          if place not in settled:
            return self._said(words, n, clause, place)
    return None

  def _first_unshown(self) -> str | None:
    """The first column that DISTINCT hides, but the order asks for."""
    shown = list(self._shown())
    keys = {self._key(e) for e in shown}
    order = self._select.args["order"]
    for n, ordered in enumerate(order.expressions, 1):
      if not self._own(ordered.this):
        continue
      for place in self._loose(ordered.this, keys):
        return self._said(_DISTINCT, n, "ORDER BY clause", place)
    return None

  def is_known_to_having(self, column: exp.Column) -> bool:
    """Whether HAVING may name it outside of an aggregate.

    It may where the column is shown, grouped by or of a query around this one.
    """
    if not column.table and column.name.lower() in self.aliases:
      return True
    place = self.place_of(column)
    if place is None:
      return bool(self._select.parent)
    listed = [*self._shown(), *self._groups]
    return place in map(self.place_of, listed)

  def _own(self, ordered: exp.Expr) -> bool:
    """Whether it is ordered by columns, and not by a position or an alias."""
    if isinstance(ordered, exp.Literal):
      return False
    return not (
      isinstance(ordered, exp.Column)
      and not ordered.table
      and ordered.name.lower() in self.aliases
    )

  def _shown(self) -> Iterator[exp.Expr]:
    """The expressions of the SELECT list, each star spelt out."""
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
    """What a term of GROUP BY stands for: itself, a position or an alias."""
    if isinstance(expression, exp.Literal) and not expression.is_string:
      number = int(expression.name) if expression.name.isdigit() else 0
      shown = list(self._shown())
      return shown[number - 1] if 0 < number <= len(shown) else expression
    if isinstance(expression, exp.Column) and self.place_of(expression) is None:
      alias = self.aliases.get(expression.name.lower())
      return expression if alias is None else alias
    return expression

  def _loose(self, node: exp.Expr, keys: set[str]) -> Iterator[_Place]:
    """The columns outside of aggregates and grouped expressions."""
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
      yield from self._loose(child, keys)

  def _settled(self) -> set[_Place]:
    """The columns that are one value per group, by functional dependence."""
    settled = {
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
        settled.add(a)
      elif b and _is_text(left):
        settled.add(b)
    while more := self._follow(settled, pairs) - settled:
      settled |= more
    return settled

  def _follow(
    self, settled: set[_Place], pairs: Sequence[tuple[_Place, _Place]]
  ) -> set[_Place]:
    found = {b for a, b in pairs if a in settled}
    for name, source in self._sources.items():
      if source.keys is not None and all(
        (name, key) in settled for key in source.keys
      ):
        found |= {(name, column.lower()) for column in source.columns}
    return found

  def _equalities(self) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """The two sides of each equality that holds of every row."""
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
    """The source and the name of a column; None if it is of no source here."""
    if not isinstance(node, exp.Column):
      return None
    name, table = node.name.lower(), node.table.lower()
    for source in [table] if table else self._sources:
      known = self._sources.get(source)
      if known and name in map(str.lower, known.columns):
        return source, name
    return None

  def _key(self, node: exp.Expr) -> str:
    """The expression as text that is the same for the same value."""
    node = node.copy().unnest()
    for column in list(node.find_all(exp.Column)):
      place = self.place_of(column)
      if place is not None:
        named = exp.column(place[1], table=place[0], quoted=True)
        if column is node:
          return named.sql("mysql")
        column.replace(named)
    return node.sql("mysql").lower()

  def _said(self, words: str, n: int, clause: str, place: _Place) -> str:
    source = self._sources[place[0]]
    column = next(c for c in source.columns if c.lower() == place[1])
    return words.format(
      n=n, clause=clause, column=f"{self._database}.{source.name}.{column}"
    )


def sources_of(select: exp.Select, schema: Schema) -> list[Source] | None:
  """What FROM and its joins name; None if some of it is not known."""
  from_ = select.args.get("from_")
  nodes = [from_.this] if from_ else []
  nodes += [join.this for join in select.args.get("joins") or ()]
  found: list[Source] = []
  for node in nodes:
    source = _source_of(node, select, schema)
    if source is None:
      return None
    found.append(source)
  return found


def _source_of(
  node: exp.Expr, select: exp.Select, schema: Schema
) -> Source | None:
  if isinstance(node, exp.Subquery):
    return _of_query(node.alias, node.unnest())
  if not isinstance(node, exp.Table):
    return None
  for with_ in _withs(select):
    for named in with_.expressions:
      if named.alias.lower() == node.name.lower():
        return _of_query(node.alias_or_name, named.this)
  columns = () if node.db else schema(node.name)
  return Source(node.alias_or_name, columns) if columns else None


def _withs(node: exp.Expr | None) -> Iterator[exp.Expr]:
  """The WITH clauses that are in force at a query, inner ones first."""
  while node is not None:
    if with_ := node.args.get("with_"):
      yield with_
    node = node.parent


def _of_query(name: str, query: exp.Expr) -> Source | None:
  """A query in the place of a table."""
  if not isinstance(query, exp.Select) or query.is_star:
    return None
  columns = [e.alias_or_name for e in query.expressions]
  if not all(columns):
    return None
  return Source(name, columns, _keys_of(query))


def _keys_of(query: exp.Select) -> frozenset[str] | None:
  """The shown columns by which the query groups; None if it hides one."""
  group = query.args.get("group")
  if not group:
    return None
  shown = {
    e.unalias().name.lower(): e.alias_or_name.lower()
    for e in query.expressions
    if isinstance(e.unalias(), exp.Column)
  }
  keys = [shown.get(e.name.lower()) for e in group.expressions]
  return frozenset(key for key in keys if key) if all(keys) else None


def aggregates(select: exp.Select) -> bool:
  """Whether the query itself, and no query within it, has an aggregate."""
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
  """Whether equality with it leaves a TEXT column one value.

  Not so a number: '7' and '7.0' both equal 7.
  """
  return isinstance(node, exp.Literal) and node.is_string
