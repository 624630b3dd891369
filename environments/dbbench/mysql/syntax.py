"""Tokens of MySQL statements, their bounds and sizes, and error 1064."""

import functools
import re
from typing import NamedTuple, TypeVar

from sqlglot import exp

MAX_NEAR_BYTES = 80
CACHED_STATEMENTS = 16  # whose tokens are kept until all checks are done
# Of statements that are checked and rewritten within a few milliseconds.
MAX_SIMPLE_CHARS = 1_000
MAX_SIMPLE_TOKENS = 150
MAX_SIMPLE_DEPTH = 12
EMPTY = "1065 (42000): Query was empty"
BLANK = "; \t\r\n\v\f"  # the server strips these from the end of a statement
_SYNTAX_ERROR = (
  "1064 (42000): You have an error in your SQL syntax; check the manual that "
  "corresponds to your MySQL server version for the right syntax to use "
  "near '{near}' at line {line}"
)
Node = TypeVar("Node", bound=exp.Expr)
_TOKEN = re.compile(
  r"""(?P<blank>\s+|\#[^\n]*|--(?=[\s\x00-\x1f]|\Z)[^\n]*|/\*(?!!).*?\*/)
  |(?P<quoted>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)
  |(?P<open>['"`].*|/\*(?!!).*)
  |(?P<word>[\w$\u0080-\uffff]+)
  |(?P<mark>.)""",
  re.VERBOSE | re.DOTALL,
)


class StatementRefused(Exception):
  """MySQL would not run the statement; the message is MySQL's error."""


class NotMySQL(StatementRefused):
  """The statement cannot be parsed; reading stopped at `start`."""

  def __init__(self, sql: str, start: int = 0):
    super().__init__(syntax_error(sql, start))


class TooComplex(Exception):
  """The statement needs more work than an event loop may spend on it."""


class Token(NamedTuple):
  """One token of a statement: a word, a quoted text or name, or a mark."""

  text: str
  start: int  # position in the statement
  word: str = ""  # the word or the mark in upper case; "" for a quoted token


@functools.lru_cache(CACHED_STATEMENTS)
def tokens(sql: str) -> tuple[Token, ...]:
  """Returns the tokens of `sql`, without comments and blanks.

  A quote or a comment that is never closed is a mark, and the last token.
  """
  found: list[Token] = []
  for match in _TOKEN.finditer(sql):
    kind, text = match.lastgroup, match[0]
    if kind == "open":
      found.append(Token(text[0], match.start(), text[0]))
    elif kind != "blank":
      word = "" if kind == "quoted" else text.upper()
      found.append(Token(text, match.start(), word))
  return tuple(found)


def nodes_of(tree: exp.Expr, kind: type[Node]) -> list[Node]:
  """Returns the nodes of one kind, those near the root first.

  Takes a third of the time of sqlglot's `find_all`.
  """
  found, nodes = [], [tree]
  for node in nodes:  # which grows
    if isinstance(node, kind):
      found.append(node)
    for value in node.args.values():
      if isinstance(value, list):
        nodes += [item for item in value if isinstance(item, exp.Expr)]
      elif isinstance(value, exp.Expr):
        nodes.append(value)
  return found


def require_simple(sql: str) -> None:
  """Raises `TooComplex` for a long statement, or one that is nested deeply."""
  if len(sql) > MAX_SIMPLE_CHARS:
    raise TooComplex
  depth, words = 0, tokens(sql)
  for token in words:
    depth += (token.text == "(") - (token.text == ")")
    if depth > MAX_SIMPLE_DEPTH:
      raise TooComplex
  if len(words) > MAX_SIMPLE_TOKENS:
    raise TooComplex


def split(sql: str) -> list[tuple[int, int]]:
  """Returns start and end of each statement in `sql` that is not empty.

  The first statement starts at 0 if nothing but blanks and comments come
  before it, so that error messages count lines correctly.
  """
  bounds: list[tuple[int, int]] = []
  start: int | None = None
  for token in tokens(sql):
    if token.word != ";":
      if start is None:
        start = token.start if bounds else 0
    elif start is not None:
      bounds.append((start, token.start))
      start = None
  return bounds if start is None else [*bounds, (start, len(sql))]


def syntax_error(sql: str, start: int) -> str:
  """Returns error 1064, which quotes the statement from `start` on."""
  # The server's scanner has already moved past a comma when the error is made.
  start += sql[start : start + 1] == ","
  rest = sql[start:].encode(errors="replace")[:MAX_NEAR_BYTES]
  return _SYNTAX_ERROR.format(
    near=rest.decode(errors="ignore"), line=1 + sql.count("\n", 0, start)
  )
