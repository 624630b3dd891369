"""Refuses what sqlglot parses and MySQL 8 does not, with MySQL's errors.

Token rules of the default sql_mode, reserved words, functions of other
databases, types that CAST does not know (MySQL 8.0 Reference Manual, section
14.10), and the mistakes in grammar that policies make most.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from sqlglot import exp

from environments.dbbench.engines.base import DATABASE

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
_QUOTES = ("'", '"')
END = "end of the statement"  # which no token is
Node = TypeVar("Node", bound=exp.Expr)
# Words that are names only in backticks, in MySQL 8.0. DEFAULT, DUAL and
# CURRENT_DATE and its like are left out: sqlglot reads them as names.
_RESERVED_WORDS = """
  accessible add all alter analyze and as asc asensitive before between
  bigint binary blob both by call cascade case change char character check
  collate column condition constraint continue convert create cross cube
  cume_dist cursor database databases day_hour day_microsecond day_minute
  day_second dec decimal declare delayed delete dense_rank desc describe
  deterministic distinct distinctrow div double drop each else elseif empty
  enclosed escaped except exists exit explain false fetch first_value float
  float4 float8 for force foreign from fulltext function generated get grant
  group grouping groups having high_priority hour_microsecond hour_minute
  hour_second if ignore in index infile inner inout insensitive insert int
  int1 int2 int3 int4 int8 integer intersect interval into io_after_gtids
  io_before_gtids is iterate join json_table key keys kill lag last_value
  lateral lead leading leave left like limit linear lines load lock long
  longblob longtext loop low_priority master_bind
  master_ssl_verify_server_cert match maxvalue mediumblob mediumint
  mediumtext middleint minute_microsecond minute_second mod modifies natural
  no_write_to_binlog not nth_value ntile null numeric of on optimize
  optimizer_costs option optionally or order out outer outfile over
  partition percent_rank precision primary procedure purge range rank read
  read_write reads real recursive references regexp release rename repeat
  replace require resignal restrict return revoke right rlike row row_number
  rows schema schemas second_microsecond select sensitive separator set show
  signal smallint spatial specific sql sql_big_result sql_calc_found_rows
  sql_small_result sqlexception sqlstate sqlwarning ssl starting stored
  straight_join system table terminated then tinyblob tinyint tinytext to
  trailing trigger true undo union unique unlock unsigned update usage use
  using values varbinary varchar varcharacter varying virtual when where
  while window with write xor year_month zerofill
"""
_RESERVED = frozenset(_RESERVED_WORDS.upper().split())
# Reserved words that may begin an expression: MySQL stops behind them.
_BEGIN_WORDS = """
  case char convert cume_dist database dense_rank exists false first_value
  grouping if insert interval lag last_value lead left match mod not
  nth_value ntile null percent_rank rank repeat replace right row row_number
  schema true values
"""
_BEGINS_EXPRESSION = frozenset(_BEGIN_WORDS.upper().split())
_FOREIGN_FUNCTION_NAMES = """
  ARRAY_AGG CHANGES CHARINDEX DATEADD DATEPART DATE_PART DATE_TRUNC DECODE
  GETDATE GLOB IIF INITCAP INT ISNUMERIC JULIANDAY LEN LISTAGG MEDIAN NVL PRINTF
  RANDOM SPLIT_PART STRFTIME STRING_AGG STRPOS TOTAL TO_CHAR TO_DATE TO_NUMBER
  TO_TIMESTAMP TRANSLATE TRUNC TRY_CAST TYPEOF UNICODE ZEROBLOB
"""
_FOREIGN_FUNCTIONS = frozenset(_FOREIGN_FUNCTION_NAMES.split())
# Types of columns that CAST refuses.
_COLUMN_TYPE_NAMES = """
  BIGINT BOOL BOOLEAN INT INT4 INTEGER LONGTEXT MEDIUMINT NUMBER NUMERIC
  SMALLINT STRING TEXT TIMESTAMP TINYINT
"""
_COLUMN_TYPES = frozenset(_COLUMN_TYPE_NAMES.split())
# An item of a list must come between these and those.
_BEFORE_ITEM = frozenset((",", "SELECT", "DISTINCT", "SET", "BY"))
_NO_ITEM = frozenset(
  (",", ")", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION")
  + (END,)
)
_MISPLACED_PAIRS = frozenset((("(", ","), (",", "*"), ("=", "=")))
# Tokens that follow each other in other databases only.
_FOREIGN_PAIRS = frozenset(
  ((":", ":"), ("FULL", "OUTER")) + (("FETCH", "FIRST"), ("FETCH", "NEXT"))
)
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


def refusal_of_words(sql: str) -> str | None:
  """Returns the error for a function or a type of CAST that MySQL lacks."""
  words = tokens(sql)
  previous = ""
  for n, (token, following) in enumerate(itertools.pairwise(words)):
    is_call = following.text == "(" and previous not in ("INTO", "TABLE", ".")
    if is_call and token.word in _FOREIGN_FUNCTIONS:
      return f"1305 (42000): FUNCTION {DATABASE}.{token.text} does not exist"
    if following.text == "(" and token.word == "CAST":
      target = _type_of_cast(words[n + 2 :])
      if target is not None and target.word in _COLUMN_TYPES:
        return syntax_error(sql, target.start)
    previous = token.word
  return None


def _type_of_cast(words: Sequence[Token]) -> Token | None:
  """Returns the token behind AS, given the tokens that follow `CAST(`."""
  depth = 0
  for token, following in itertools.pairwise(words):
    depth += (token.word == "(") - (token.word == ")")
    if depth < 0:
      return None
    if token.word == "AS" and not depth:
      return following
  return None


def refusal_of_grammar(tree: exp.Expr, sql: str) -> str | None:
  """Returns error 1064 if MySQL would not parse the statement.

  Checks the mistakes that policies make, and no other part of the grammar.
  """
  if not isinstance(tree, exp.Query | exp.Insert | exp.Update | exp.Delete):
    return None
  words = [*tokens(sql), Token(END, len(sql), END)]
  nodes = nodes_of(tree, exp.Expr)  # once: walking costs more than checks
  stops = [
    *_misplaced_tokens(words),
    *_misread_names(nodes, sql, words),
    *_misread_columns(tree, words),
    *_misread_limits(nodes, words),
    *_misread_forms(nodes, words),
  ]
  return syntax_error(sql, min(stops)) if stops else None


def _misplaced_tokens(words: Sequence[Token]) -> Iterator[int]:
  """Yields positions of tokens that cannot follow the token before them."""
  for token, following in itertools.pairwise(words):
    pair = (token.word, following.word)
    if (
      token.word in _BEFORE_ITEM and following.word in _NO_ITEM
    ) or pair in _MISPLACED_PAIRS:
      yield following.start
    elif pair in _FOREIGN_PAIRS or token.word in ("[", "ILIKE"):
      yield token.start


def _misread_names(
  nodes: Sequence[exp.Expr], sql: str, words: Sequence[Token]
) -> Iterator[int]:
  """Yields positions of words and string literals that are no names."""
  for name in nodes:
    if not isinstance(name, exp.Identifier):
      continue
    start, end = (name.meta.get(key, 0) for key in ("start", "end"))
    if name.quoted:
      if sql[start] in _QUOTES and not isinstance(name.parent, exp.Alias):
        yield start
    # Any word may be a name after a point.
    elif name.name.upper() in _RESERVED and sql[start - 1 : start] != ".":
      if _begins_expression(name):
        yield next(token.start for token in words if token.start > end)
      else:
        yield start


def _begins_expression(name: exp.Identifier) -> bool:
  """Checks whether MySQL reads on and stops at the token behind the word."""
  column = name.parent
  if not isinstance(column, exp.Column) or column.parent is None:
    return False
  is_assigned = column.arg_key == "this" and isinstance(
    column.parent.parent, exp.Update
  )
  return name.name.upper() in _BEGINS_EXPRESSION and not is_assigned


def _misread_columns(tree: exp.Expr, words: Sequence[Token]) -> Iterator[int]:
  """Yields positions of literals and a second SET among written columns."""
  if isinstance(tree, exp.Insert) and isinstance(tree.this, exp.Schema):
    columns, opening = tree.this.expressions, "("
  elif isinstance(tree, exp.Update):
    columns, opening = [pair.this for pair in tree.expressions], "SET"
    yield from [token.start for token in words if token.word == "SET"][1:]
  else:
    return
  if any(isinstance(column, exp.Literal) for column in columns):
    begin = next(n for n, token in enumerate(words) if token.word == opening)
    yield next(
      token.start
      for token in words[begin:]
      if token.text.isdigit() or token.text[:1] in _QUOTES
    )


def _misread_limits(
  nodes: Sequence[exp.Expr], words: Sequence[Token]
) -> Iterator[int]:
  """Yields positions of LIMIT and OFFSET that do not take whole numbers."""
  for node in nodes:
    if isinstance(node, exp.Limit):
      count = node.expression
      if (
        not isinstance(count, exp.Literal)
        or count.is_string
        or not count.name.isdigit()
      ):
        yield _behind(words, "LIMIT")
      elif node.args.get("offset") and not isinstance(nodes[0], exp.Query):
        yield _behind(words, "LIMIT") + len(count.name)
    elif (
      isinstance(node, exp.Offset)
      and node.parent is not None
      and not node.parent.args.get("limit")
    ):
      yield _behind(words, "OFFSET")


def _misread_forms(
  nodes: Sequence[exp.Expr], words: Sequence[Token]
) -> Iterator[int]:
  """Yields positions in COUNT(), MAX(a, b), FULL JOIN, DELETE without FROM."""
  for before, _, full, join in zip(
    words, words[1:], words[2:], words[3:], strict=False
  ):
    # Behind a table without an alias, FULL is its alias.
    has_alias = before.word not in ("FROM", "JOIN", ",", ".", "(")
    if has_alias and (full.word, join.word) == ("FULL", "JOIN"):
      yield full.start
  if any(isinstance(n, exp.Count) and n.this is None for n in nodes):
    yield next(
      closing.start
      for name, _, closing in zip(words, words[1:], words[2:], strict=False)
      if name.word == "COUNT" and closing.word == ")"
    )
  if any(isinstance(n, exp.Max | exp.Min) and n.expressions for n in nodes):
    yield _behind(words, ",")
  statement = nodes[0]
  if isinstance(statement, exp.Delete) and not isinstance(
    statement.this, exp.Table
  ):
    yield words[2].start


def _behind(words: Sequence[Token], word: str) -> int:
  """Returns the position of the token behind the first `word`."""
  return next(b.start for a, b in itertools.pairwise(words) if a.word == word)
