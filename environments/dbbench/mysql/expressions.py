"""Reads MySQL's expressions, and says where they go wrong; keeps no tree.

One method per level of MySQL 8.0's grammar, from OR down to literals. What may
stand in a level decides which token is the first that fits nowhere.
"""

from collections.abc import Callable

from environments.dbbench.mysql.calls import WINDOWED, CallReader, words

_COMPARISONS = ("=", "<=>", ">=", ">", "<=", "<", "<>", "!=")
_ADDING = ("+", "-", "*", "/", "%", "DIV", "MOD", "|", "&", "<<", ">>", "^")
_CONSTANTS = ("TRUE", "FALSE", "NULL", "?")
_INTRODUCERS = ("DATE", "TIME", "TIMESTAMP", "N")
_LITERALS = ("number", "text", "bits", "variable")
# Reserved words that are functions, and must be called.
_FUNCTIONS = words("""
  CHAR DATABASE IF INSERT LEFT MOD REPEAT REPLACE RIGHT ROW SCHEMA TRUNCATE
  DEFAULT VALUES GROUPING ROW_COUNT
  CONVERT
""")
_NOW = words("""
  CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER LOCALTIME
  LOCALTIMESTAMP UTC_DATE UTC_TIME UTC_TIMESTAMP
""")


class ExpressionReader(CallReader):
  """Reads expressions; whoever reads queries, too, says how."""

  def expression(self) -> None:
    self._negated()
    while self.take("OR", "||", "XOR", "AND", "&&"):
      self._negated()

  def _negated(self) -> None:
    while self.take("NOT"):
      pass
    self._compared()
    if self.take("IS"):
      self.take("NOT")
      self.need("TRUE", "FALSE", "UNKNOWN")

  def _compared(self) -> None:
    self._predicate()
    while True:
      if self.word == "IS" and self._is_null_test():
        self.skip()
        self.take("NOT")
        self.need("NULL")
      elif self.take(*_COMPARISONS):
        if self.take("ALL", "ANY", "SOME"):
          self.parenthesised_query()
        else:
          self._predicate()
      else:
        return

  def _is_null_test(self) -> bool:
    words = [lexeme.word for lexeme in self.coming(3)]
    return (
      "NULL" in words[1:2]
      or words[1:] == ["NOT", "NULL"]
      or (
        words[-1] not in ("TRUE", "FALSE", "UNKNOWN")
        and words[1:2] not in (["TRUE"], ["FALSE"], ["UNKNOWN"])
      )
    )

  def _predicate(self) -> None:
    self.sum()
    readers: dict[str, Callable[[], None]] = {
      "IN": self._in,
      "BETWEEN": self._between,
      "LIKE": self._like,
      "REGEXP": self.sum,
      "RLIKE": self.sum,
    }
    negated = self.take("NOT")
    word = self.word
    if self.take(*readers):
      readers[word]()
    elif negated:
      raise self.stuck()
    elif (word, self.next_word) == ("SOUNDS", "LIKE"):
      self.skip()
      self.skip()
      self.sum()
    elif (word, self.next_word) == ("MEMBER", "OF"):
      self.skip()
      self.skip()
      self.parenthesised(self.expression)

  def _in(self) -> None:
    if self.holds_query():
      return self.parenthesised_query()
    self.parenthesised(self.expression)

  def _between(self) -> None:
    self.sum()
    self.need("AND")
    self._predicate()

  def _like(self) -> None:
    self._simple()
    if self.take("ESCAPE"):
      self._simple()

  def sum(self) -> None:
    self._simple()
    while self.take(*_ADDING):
      if self.word == "INTERVAL":
        self.interval()
      else:
        self._simple()

  def _simple(self) -> None:
    while self.take("-", "+", "~", "!", "BINARY"):
      pass
    self._atom()
    while True:
      if self.take("COLLATE"):
        self.name_or_text()
      elif self.take("->", "->>"):
        self._text()
      else:
        return

  def _atom(self) -> None:
    readers: dict[str, Callable[[], None]] = {
      "(": self._in_parentheses,
      "CASE": self._case,
      "EXISTS": self._exists,
      "MATCH": self.match,
      "INTERVAL": self.interval,
      **dict.fromkeys(_CONSTANTS, self.skip),
      **dict.fromkeys(_NOW, self._now),
      **dict.fromkeys(WINDOWED | _FUNCTIONS, self.called),
    }
    if self.kind in _LITERALS:
      self._literal()
    elif self.kind != "quoted" and self.word in readers:
      readers[self.word]()
    elif self.kind == "call":
      self.called()
    elif self.lexeme.is_name:
      self._named()
    else:
      raise self.stuck()

  def _exists(self) -> None:
    self.skip()
    self.parenthesised_query()

  def _now(self) -> None:
    self.skip()
    if self.word == "(":
      self.arguments(",")

  def _literal(self) -> None:
    is_text = self.kind == "text"
    self.skip()
    while is_text and self.kind == "text":  # side by side, they are one
      self.skip()

  def _text(self) -> None:
    if self.kind != "text":
      raise self.stuck()
    self.skip()

  def _named(self) -> None:
    """A column, a function's call, or a text such as DATE '2020-01-01'."""
    may_introduce = self.word in _INTRODUCERS or self.word[:1] == "_"
    if may_introduce and self.coming(2)[-1].kind == "text":
      self.skip()
      return self.skip()
    function = self.lexeme
    self.column()
    if self.word == "(":
      self.arguments(",", may_be_named=True)
      if self.has_named_argument:
        self.misnamed = self.misnamed or function
        self.has_named_argument = False
      self.over(is_needed=False)

  def _in_parentheses(self) -> None:
    if self.holds_query():
      return self.parenthesised_query()
    self.parenthesised(self.expression)

  def _case(self) -> None:
    self.need("CASE")
    if self.word != "WHEN":
      self.expression()
    self.need("WHEN")
    while True:
      self.expression()
      self.need("THEN")
      self.expression()
      if not self.take("WHEN"):
        break
    if self.take("ELSE"):
      self.expression()
    self.need("END")
