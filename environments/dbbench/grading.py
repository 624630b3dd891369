"""Grades by AgentBench's two rules: a hash of the tables, or the answer.

The answer rule differs from AgentBench's: an empty answer is never right, and a
null-like word ("none", "undefined") equals 0 only if the label is null-like.
`upstream_quirks` restores AgentBench's rule. Answers are never evaluated.
"""

import ast
import hashlib
import math
from collections.abc import Iterable, Sequence

TOLERANCE = 1e-2  # between equal numbers
NULL_WORDS = frozenset(
  ("none", "null", "undefined", "nan")
  + ("inf", "infinity", "-inf", "-infinity")
)
MAX_LITERAL_CHARS = 4096  # longer answers are text, not lists

Row = tuple[object, ...]


def rows_hash(rows: Iterable[Row]) -> str:
  """Returns the hash of one table: MD5 of the sorted short MD5s of its rows.

  In MySQL: md5(group_concat(h order by h)) with
  h = substring(md5(concat_ws(',', columns)), 1, 5). The order of rows does not
  count, NULL cells are skipped, and a table without rows has the hash "None".
  """
  texts = (",".join(str(c) for c in row if c is not None) for row in rows)
  short = sorted(_md5(text)[:5] for text in texts)
  return _md5(",".join(short)) if short else "None"


def tables_hash(tables: Iterable[Iterable[Row]]) -> str:
  """Returns the hash of several tables; their order does not count."""
  return "_".join(sorted(rows_hash(rows) for rows in tables))


def is_right(
  answer: object, label: Sequence[str], *, upstream_quirks: bool = False
) -> bool:
  """Checks whether the committed answer equals the label.

  A single value must be equal as a number within the tolerance, or as text.
  Several values must match one to one if all are numbers, else as sets.
  """
  items = [_cleaned(item) for item in _items(answer)]
  labels = [_cleaned(item) for item in label]
  if not upstream_quirks and not all(items):
    return False
  if not upstream_quirks and not all(_is_null(item) for item in labels):
    return _equal(items, labels)
  return _equal(
    [_null_to_zero(item) for item in items],
    [_null_to_zero(item) for item in labels],
  )


def _equal(items: list[str], labels: list[str]) -> bool:
  if len(items) == 1 and len(labels) == 1:
    return items == labels or _equal_numbers(items, labels)
  if all(_number(item) is not None for item in (*items, *labels)):
    return _equal_numbers(items, labels)
  return set(items) == set(labels)


def _equal_numbers(items: list[str], labels: list[str]) -> bool:
  """Checks whether all are numbers, and equal in order of size."""
  a = sorted(n for n in map(_number, items) if n is not None)
  b = sorted(n for n in map(_number, labels) if n is not None)
  if not len(a) == len(items) == len(labels) == len(b):
    return False
  return all(abs(x - y) <= TOLERANCE for x, y in zip(a, b, strict=True))


def _items(answer: object) -> list[object]:
  """Splits a committed answer, a list or one text, into its values."""
  if isinstance(answer, list | tuple):
    return list(answer)
  if isinstance(answer, str) and answer.strip().startswith("["):
    return _literal_list(answer.strip()) or [answer]
  return [answer]


def _literal_list(text: str) -> list[object]:
  """Parses a list that is text, such as MySQL's "[(4,), (5,)]"; else []."""
  if len(text) > MAX_LITERAL_CHARS:
    return []
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    return []
  return list(value) if isinstance(value, list) else []


def _cleaned(item: object) -> str:
  """Removes quotes, a percent sign and commas between thousands."""
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


def _md5(text: str) -> str:
  return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
