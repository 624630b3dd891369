"""Reads MySQL's queries, from WITH to LIMIT; keeps no tree."""

from environments.dbbench.mysql.expressions import ExpressionReader

QUERY_BEGINS = ("SELECT", "WITH", "VALUES", "TABLE")
_SELECT_OPTIONS = (
  "ALL", "DISTINCT", "DISTINCTROW", "HIGH_PRIORITY", "STRAIGHT_JOIN",
  "SQL_SMALL_RESULT", "SQL_BIG_RESULT", "SQL_BUFFER_RESULT", "SQL_NO_CACHE",
  "SQL_CALC_FOUND_ROWS",
)  # fmt: skip
_QUERY_BEGINS = ("SELECT", "WITH", "VALUES", "TABLE")
_JOINS = frozenset(
  ("JOIN", "LEFT", "RIGHT", "INNER", "CROSS", "NATURAL", "STRAIGHT_JOIN")
)


class QueryReader(ExpressionReader):
  """Reads queries, and the tables that other statements name."""

  def query(self) -> None:
    """A query with its order and limit."""
    if self.word == "WITH":
      self.common_tables()
    self._query_part()
    while self.take("UNION", "EXCEPT", "INTERSECT"):
      self.take("ALL", "DISTINCT")
      self._query_part()
    self.order_and_limit()
    while self.word in ("FOR", "LOCK", "INTO"):
      self._tail()

  def _query_part(self) -> None:
    if self.take("("):
      self.query()
      self.need(")")
    elif self.take("TABLE"):
      self.table_name()
    elif self.take("VALUES"):
      self.listed(self._row_of_values)
    else:
      self.need("SELECT")
      self._selection()

  def _row_of_values(self) -> None:
    self.need("ROW")
    self.parenthesised(self.expression)

  def _selection(self) -> None:
    while self.take(*_SELECT_OPTIONS):
      pass
    if not self.take("*"):
      self._item()
    while self.take(","):
      self._item()
    if self.word == "INTO":
      self._tail()
    if self.take("FROM") and not self.take("DUAL"):
      self.tables()
    if self.take("WHERE"):
      self.expression()
    self._grouping()

  def _grouping(self) -> None:
    if self.take("GROUP"):
      self.need("BY")
      self.listed(self.expression)
      if self.take("WITH"):
        self.need("ROLLUP")
    if self.take("HAVING"):
      self.expression()
    if self.take("WINDOW"):
      self.listed(self._named_window)

  def _named_window(self) -> None:
    self.name()
    self.need("AS")
    self.window()

  def _item(self) -> None:
    """One column of a selection, with its alias."""
    if self.is_wild():
      return
    self.expression()
    if self.take("AS"):
      self.name_or_text()
    elif self.lexeme.is_name or self.kind == "text":
      self.skip()

  def tables(self) -> None:
    self.listed(self._joined)

  def _joined(self) -> None:
    self._table()
    while True:
      outer = False
      if self.take("NATURAL"):
        if self.take("LEFT", "RIGHT"):
          self.take("OUTER")
        else:
          self.take("INNER")
        self.need("JOIN")
      elif self.take("LEFT", "RIGHT"):
        self.take("OUTER")
        self.need("JOIN")
        outer = True
      elif self.take("INNER", "CROSS"):
        self.need("JOIN")
      elif not self.take("JOIN", "STRAIGHT_JOIN"):
        return
      self._table()
      self._condition(is_needed=outer)

  def _condition(self, *, is_needed: bool) -> None:
    if self.take("ON"):
      self.expression()
    elif self.take("USING"):
      self.parenthesised(self.name)
    elif is_needed and self.word not in _JOINS:
      raise self.stuck()

  def _table(self) -> None:
    if self.take("LATERAL") or (self.word == "(" and self.holds_query()):
      self.parenthesised_query()
      if not self.take("AS") and not self.lexeme.is_name:
        return  # MySQL asks for an alias here; it has words for that
      self.name()
      if self.word == "(":
        self.parenthesised(self.name)
      return
    if self.take("("):
      self.tables()
      self.need(")")
      return
    self.table_name()
    if self.take("PARTITION"):
      self.parenthesised(self.name)
    if self.take("AS") or self.lexeme.is_name:
      self.name()
    while self.take("USE", "FORCE", "IGNORE"):
      self.need("INDEX", "KEY")
      self.parenthesised(self.name, may_be_empty=True)

  def order_and_limit(self, *, offset: bool = True) -> None:
    if self.take("ORDER"):
      self.need("BY")
      self.listed(self.ordering)
    if self.take("LIMIT"):
      self._limit()
      if offset and self.take(",", "OFFSET"):
        self._limit()

  def _limit(self) -> None:
    if self.kind == "number" or self.lexeme.is_name or self.word == "?":
      return self.skip()
    raise self.stuck()

  def _tail(self) -> None:
    """FOR UPDATE, LOCK IN SHARE MODE or INTO, which nothing hangs on."""
    while self.kind != "end" and self.word not in (")", "FROM", "UNION"):
      self.skip()

  def common_tables(self) -> None:
    self.need("WITH")
    self.take("RECURSIVE")
    self.listed(self._common_table)

  def _common_table(self) -> None:
    self.name()
    if self.word == "(":
      self.parenthesised(self.name)
    self.need("AS")
    self.parenthesised_query()
