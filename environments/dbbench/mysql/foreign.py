"""What other databases have and MySQL has not: functions, and types of CAST.

The parser and SQLite would take them; MySQL 8 refuses them. MySQL 8.0 Reference
Manual, section 14.10, lists the types that CAST knows: INT and TEXT are not
among them.
"""

from environments.dbbench.engines.base import DATABASE, SYNTAX_ERROR
from environments.dbbench.mysql.grammar import MAX_NEAR_BYTES
from environments.dbbench.mysql.lexer import Lexeme, lexemes

_FUNCTION_NAMES = """
  ARRAY_AGG CHANGES CHARINDEX DATEADD DATEPART DATE_PART DATE_TRUNC DECODE
  GETDATE GLOB IIF INITCAP INT ISNUMERIC JULIANDAY LEN LISTAGG MEDIAN NVL PRINTF
  RANDOM SPLIT_PART STRFTIME STRING_AGG STRPOS TOTAL TO_CHAR TO_DATE TO_NUMBER
  TO_TIMESTAMP TRANSLATE TRUNC TRY_CAST TYPEOF UNICODE ZEROBLOB
"""
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
# Types that MySQL's tables have and its CAST has not.
_TYPE_NAMES = """
  BIGINT BOOL BOOLEAN INT INT4 INTEGER LONGTEXT MEDIUMINT NUMBER NUMERIC
  SMALLINT STRING TEXT TIMESTAMP TINYINT
"""
_TYPES = frozenset(_TYPE_NAMES.split())


def refusal_of(sql: str) -> str | None:
  """What MySQL says to the first of them, if there is any."""
  found = lexemes(sql)
  for n, lexeme in enumerate(found[:-1]):
    if lexeme.kind == "word" and found[n + 1].word == "(":
      is_new = n == 0 or found[n - 1].word not in ("INTO", "TABLE", ".")
      if lexeme.word in _FUNCTIONS and is_new:
        name = lexeme.text_in(sql)
        return f"1305 (42000): FUNCTION {DATABASE}.{name} does not exist"
    if lexeme.word == "CAST" and found[n + 1].word == "(":
      stuck = _type_of_cast(found, n + 2)
      if stuck is not None:
        rest = sql[stuck.start :].rstrip("; \t\r\n").encode()[:MAX_NEAR_BYTES]
        line = 1 + sql.count("\n", 0, stuck.start)
        return SYNTAX_ERROR.format(near=rest.decode(errors="ignore"), line=line)
  return None


def _type_of_cast(found: list[Lexeme], start: int) -> Lexeme | None:
  """The type of a CAST that MySQL does not know, where there is one."""
  depth = 0
  for n in range(start, len(found) - 1):
    word = found[n].word
    depth += (word == "(") - (word == ")")
    if depth < 0:
      return None
    if word == "AS" and not depth:
      if found[n + 1].word in _TYPES:
        return found[n + 1]
      return None
  return None
