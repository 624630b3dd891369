"""Reads the calls of MySQL's functions, arguments and windows and all."""

from environments.dbbench.mysql.lexer import Lexeme
from environments.dbbench.mysql.reader import Reader


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
# What may stand between the arguments of a function, besides commas.
_BETWEEN = {
  **dict.fromkeys(("SUBSTRING", "SUBSTR", "MID"), ("FROM", "FOR")),
  **dict.fromkeys(("TRIM", "EXTRACT"), ("FROM",)),
  **dict.fromkeys(("CONVERT", "CHAR"), ("USING",)),
  "CAST": ("AS",),
  "GROUP_CONCAT": ("SEPARATOR",),
}
_WITHOUT_ARGUMENTS = words("""
  CURDATE CURTIME NOW SESSION_USER SYSDATE SYSTEM_USER DATABASE SCHEMA ROW_COUNT
""")
_OF_ONE = words("""
  AVG BIT_AND BIT_OR BIT_XOR MAX MIN STD STDDEV STDDEV_POP STDDEV_SAMP SUM
  VARIANCE VAR_POP VAR_SAMP JSON_ARRAYAGG CAST EXTRACT POSITION TRIM
""")
_UNITS = ("_SECOND", "_MINUTE", "_HOUR", "_MONTH", "_MICROSECOND")


class CallReader(Reader):
  """Reads calls; whoever reads expressions and queries says how."""

  has_named_argument = False  # of the call that was read last
  misnamed: Lexeme | None = None  # the first function called that way

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
    """INTERVAL 1 DAY, or the function of that name."""
    self.need("INTERVAL")
    is_call = self.word == "("
    self.expression()
    if self.kind == "word" or not is_call:
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
    function = self.word
    self.skip()
    if self.next_word == ")" and function not in _WITHOUT_ARGUMENTS | WINDOWED:
      self.need("(")
      raise self.stuck()
    if function == "POSITION":
      return self._position()
    self.arguments(
      *_BETWEEN.get(function, ()), *(() if function in _OF_ONE else (",",))
    )
    self.over(is_needed=function in WINDOWED)

  def arguments(self, *between: str, may_be_named: bool = False) -> None:
    """What a function is called with, and what may stand between that."""
    self.need("(")
    self.take("DISTINCT", "ALL", "LEADING", "TRAILING", "BOTH")
    if self.take("*"):
      return self.need(")")
    while not self.take(")"):
      if self.word not in between:  # TRIM(LEADING FROM x)
        self._argument()
      if may_be_named:
        self._name_of_argument()
      if self.take("ORDER"):
        self.need("BY")
        self.listed(self.ordering)
      if self.word != ")":
        self.need(*between)
        if self.word == ")":
          raise self.stuck()

  def _position(self) -> None:
    """POSITION('x' IN a)"""
    self.need("(")
    self.sum()
    self.need("IN")
    self.expression()
    self.need(")")

  def _name_of_argument(self) -> None:
    """An alias, which MySQL reads and then does not take of its functions."""
    if self.take("AS") or self.lexeme.is_name or self.kind == "text":
      self.name_or_text()
      self.has_named_argument = True

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
        self.arguments(",")

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
