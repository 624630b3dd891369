"""Where MySQL stops reading a statement: the place that error 1064 quotes.

A parser that keeps no tree. It knows what MySQL 8.0 allows after what in
SELECT, INSERT, REPLACE, UPDATE and DELETE, so that the first token that fits
nowhere is the one that MySQL quotes. Other statements it lets pass. It is
looser than MySQL where looseness moves no error that policies make.
"""

from collections.abc import Callable, Collection

from environments.dbbench.engines.base import SYNTAX_ERROR
from environments.dbbench.mysql.lexer import lexemes
from environments.dbbench.mysql.queries import QUERY_BEGINS, QueryReader
from environments.dbbench.mysql.reader import Stuck

MAX_NEAR_BYTES = 80
EMPTY = "1065 (42000): Query was empty"
BAD_CALL = (
  "1583 (42000): Incorrect parameters in the call to native function '{}'"
)
_END = "; \t\r\n\v\f"
_OTHER_BEGINS = """
  ALTER ANALYZE BEGIN BINLOG CALL CHANGE CHECK CHECKSUM CLONE COMMIT CREATE
  DEALLOCATE DESC DESCRIBE DO DROP EXECUTE EXPLAIN FLUSH GET GRANT HANDLER
  HELP IMPORT INSTALL KILL LOAD LOCK OPTIMIZE PREPARE PURGE RELEASE RENAME
  REPAIR RESET RESIGNAL RESTART REVOKE ROLLBACK SAVEPOINT SET SHOW SHUTDOWN
  SIGNAL START STOP TRUNCATE UNINSTALL UNLOCK USE XA
"""
_OTHERS = frozenset(_OTHER_BEGINS.split())


def refusal_of(sql: str) -> str | None:
  """What MySQL says to a statement that it cannot read, else None.

  As the server does, it first takes blanks and semicolons off the end.
  """
  sql = sql.rstrip(_END)
  if not sql:
    return EMPTY
  reader = StatementReader(sql)
  try:
    reader.read()
  except Stuck as stuck:
    return _syntax_error(sql, stuck.start)
  except RecursionError:
    return None
  if reader.misnamed is not None:
    return BAD_CALL.format(reader.misnamed.text_in(sql))
  return None


def _syntax_error(sql: str, start: int) -> str:
  # The server's scanner has gone on behind a comma when it is looked at.
  start += sql[start : start + 1] == ","
  rest = sql[start:].encode(errors="replace")[:MAX_NEAR_BYTES]
  return SYNTAX_ERROR.format(
    near=rest.decode(errors="ignore"), line=1 + sql.count("\n", 0, start)
  )


class StatementReader(QueryReader):
  """Reads one statement; raises `Stuck` where it cannot go on."""

  def __init__(self, sql: str):
    super().__init__(lexemes(sql))

  def read(self) -> None:
    """Reads the statement to its end."""
    word = self.word
    if word in _OTHERS:
      return
    readers: dict[str, Callable[[], None]] = {
      "INSERT": self._insert,
      "REPLACE": self._insert,
      "UPDATE": self._update,
      "DELETE": self._delete,
    }
    if word == "WITH":
      self.common_tables()
    if self.word in readers:
      readers[self.word]()
    elif self.word == "(" or self.word in QUERY_BEGINS:
      self.query()
    else:
      raise self.stuck()
    self.take(";")  # another statement behind it is one too many
    if self.kind != "end":
      raise self.stuck()

  def _insert(self) -> None:
    self.skip()
    while self.take("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE"):
      pass
    self.take("INTO")
    self.table_name()
    if self.take("PARTITION"):
      self.parenthesised(self.name)
    if self.take("SET"):
      self.listed(self._assignment)
    else:
      self._inserted()
    if self.take("AS"):
      self.name()
      if self.word == "(":
        self.parenthesised(self.name)
    if self.take("ON"):
      for word in ("DUPLICATE", "KEY", "UPDATE"):
        self.need(word)
      self.listed(self._assignment)

  def _inserted(self) -> None:
    """The columns, if they are told, and the rows."""
    if self.word == "(" and not self.holds_query():
      self.parenthesised(self.column, may_be_empty=True)
    if self.take("VALUES", "VALUE"):
      self.listed(self._values)
    elif self.word == "(" or self.word in QUERY_BEGINS:
      self.query()
    else:
      raise self.stuck()

  def _values(self) -> None:
    self.take("ROW")
    self.parenthesised(self._value, may_be_empty=True)

  def _value(self) -> None:
    if self.word != "DEFAULT" or self.next_word == "(":
      self.expression()
    else:
      self.skip()

  def _assignment(self) -> None:
    self.column()
    self.need("=", ":=")
    self._value()

  def _update(self) -> None:
    self.skip()
    while self.take("LOW_PRIORITY", "IGNORE"):
      pass
    self.tables()
    self.need("SET")
    self.listed(self._assignment)
    if self.take("WHERE"):
      self.expression()
    self.order_and_limit(offset=False)

  def _delete(self) -> None:
    self.skip()
    while self.take("LOW_PRIORITY", "QUICK", "IGNORE"):
      pass
    if not self.take("FROM"):
      self.listed(self._deleted)
      self.need("FROM")
      self.tables()
    elif self._deletes_from_one():
      self.table_name()
      if self.take("AS") or self.lexeme.is_name:
        self.name()
    else:
      self.listed(self._deleted)
      self.need("USING")
      self.tables()
    if self.take("WHERE"):
      self.expression()
    self.order_and_limit(offset=False)

  def _deletes_from_one(self) -> bool:
    words: Collection[str] = [lexeme.word for lexeme in self.coming(8)]
    return "USING" not in words

  def _deleted(self) -> None:
    self.table_name()
    if self.take("."):
      self.need("*")
