"""Rewrites MySQL statements so that SQLite does what MySQL would do.

Numbers against text compare as numbers, text compares without case, literals
reach TEXT columns as they were written, and forms that SQLite lacks become
forms that it has. No table has a key, so REPLACE and ON DUPLICATE KEY UPDATE
only insert.
"""

import decimal
import re

from sqlglot import exp

from environments.dbbench.mysql import collation
from environments.dbbench.mysql.functions import AS_TEXT, ONLY
from environments.dbbench.mysql.replacements import plus_zero, replace_function
from environments.dbbench.mysql.syntax import (
  StatementRefused,
  TooComplex,
  nodes_of,
  tokens,
)
from environments.dbbench.mysql.types import TEXT, MySQLType, type_of

_REPLACE = re.compile(
  r"\A(\s*)REPLACE\b(?:\s+(?:LOW_PRIORITY|DELAYED))?(?:\s+INTO\b)?(?!\s*\()",
  re.IGNORECASE,
)
_SHOW = re.compile(
  r"\A(\s*SHOW\s+)((?:FULL\s+)?)(FIELDS|KEYS|INDEXES|EXTENDED\s+COLUMNS)\b",
  re.IGNORECASE,
)
_KNOWN_TO_SHOW = {"KEYS": "INDEX", "INDEXES": "INDEX"}
_DIGIT_AFTER_POINT = re.compile(r"[\w`]\.\d")
MAX_GROWTH = 8  # of a statement; some forms double at each level
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_UNIONS = {exp.Union, exp.Except, exp.Intersect}
# Queries inside of these may have any number of rows.
_TAKES_ROWS = (
  exp.From,
  exp.Join,
  exp.In,
  exp.Exists,
  exp.SetOperation,
  exp.Subquery,
)


def with_known_words(sql: str) -> str:
  """Returns the statement in words that sqlglot knows."""
  sql = _with_quoted_numbers(sql)
  sql = _REPLACE.sub(r"\1INSERT INTO", sql, count=1)
  return _SHOW.sub(
    lambda m: m[1] + m[2] + _KNOWN_TO_SHOW.get(m[3].upper(), "COLUMNS"),
    sql,
    count=1,
  )


def _with_quoted_numbers(sql: str) -> str:
  """Replaces Time.1 by Time.`1`, since sqlglot takes .1 for a number."""
  if not _DIGIT_AFTER_POINT.search(sql):
    return sql
  words = tokens(sql)
  for table, point, column in reversed(
    list(zip(words, words[1:], words[2:], strict=False))
  ):
    spelled = f"{table.text}.{column.text}"
    if (
      point.text == "."
      and column.text[0].isdigit()
      and (table.text[0] in "`_" or table.text[0].isalpha())
      and sql.startswith(spelled, table.start)
    ):
      end = column.start + len(column.text)
      sql = f"{sql[: column.start]}`{column.text}`{sql[end:]}"
  return sql


def rewritten(tree: exp.Expr) -> exp.Expr:
  """Returns the statement for SQLite; `tree` is changed in place.

  Raises `TooComplex` if the statement would become much longer.
  """
  nodes = nodes_of(tree, exp.Expr)
  kinds = {type(node) for node in nodes}
  max_nodes = MAX_GROWTH * max(len(nodes), 60)
  tree = _in_known_forms(tree)
  _rewrite_queries(tree, kinds)
  if isinstance(tree, exp.Update):
    _unqualify(tree)
    _read_new_values(tree, max_nodes)
  types = [type_of(cell) for cell in _written(tree)]
  _rewrite_below(tree, max_nodes)
  for cell, known in zip(_written(tree), types, strict=True):
    _write_as_text(cell, known)
  if exp.Group in kinds:
    for select in nodes_of(tree, exp.Select):
      _keep_groups_in_order(select)
  if exp.Subquery in kinds:
    _guard_single_values(tree)
  return tree


def _in_known_forms(tree: exp.Expr) -> exp.Expr:
  """Rewrites a statement that changes something as a whole."""
  if isinstance(tree, exp.Insert):
    tree.set("conflict", None)
    _fill_in_defaults(tree)
  elif isinstance(tree, exp.Update):
    _fill_in_default_columns(tree)
  elif isinstance(tree, exp.Delete):
    return _of_one_table(tree)
  elif isinstance(tree, exp.Create):
    _make_lasting(tree)
  return tree


def _rewrite_queries(tree: exp.Expr, kinds: set[type[exp.Expr]]) -> None:
  """Rewrites queries as a whole; `kinds` are those of the tree's nodes."""
  for select in nodes_of(tree, exp.Select):
    _rewrite_select(select)
  if kinds & _UNIONS:
    for union in nodes_of(tree, exp.SetOperation):
      _open_sides(union)
  if exp.Xor not in kinds:
    return
  for either in reversed(nodes_of(tree, exp.Xor)):
    left, right = (
      exp.paren(exp.not_(exp.paren(side.copy())))
      for side in either.unnest_operands()
    )
    either.replace(exp.paren(exp.NEQ(this=left, expression=right)))


def _fill_in_default_columns(update: exp.Update) -> None:
  for column in nodes_of(update, exp.Column):
    if column.name.upper() == "DEFAULT" and not column.this.quoted:
      column.replace(exp.Null())


def _fill_in_defaults(insert: exp.Insert) -> None:
  """Replaces DEFAULT by NULL: no column has another default."""
  values = insert.expression
  if not isinstance(values, exp.Values):
    return
  for default in nodes_of(values, exp.Var):
    if default.name.upper() == "DEFAULT":
      default.replace(exp.Null())
  if not any(row.expressions for row in values.expressions):
    table = insert.find(exp.Table)
    insert.set("this", table)
    insert.set("expression", None)
    insert.set("default", True)


def _make_lasting(create: exp.Create) -> None:
  """Drops TEMPORARY: a session is not longer than its database."""
  for temporary in nodes_of(create, exp.TemporaryProperty):
    temporary.pop()


def _of_one_table(delete: exp.Delete) -> exp.Expr:
  """Rewrites DELETE t FROM t JOIN u ... to delete the rows that are joined."""
  targets = delete.args.get("tables") or (
    [delete.this] if delete.args.get("using") else []
  )
  if len(targets) != 1:
    return delete
  sources = delete.args.get("using") or [delete.this]
  query = exp.select(
    exp.column("rowid", table=targets[0].name, quoted=True)
  ).from_(sources[0].copy())
  for other in sources[1:]:
    query.join(other.copy(), copy=False)
  if delete.args.get("where"):
    query.where(delete.args["where"].this.copy(), copy=False)
  tables = {
    t.alias_or_name: t.name for s in sources for t in nodes_of(s, exp.Table)
  }
  name = tables.get(targets[0].name, targets[0].name)
  rowid = exp.column("rowid", quoted=True)
  return exp.delete(
    exp.to_identifier(name, quoted=True).sql("mysql"),
    where=rowid.isin(query),
    dialect="mysql",
  )


def _rewrite_select(select: exp.Select) -> None:
  """Drops FROM DUAL, and turns HAVING without groups into WHERE."""
  from_ = select.args.get("from_")
  if from_ is not None and from_.this.name.upper() == "DUAL":
    select.set("from_", None)
  having = select.args.get("having")
  if having is None or select.args.get("group") or aggregates(select):
    return
  aliases = {
    e.alias.lower(): e.this
    for e in select.expressions
    if isinstance(e, exp.Alias)
  }
  condition = having.this.copy()
  for column in nodes_of(condition, exp.Column):
    expression = aliases.get(column.name.lower())
    if expression is not None and not column.table:
      if column is condition:
        condition = expression.copy()
      else:
        column.replace(exp.paren(expression.copy()))
  select.set("having", None)
  select.where(exp.paren(condition), copy=False)


def aggregates(select: exp.Select) -> bool:
  """Checks whether the query has an aggregate outside of its subqueries."""
  nodes: list[exp.Expr] = [*select.expressions]
  nodes += [e for key in ("having", "order") if (e := select.args.get(key))]
  while nodes:
    node = nodes.pop()
    if isinstance(node, exp.Query | exp.Subquery):
      continue
    if isinstance(node, exp.AggFunc) and not isinstance(
      node.parent, exp.Window
    ):
      return True
    nodes += node.iter_expressions()
  return False


def _open_sides(union: exp.SetOperation) -> None:
  """Rewrites (SELECT ...) UNION (SELECT ...) without the parentheses."""
  for key in ("this", "expression"):
    side = union.args[key]
    if isinstance(side, exp.Subquery) and not side.alias:
      union.set(key, exp.select("*").from_(side.copy()))


def _unqualify(update: exp.Update) -> None:
  """Removes the table from the columns that are set; SQLite allows none."""
  for pair in update.expressions:
    column = pair.this
    if isinstance(column, exp.Column) and column.table:
      if column.table.lower() != update.this.alias_or_name.lower():
        raise StatementRefused(
          f"1054 (42S22): Unknown column '{column.table}.{column.name}' in "
          "'field list'"
        )
      column.set("table", None)


def _read_new_values(update: exp.Update, max_nodes: int) -> None:
  """Replaces columns that are already set by their new values.

  MySQL reads the new value, SQLite the old one.
  """
  new_values: dict[str, exp.Expr] = {}
  sizes: dict[str, int] = {}
  for pair in update.expressions:
    columns = nodes_of(pair.expression, exp.Column)
    if sum(sizes.get(c.name.lower(), 0) for c in columns) > max_nodes:
      raise TooComplex
    for column in columns:
      if column.name.lower() in new_values:
        column.replace(new_values[column.name.lower()].copy())
    text = exp.func(AS_TEXT, pair.expression.copy(), exp.Literal.number(0))
    name = pair.this.name.lower()
    new_values[name] = exp.cast(text, "text", copy=False)
    sizes[name] = _num_nodes(new_values[name])


def _written(tree: exp.Expr) -> list[exp.Expr]:
  """Returns the expressions whose values are stored in columns."""
  if isinstance(tree, exp.Update):
    return [pair.expression for pair in tree.expressions]
  if isinstance(tree, exp.Insert) and isinstance(tree.expression, exp.Values):
    rows = tree.expression.expressions
    return [cell for row in rows for cell in row.expressions]
  return []


def _write_as_text(cell: exp.Expr, known: MySQLType | None) -> None:
  """Stores numbers in TEXT columns in MySQL's form: 1.50 stays, 10.0 is 10."""
  number = cell.this if isinstance(cell, exp.Neg) else cell
  if not isinstance(number, exp.Literal):
    if known is not None and known.is_number:
      # All digits of a decimal are written, trailing zeros included.
      digits = known.scale if known.family == "decimal" else 0
      scale = exp.Literal.number(digits)
      cell.replace(exp.func(AS_TEXT, cell.copy(), scale))
  elif not number.is_string:
    sign = "-" if cell is not number else ""
    cell.replace(exp.Literal.string(sign + _digits(str(number.this))))


def _digits(literal: str) -> str:
  """Formats a number: 007 is 7, .5 is 0.5, 1.50 stays, and 1e2 is 100."""
  value = decimal.Decimal(literal)
  return f"{value.normalize() if 'e' in literal.lower() else value:f}"


def _keep_groups_in_order(select: exp.Select) -> None:
  """Orders groups by their first rows; SQLite would sort them by key."""
  source = select.args.get("from_")
  if (
    select.args.get("group")
    and not select.args.get("order")
    and not select.args.get("joins")
    and not select.args.get("distinct")
    and not isinstance(select.parent, exp.SetOperation)
    and source is not None
    and isinstance(source.this, exp.Table)
  ):
    rowid = exp.column("rowid", table=source.this.alias_or_name, quoted=True)
    select.order_by(exp.Min(this=rowid), copy=False)


def _guard_single_values(tree: exp.Expr) -> None:
  """Makes scalar subqueries fail if they have more than one row."""
  for query in nodes_of(tree, exp.Subquery):
    select = query.this
    if (
      isinstance(query.parent, _TAKES_ROWS)
      or not isinstance(select, exp.Select)
      or len(select.expressions) != 1
      or select.is_star
      or _has_one_row(select)
    ):
      continue
    value = exp.alias_(select.expressions[0].unalias().copy(), "v")
    select.set("expressions", [value])
    only = exp.Anonymous(this=ONLY, expressions=[exp.column("v", table="q")])
    query.set("this", exp.select(only).from_(select.subquery("q")))


def _has_one_row(select: exp.Select) -> bool:
  limit = select.args.get("limit")
  if limit is not None and limit.expression.name == "1":
    return True
  is_bare = not select.args.get("from_")
  return is_bare or (aggregates(select) and not select.args.get("group"))


def _rewrite_below(tree: exp.Expr, max_nodes: int) -> None:
  """Rewrites each node, and then the children of the node that replaced it."""
  num_nodes = 0
  nodes = [*tree.iter_expressions(reverse=True)]
  while nodes:
    num_nodes += 1
    if num_nodes > max_nodes:
      raise TooComplex
    node = nodes.pop()
    parent, key, index = node.parent, node.arg_key, node.index
    _rewrite(node, max_nodes)
    if parent is not None and key is not None:
      slot = parent.args[key]
      node = slot if index is None else slot[index]
    nodes += node.iter_expressions(reverse=True)


def _num_nodes(node: exp.Expr) -> int:
  return len(nodes_of(node, exp.Expr))


def _rewrite(node: exp.Expr, max_nodes: int) -> None:
  if isinstance(node, _COMPARISONS):
    if not isinstance(node.parent, exp.Update) or node.arg_key != "expressions":
      _rewrite_operands(node.this, [node.expression])
  elif isinstance(node, exp.Between):
    _rewrite_operands(node.this, [node.args["low"], node.args["high"]])
  elif isinstance(node, exp.In) and node.expressions:
    _rewrite_in(node, max_nodes)
  elif isinstance(node, exp.Left):
    node.replace(exp.func("SUBSTR", node.this, "1", node.expression))
  elif isinstance(node, exp.Right):
    node.replace(exp.func("SUBSTR", node.this, exp.Neg(this=node.expression)))
  else:
    replace_function(node)


def _rewrite_in(node: exp.In, max_nodes: int) -> None:
  """Compares with each value of the list by the type of that value."""
  known = [type_of(value) for value in node.expressions]
  numbers = [kind is not None and kind.is_number for kind in known]
  if any(numbers) and not all(numbers) and type_of(node.this) == TEXT:
    if len(known) * _num_nodes(node.this) > max_nodes:
      raise TooComplex
    tests = [
      exp.EQ(this=node.this.copy(), expression=value.copy())
      for value in node.expressions
    ]
    for test in tests:
      _rewrite_operands(test.this, [test.expression])
    node.replace(exp.paren(exp.or_(*tests, copy=False), copy=False))
  else:
    _rewrite_operands(node.this, node.expressions)


def _rewrite_operands(left: exp.Expr, right: list[exp.Expr]) -> None:
  """Makes text a number beside numbers, else compares it without case."""
  types = [type_of(operand) for operand in (left, *right)]
  if None in types:
    return
  if any(known is not None and known.is_number for known in types):
    for operand, known in zip((left, *right), types, strict=True):
      if known is not None and not known.is_number:
        operand.replace(exp.Paren(this=plus_zero(operand)))
  # Columns have a collation of their own.
  elif not any(isinstance(o, exp.Column) for o in (left, *right)):
    left.replace(
      exp.Collate(this=left.copy(), expression=exp.Var(this=collation.NAME))
    )
