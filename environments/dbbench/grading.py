"""Who was right: a hash of the tables, or a comparison of the answers.

AgentBench's two rules. The answer rule is repaired where AgentBench's takes
nothing for something: an empty answer is never right, and a null-like word
("none", "undefined") equals 0 only when the key itself is null-like.
`upstream_quirks` gives AgentBench's own verdicts. Nothing is ever evaluated.
"""

import ast
import hashlib
import math
from collections.abc import Iterable, Sequence

TOLERANCE = 1e-2  # numbers this near each other are equal
NULL_WORDS = frozenset(
  ("none", "null", "undefined", "nan")
  + ("inf", "infinity", "-inf", "-infinity")
)
MAX_LITERAL_CHARS = 4096  # an answer longer than this is taken as plain text

Row = tuple[object, ...]


def rows_hash(rows: Iterable[Row]) -> str:
  """The hash of one table: MD5 of the sorted short MD5s of its rows.

  MySQL writes it as md5(group_concat(h order by h)) with
  h = substring(md5(concat_ws(',', columns)), 1, 5): the order of rows does not
  count, NULL cells are skipped, and no rows at all have no hash.
  """
  short = sorted(_md5(",".join(_cells(row)))[:5] for row in rows)
  return _md5(",".join(short)) if short else "None"


def tables_hash(tables: Iterable[Iterable[Row]]) -> str:
  """The hash of several tables, in whatever order they come."""
  return "_".join(sorted(rows_hash(rows) for rows in tables))


def is_right(
  answer: object, label: Sequence[str], *, upstream_quirks: bool = False
) -> bool:
  """Whether the committed answer says the same as the label.

  One value against one: equal as numbers within the tolerance, or as text.
  Several: a one-to-one match if all are numbers, else equality as sets.
  """
  found = [_cleaned(item) for item in _items(answer)]
  wanted = [_cleaned(item) for item in label]
  if not upstream_quirks and not all(found):
    return False
  if not upstream_quirks and not all(_is_null(item) for item in wanted):
    return _same(found, wanted)
  return _same(
    [_null_to_zero(item) for item in found],
    [_null_to_zero(item) for item in wanted],
  )


def _same(found: list[str], wanted: list[str]) -> bool:
  if len(found) == 1 and len(wanted) == 1:
    return found == wanted or _same_numbers(found, wanted)
  if all(_number(item) is not None for item in (*found, *wanted)):
    return _same_numbers(found, wanted)
  return set(found) == set(wanted)


def _same_numbers(found: list[str], wanted: list[str]) -> bool:
  """Whether both are numbers, and pair up in order of size."""
  a = sorted(n for n in map(_number, found) if n is not None)
  b = sorted(n for n in map(_number, wanted) if n is not None)
  if not len(a) == len(found) == len(wanted) == len(b):
    return False
  return all(abs(x - y) <= TOLERANCE for x, y in zip(a, b, strict=True))


def _items(answer: object) -> list[object]:
  """The single answers in what was committed, a list or one text."""
  if isinstance(answer, list | tuple):
    return list(answer)
  if isinstance(answer, str) and answer.strip().startswith("["):
    return _literal_list(answer.strip()) or [answer]
  return [answer]


def _literal_list(text: str) -> list[object]:
  """A list written as text, such as MySQL's "[(4,), (5,)]"; else nothing."""
  if len(text) > MAX_LITERAL_CHARS:
    return []
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    return []
  return list(value) if isinstance(value, list) else []


def _cleaned(item: object) -> str:
  """Quotes off, and a number's percent sign or thousands commas with them."""
  if isinstance(item, tuple) and len(item) == 1:
    item = item[0]
  text = str(item).strip().strip("'\"").strip()
  if text.endswith("%"):
    return text[:-1].strip()
  if not text.startswith("[") and not text.endswith("]"):
    return text.replace(",", "")
  return text


def _is_null(text: str) -> bool:
  return not text or text.lower() in NULL_WORDS


def _null_to_zero(text: str) -> str:
  return "0" if _is_null(text) else text


def _number(text: str) -> float | None:
  try:
    value = float(text)
  except ValueError:
    return None
  return value if math.isfinite(value) else None


def _cells(row: Row) -> list[str]:
  return [str(cell) for cell in row if cell is not None]


def _md5(text: str) -> str:
  return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
