"""Cuts a statement into MySQL's tokens, and knows which words are reserved.

As the server's own scanner does with the default sql_mode: strings in either
quotes, `names`, comments, numbers, and names that may begin with a digit.
"""

import dataclasses
import re

# Words that are no names unless quoted, in MySQL 8.0.
_RESERVED = """
  accessible add all alter analyze and as asc asensitive before between bigint
  binary blob both by call cascade case change char character check collate
  column condition constraint continue convert create cross cube cume_dist
  current_date current_time current_timestamp current_user cursor database
  databases day_hour day_microsecond day_minute day_second dec decimal declare
  default delayed delete dense_rank desc describe deterministic distinct
  distinctrow div double drop dual each else elseif empty enclosed escaped
  except exists exit explain false fetch first_value float float4 float8 for
  force foreign from fulltext function generated get grant group grouping groups
  having high_priority hour_microsecond hour_minute hour_second if ignore in
  index infile inner inout insensitive insert int int1 int2 int3 int4 int8
  integer intersect interval into io_after_gtids io_before_gtids is iterate join
  json_table key keys kill lag last_value lateral lead leading leave left like
  limit linear lines load localtime localtimestamp lock long longblob longtext
  loop low_priority master_bind master_ssl_verify_server_cert match maxvalue
  mediumblob mediumint mediumtext middleint minute_microsecond minute_second mod
  modifies natural no_write_to_binlog not nth_value ntile null numeric of on
  optimize optimizer_costs option optionally or order out outer outfile over
  partition percent_rank precision primary procedure purge range rank read
  read_write reads real recursive references regexp release rename repeat
  replace require resignal restrict return revoke right rlike row row_number
  rows schema schemas second_microsecond select sensitive separator set show
  signal smallint spatial specific sql sql_big_result sql_calc_found_rows
  sql_small_result sqlexception sqlstate sqlwarning ssl starting stored
  straight_join system table terminated then tinyblob tinyint tinytext to
  trailing trigger true undo union unique unlock unsigned update usage use using
  utc_date utc_time utc_timestamp values varbinary varchar varcharacter varying
  virtual when where while window with write xor year_month zerofill
"""
RESERVED = frozenset(_RESERVED.upper().split())
# Functions with a grammar of their own, if "(" follows at once; else names.
_CALLED = """
  adddate avg bit_and bit_or bit_xor cast count curdate curtime date_add
  date_sub extract group_concat json_arrayagg json_objectagg max mid min now
  position session_user std stddev stddev_pop stddev_samp subdate substr
  substring sum sysdate system_user trim variance var_pop var_samp
"""
CALLED = frozenset(_CALLED.upper().split())

_TOKEN = re.compile(
  r"""(?P<blank>\s+|\#[^\n]*|--(?=[\s\x00-\x1f]|\Z)[^\n]*|/\*(?!!).*?\*/)
  |(?P<text>[nN]?'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  |(?P<bits>[xX]'[0-9a-fA-F]*'|[bB]'[01]*'|0x[0-9a-fA-F]+(?![\w$])
    |0b[01]+(?![\w$]))
  |(?P<quoted>`(?:[^`]|``)*`)
  |(?P<number>(?:\d+\.\d*|\.\d+|\d+)[eE][+-]?\d+|\d+\.\d*|\.\d+|\d+(?![\w$]))
  |(?P<variable>@@?(?:[\w$.]+|`[^`]*`|'[^']*'|"[^"]*")?)
  |(?P<word>[\w$\u0080-\uffff]+)
  |(?P<mark><=>|->>|->|<<|>>|<>|!=|<=|>=|\|\||&&|:=|.)""",
  re.VERBOSE | re.DOTALL,
)


_MAY_BE_NAME = re.compile(r"\d[^\W\d]|[\w`]\.\d")


@dataclasses.dataclass(frozen=True, slots=True)
class Lexeme:
  """One token. `word` is what it says to the grammar.

  That is the word in upper case for reserved and other bare words, else the
  kind in lower case, or the mark itself.
  """

  kind: str  # text, bits, quoted, number, variable, word, call, mark, end
  word: str
  start: int  # in the statement

  @property
  def is_name(self) -> bool:
    """Whether it may name a table, a column, an alias or a function."""
    return self.kind == "quoted" or (
      self.kind == "word" and self.word not in RESERVED
    )

  def text_in(self, sql: str) -> str:
    """The word as it was written."""
    return sql[self.start : self.start + len(self.word.removeprefix("."))]


def lexemes(sql: str) -> list[Lexeme]:
  """The tokens of `sql`, and one for its end."""
  found: list[Lexeme] = []
  at = 0
  while at < len(sql):
    match = _TOKEN.match(sql, at)
    assert match is not None  # the last alternative takes any character
    kind = str(match.lastgroup)
    if _follows_point(found, at) and sql[at].isalnum():
      kind, match = "word", _NAME_AFTER_POINT.match(sql, at) or match
    elif _is_member(found, match, sql[at - 1 : at]):
      found.append(Lexeme("mark", ".", at))
      at += 1
      continue
    if kind != "blank":
      word = _word_of(kind, match[0], is_member=_follows_point(found, at))
      if word in CALLED and sql[match.end() : match.end() + 1] == "(":
        kind = "call"
      found.append(Lexeme(kind, word, at))
    at = match.end()
  found.append(Lexeme("end", "", len(sql)))
  return found


_NAME_AFTER_POINT = re.compile(r"[\w$\u0080-\uffff]+")


def _follows_point(found: list[Lexeme], at: int) -> bool:
  """Whether what begins at `at` is the second half of "table.column"."""
  return (
    len(found) > 1
    and (found[-1].word, found[-1].start) == (".", at - 1)
    and found[-2].kind in ("word", "quoted")
  )


def _is_member(found: list[Lexeme], match: re.Match[str], before: str) -> bool:
  """Whether what looks like the number .1 is a name behind a point: Time.1."""
  return (
    match.lastgroup == "number"
    and match[0].startswith(".")
    and bool(found)
    and found[-1].kind in ("word", "quoted")
    and not before.isspace()
  )


def _word_of(kind: str, text: str, *, is_member: bool) -> str:
  if kind == "word" and is_member:
    return f".{text}"  # never a reserved word
  if kind in ("word", "mark"):
    return text.upper()
  return kind


def with_quoted_names(sql: str) -> str:
  """The same statement, with quotes around names that begin with a digit."""
  if not _MAY_BE_NAME.search(sql):
    return sql
  parts, done = [], 0
  for lexeme in lexemes(sql):
    bare = lexeme.word.removeprefix(".")
    if lexeme.kind == "word" and bare[:1].isdigit():
      end = lexeme.start + len(bare)
      parts += [sql[done : lexeme.start], f"`{sql[lexeme.start : end]}`"]
      done = end
  return "".join(parts) + sql[done:]
