"""What SQLite lacks of MySQL: a collation and a few functions, in Python.

Each takes time in proportion to its arguments at most. REGEXP is left out on
purpose: a pattern of the policy's could run for ever, and nothing could stop
it.
"""

import functools
import math
import sqlite3
import unicodedata
from collections.abc import Callable
from typing import Any

COLLATION = "MYSQL"  # ignores case and accents
AS_TEXT = "AS_MYSQL_TEXT"


def install(connection: sqlite3.Connection) -> None:
  """Makes the collation and the functions known to the connection."""
  connection.create_collation(COLLATION, _compare)
  for name, (num_arguments, function) in _FUNCTIONS.items():
    connection.create_function(
      name, num_arguments, function, deterministic=True
    )


def as_text(value: object) -> object:
  """A number as MySQL writes it into a TEXT column: 10.5, and 10 for 10.0."""
  if isinstance(value, float) and math.isfinite(value):
    return str(int(value)) if value.is_integer() else repr(value)
  return value if value is None else str(value)


def _compare(a: str, b: str) -> int:
  left, right = _folded(a), _folded(b)
  return (left > right) - (left < right)


@functools.lru_cache(maxsize=4096)
def _folded(text: str) -> str:
  parts = unicodedata.normalize("NFD", text.casefold())
  return "".join(part for part in parts if not unicodedata.combining(part))


def _substring_index(
  text: object, delimiter: object, count: object
) -> str | None:
  """What stands before the count-th delimiter, from the end if negative."""
  if text is None or delimiter is None or not isinstance(count, int):
    return None
  mark = str(delimiter)
  if not mark or not count:
    return ""
  parts = str(text).split(mark)
  return mark.join(parts[:count] if count > 0 else parts[count:])


def _concat_ws(separator: object, *parts: object) -> str | None:
  if separator is None:
    return None
  return str(separator).join(str(part) for part in parts if part is not None)


def _reverse(text: object) -> str | None:
  return None if text is None else str(text)[::-1]


def _date_part(position: int, text: object) -> int | None:
  """Year, month or day of a date such as 2020-05-31; None of other texts."""
  parts = str(text).split(" ")[0].split("-")
  if len(parts) != 3 or not all(part.isdigit() for part in parts):
    return None
  return int(parts[position])


_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
  AS_TEXT: (1, as_text),
  "SUBSTRING_INDEX": (3, _substring_index),
  "CONCAT_WS": (-1, _concat_ws),
  "REVERSE": (1, _reverse),
  "YEAR": (1, functools.partial(_date_part, 0)),
  "MONTH": (1, functools.partial(_date_part, 1)),
  "DAY": (1, functools.partial(_date_part, 2)),
}
