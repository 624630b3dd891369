"""Reads the calls of MySQL's functions, arguments and windows and all."""

from environments.dbbench.mysql_reader import QUERY_BEGINS, Reader


def words(text: str) -> frozenset[str]:
  """The words of a text."""
  return frozenset(text.split())


WINDOWED = words("""
  CUME_DIST DENSE_RANK FIRST_VALUE LAG LAST_VALUE LEAD NTH_VALUE NTILE
  PERCENT_RANK RANK ROW_NUMBER
""")
_TYPES = words("""
  BINARY CHAR DATE DATETIME DECIMAL DOUBLE FLOAT JSON NCHAR REAL SIGNED TIME
  UNSIGNED YEAR
""")
# What may stand between the arguments of functions with a grammar of their own.
_BETWEEN_ARGUMENTS = (
  ",", "FROM", "FOR", "IN", "USING", "AS", "SEPARATOR",
)  # fmt: skip
_UNITS = ("_SECOND", "_MINUTE", "_HOUR", "_MONTH", "_MICROSECOND")


class CallReader(Reader):
  """Reads calls; whoever reads expressions and queries says how."""

  def expression(self) -> None:
    """A value of any kind."""
    raise NotImplementedError

  def sum(self) -> None:
    """A value without comparisons."""
    raise NotImplementedError

  def query(self) -> None:
    """A query, without parentheses."""
    raise NotImplementedError

  def parenthesised_query(self) -> None:
    """A query in parentheses."""
    self.need("(")
    self.query()
    self.need(")")

  def ordering(self) -> None:
    """A value to order by."""
    self.expression()
    self.take("ASC", "DESC")

  def interval(self) -> None:
    self.need("INTERVAL")
    self.expression()
    self._unit()

  def _unit(self) -> None:
    if self.kind != "word":
      raise self.stuck()
    self.skip()

  def match(self) -> None:
    self.need("MATCH")
    if self.word == "(":
      self.parenthesised(self.column)
    else:
      self.listed(self.column)
    self.need("AGAINST")
    self.need("(")
    self.sum()
    while self.word != ")" and self.kind == "word":
      self.skip()
    self.need(")")

  def called(self) -> None:
    """A function by a word that is nothing else; "(" must follow."""
    is_windowed = self.word in WINDOWED
    self.skip()
    self.arguments()
    self.over(is_needed=is_windowed)

  def arguments(self) -> None:
    self.need("(")
    self.take("DISTINCT", "ALL", "LEADING", "TRAILING", "BOTH")
    if self.take("*"):
      return self.need(")")
    if self.word in QUERY_BEGINS:
      self.query()
      return self.need(")")
    while not self.take(")"):
      if not self.take("FROM"):  # TRIM(LEADING FROM x)
        self._argument()
      if self.take("ORDER"):
        self.need("BY")
        self.listed(self.ordering)
      if self.word != ")":
        self.need(*_BETWEEN_ARGUMENTS)
        if self.word == ")":
          raise self.stuck()

  def _argument(self) -> None:
    """A value, a unit of time, a type or a character set."""
    before = self.before
    if self.word == "INTERVAL":
      self.interval()
    elif self.word.endswith(_UNITS) and self.next_word in ("FROM", ","):
      self.skip()
    elif before in ("AS", "USING") or (before == "," and self.word in _TYPES):
      self._type()
    else:
      self.expression()

  def _type(self) -> None:
    while self.kind == "word":
      self.skip()
      if self.word == "(":
        self.arguments()

  def over(self, *, is_needed: bool) -> None:
    if is_needed:
      if self.take("RESPECT"):
        self.need("NULLS")
      if self.word != "OVER":
        raise self.stuck()
    if self.take("OVER"):
      if self.lexeme.is_name:
        return self.skip()
      self.window()

  def window(self) -> None:
    """What a window function looks at, in parentheses."""
    self.need("(")
    if self.lexeme.is_name and self.word not in ("ROWS", "RANGE"):
      self.skip()
    if self.take("PARTITION"):
      self.need("BY")
      self.listed(self.expression)
    if self.take("ORDER"):
      self.need("BY")
      self.listed(self.ordering)
    if self.take("ROWS", "RANGE", "GROUPS"):
      while self.word != ")" and self.kind != "end":
        self.skip()
    self.need(")")
