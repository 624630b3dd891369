"""A cursor over a statement's tokens, which knows where it got stuck."""

from collections.abc import Callable, Sequence

from environments.dbbench.mysql.lexer import Lexeme

QUERY_BEGINS = ("SELECT", "WITH", "TABLE")  # and perhaps parentheses before


class Stuck(Exception):
  """Nothing that may come next begins at `start`."""

  def __init__(self, start: int):
    super().__init__(start)
    self.start = start


class Reader:
  """Reads tokens one by one; raises `Stuck` where it cannot go on."""

  def __init__(self, lexemes: Sequence[Lexeme]):
    self._lexemes = lexemes
    self._at = 0

  @property
  def lexeme(self) -> Lexeme:
    """What comes next."""
    return self._lexemes[self._at]

  @property
  def word(self) -> str:
    """What it says to the grammar."""
    return self.lexeme.word

  @property
  def kind(self) -> str:
    """What it is."""
    return self.lexeme.kind

  @property
  def next_word(self) -> str:
    """The word behind it."""
    return self._lexemes[min(self._at + 1, len(self._lexemes) - 1)].word

  @property
  def before(self) -> str:
    """The word that was read last."""
    return self._lexemes[self._at - 1].word

  def coming(self, count: int) -> Sequence[Lexeme]:
    """The next tokens, fewer at the end."""
    return self._lexemes[self._at : self._at + count]

  def stuck(self) -> Stuck:
    """What to raise here."""
    return Stuck(self.lexeme.start)

  def skip(self) -> None:
    """Goes on, but never beyond the end."""
    self._at = min(self._at + 1, len(self._lexemes) - 1)

  def take(self, *words: str) -> bool:
    """Whether one of the words came next; if so, it is read."""
    found = self.word in words and self.kind in ("word", "mark")
    if found:
      self.skip()
    return found

  def need(self, *words: str) -> None:
    """Reads one of the words."""
    if not self.take(*words):
      raise self.stuck()

  def listed(self, read: Callable[[], None]) -> None:
    """Reads one or more, with commas between them."""
    read()
    while self.take(","):
      read()

  def parenthesised(
    self, read: Callable[[], None], *, may_be_empty: bool = False
  ) -> None:
    """Reads a list in parentheses."""
    self.need("(")
    if may_be_empty and self.take(")"):
      return
    self.listed(read)
    self.need(")")

  def holds_query(self) -> bool:
    """Whether the parentheses that open here hold a query."""
    following = (lexeme.word for lexeme in self._lexemes[self._at :])
    return next((w for w in following if w != "("), "") in QUERY_BEGINS

  def name(self) -> None:
    """Reads a name."""
    if not self.lexeme.is_name:
      raise self.stuck()
    self.skip()

  def name_or_text(self) -> None:
    """Reads a name, quoted in whatever way."""
    if self.kind == "text":
      return self.skip()
    self.name()

  def table_name(self) -> None:
    """Reads a table, with its database perhaps."""
    self.name()
    if self.word == "." and self.next_word != "*":
      self.skip()
      self.name()

  def column(self) -> None:
    """A column, with its table and database perhaps."""
    self.name()
    while self.take("."):
      self.name()

  def is_wild(self) -> bool:
    """Reads "table.*", if that comes next."""
    words = [lexeme.word for lexeme in self.coming(5)]
    if not self.lexeme.is_name:
      return False
    for length in (3, 5):
      if words[length - 2 : length] == [".", "*"] and (
        length == 3 or words[1] == "."
      ):
        self._at += length
        return True
    return False
