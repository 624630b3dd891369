"""Forms of statements that SQLite lacks, put as forms that it has.

Each rewrite leaves what the statement does as it was: no table here has a key,
so REPLACE and ON DUPLICATE KEY UPDATE only insert.
"""

import re

from sqlglot import exp

from environments.dbbench.mysql.functions import ONLY
from environments.dbbench.mysql.groups import aggregates

_REPLACE = re.compile(
  r"\A(\s*)REPLACE\b(?:\s+(?:LOW_PRIORITY|DELAYED))?(?:\s+INTO\b)?(?!\s*\()",
  re.IGNORECASE,
)
_SHOW = re.compile(
  r"\A(\s*SHOW\s+)((?:FULL\s+)?)(FIELDS|KEYS|INDEXES|EXTENDED\s+COLUMNS)\b",
  re.IGNORECASE,
)
_NOT_FOR_A_VALUE = (
  exp.From,
  exp.Join,
  exp.In,
  exp.Exists,
  exp.SetOperation,
  exp.Subquery,
)
_KNOWN = {"KEYS": "INDEX", "INDEXES": "INDEX"}


def with_known_words(sql: str) -> str:
  """The statement with words for those that the parser does not know."""
  sql = _REPLACE.sub(r"\1INSERT INTO", sql, count=1)
  return _SHOW.sub(
    lambda m: m[1] + m[2] + _KNOWN.get(m[3].upper(), "COLUMNS"), sql, count=1
  )


def rewritten(tree: exp.Expr) -> exp.Expr:
  """The statement in forms that SQLite has; the tree is changed."""
  if isinstance(tree, exp.Insert):
    tree.set("conflict", None)
    _fill_in_defaults(tree)
  elif isinstance(tree, exp.Update):
    _fill_in_default_columns(tree)
  elif isinstance(tree, exp.Delete):
    tree = _of_one_table(tree)
  for select in list(tree.find_all(exp.Select)):
    _rewrite_select(select)
  for union in list(tree.find_all(exp.SetOperation)):
    _open_sides(union)
  for either in reversed(list(tree.find_all(exp.Xor))):
    left, right = (
      exp.paren(exp.not_(exp.paren(side.copy())))
      for side in either.unnest_operands()
    )
    either.replace(exp.paren(exp.NEQ(this=left, expression=right)))
  return tree


def _open_sides(union: exp.SetOperation) -> None:
  """(SELECT ...) UNION (SELECT ...): each side as a query without brackets."""
  for key in ("this", "expression"):
    side = union.args[key]
    if isinstance(side, exp.Subquery) and not side.alias:
      union.set(key, exp.select("*").from_(side.copy()))


def _fill_in_default_columns(update: exp.Update) -> None:
  for column in list(update.find_all(exp.Column)):
    if column.name.upper() == "DEFAULT" and not column.this.quoted:
      column.replace(exp.Null())


def _rewrite_select(select: exp.Select) -> None:
  from_ = select.args.get("from_")
  if from_ is not None and from_.this.name.upper() == "DUAL":
    select.set("from_", None)
  having = select.args.get("having")
  if having is None or select.args.get("group") or aggregates(select):
    return
  shown = {
    e.alias.lower(): e.this
    for e in select.expressions
    if isinstance(e, exp.Alias)
  }
  condition = having.this.copy()
  for column in list(condition.find_all(exp.Column)):
    meant = shown.get(column.name.lower())
    if meant is not None and not column.table:
      if column is condition:
        condition = meant.copy()
      else:
        column.replace(exp.paren(meant.copy()))
  select.set("having", None)
  select.where(exp.paren(condition), copy=False)


def _fill_in_defaults(insert: exp.Insert) -> None:
  """DEFAULT is NULL: no column here has another default."""
  values = insert.expression
  if not isinstance(values, exp.Values):
    return
  for default in list(values.find_all(exp.Var)):
    if default.name.upper() == "DEFAULT":
      default.replace(exp.Null())
  if not any(row.expressions for row in values.expressions):
    table = insert.find(exp.Table)
    insert.set("this", table)
    insert.set("expression", None)
    insert.set("default", True)


def guard_single_values(tree: exp.Expr) -> None:
  """A query that stands for a value has one row, or is an error."""
  for query in list(tree.find_all(exp.Subquery)):
    select = query.this
    if (
      isinstance(query.parent, _NOT_FOR_A_VALUE)
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


def _of_one_table(delete: exp.Delete) -> exp.Expr:
  """DELETE t FROM t JOIN u ...: the rows of t that the join finds."""
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
    t.alias_or_name: t.name for s in sources for t in s.find_all(exp.Table)
  }
  name = tables.get(targets[0].name, targets[0].name)
  rowid = exp.column("rowid", quoted=True)
  return exp.delete(
    exp.to_identifier(name, quoted=True).sql("mysql"),
    where=rowid.isin(query),
    dialect="mysql",
  )
