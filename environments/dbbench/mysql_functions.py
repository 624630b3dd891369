"""What SQLite lacks of MySQL: a collation and a few functions, in Python.

Each takes time in proportion to its arguments at most. REGEXP is left out on
purpose: a pattern of the policy's could run for ever, and nothing could stop
it.
"""

import decimal
import functools
import math
import sqlite3
from collections.abc import Callable
from typing import Any

from environments.dbbench import mysql_collation, mysql_dates

# SQLite has functions of these names, or none, that do something else.
AS_TEXT = "AS_MYSQL_TEXT"
BYTE_LENGTH = "MYSQL_BYTE_LENGTH"
FORMAT = "MYSQL_FORMAT"
LOCATE = "MYSQL_LOCATE"
TRUNCATE = "MYSQL_TRUNCATE"
STR_TO_DATE = "MYSQL_STR_TO_DATE"
DATE_FORMAT = "MYSQL_DATE_FORMAT"
DATE = "MYSQL_DATE"
DATE_DIFF = "MYSQL_DATE_DIFF"
MAX_PADDED = 100_000  # characters


def install(connection: sqlite3.Connection) -> None:
  """Makes the collation and the functions known to the connection."""
  connection.create_collation(mysql_collation.NAME, mysql_collation.compare)
  for name, (num_arguments, function) in _FUNCTIONS.items():
    connection.create_function(
      name, num_arguments, function, deterministic=True
    )


def as_text(value: object, scale: int = 0) -> object:
  """A number as MySQL writes it into a TEXT column: 10.5, and 10 for 10.0.

  With a scale, it has so many digits behind the point.
  """
  if scale and isinstance(value, int | float):
    return f"{value:.{scale}f}"
  if isinstance(value, float) and math.isfinite(value):
    return str(int(value)) if value.is_integer() else repr(value)
  return value if value is None else str(value)


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


def _date_part(part: str, value: object) -> int | None:
  """Year, month or day of a date such as 2020-05-31; None of other texts."""
  found = mysql_dates.read(value)
  return None if found is None else int(getattr(found, part))


def _upper(text: object) -> str | None:
  return None if text is None else str(as_text(text)).upper()


def _lower(text: object) -> str | None:
  return None if text is None else str(as_text(text)).lower()


def _byte_length(text: object) -> int | None:
  return None if text is None else len(str(as_text(text)).encode())


def _pad(at_left: bool, text: object, size: object, fill: object) -> str | None:
  """LPAD and RPAD; no longer than a value may be."""
  if text is None or fill is None or not isinstance(size, int):
    return None
  if not 0 <= size <= MAX_PADDED:
    return None
  shown, filling = str(as_text(text)), str(as_text(fill))
  missing = size - len(shown)
  if missing <= 0:
    return shown[:size]
  if not filling:
    return ""
  padding = (filling * (missing // len(filling) + 1))[:missing]
  return padding + shown if at_left else shown + padding


def _repeat(text: object, times: object) -> str | None:
  if text is None or not isinstance(times, int):
    return None
  shown = str(as_text(text))
  return shown * max(0, min(times, MAX_PADDED // max(1, len(shown))))


def _format(number: object, digits: object) -> str | None:
  """FORMAT: with commas between thousands."""
  if number is None or not isinstance(digits, int):
    return None
  places = max(0, min(digits, 30))
  exact = decimal.Decimal(str(number)).quantize(
    decimal.Decimal(1).scaleb(-places), rounding=decimal.ROUND_HALF_UP
  )
  return f"{exact:,}"


def _truncate(number: object, digits: object) -> object:
  """TRUNCATE: towards 0, after so many digits."""
  if not isinstance(number, int | float) or not isinstance(digits, int):
    return None
  exact = decimal.Decimal(str(number))
  places = max(-30, min(digits, 30))
  cut = (exact.scaleb(places)).to_integral_value(decimal.ROUND_DOWN)
  return type(number)(cut.scaleb(-places))


def _ascii(text: object) -> int | None:
  encoded = None if text is None else str(as_text(text)).encode()
  return encoded if encoded is None else encoded[0] if encoded else 0


def _locate(text: object, part: object, start: object = 1) -> int | None:
  """LOCATE and INSTR: where `part` begins, whatever its case; 0 if nowhere."""
  if text is None or part is None or not isinstance(start, int):
    return None
  if start < 1:
    return 0
  weights = mysql_collation.weights
  shown = str(as_text(text))
  found = weights(shown[start - 1 :]).find(weights(str(as_text(part))))
  return found + start if found >= 0 else 0


def _field(wanted: object, *listed: object) -> int:
  """FIELD: which of the others the first one is, or 0."""
  if wanted is None:
    return 0
  known = mysql_collation.weights(str(wanted))
  return next(
    (
      number
      for number, other in enumerate(listed, 1)
      if other is not None and mysql_collation.weights(str(other)) == known
    ),
    0,
  )


_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
  AS_TEXT: (2, as_text),
  "SUBSTRING_INDEX": (3, _substring_index),
  "CONCAT_WS": (-1, _concat_ws),
  "REVERSE": (1, _reverse),
  "LIKE": (2, mysql_collation.like),
  "UPPER": (1, _upper),
  "LOWER": (1, _lower),
  BYTE_LENGTH: (1, _byte_length),
  "LPAD": (3, functools.partial(_pad, True)),
  "RPAD": (3, functools.partial(_pad, False)),
  "REPEAT": (2, _repeat),
  LOCATE: (-1, _locate),
  FORMAT: (2, _format),
  TRUNCATE: (2, _truncate),
  "ASCII": (1, _ascii),
  "FIELD": (-1, _field),
  STR_TO_DATE: (2, mysql_dates.str_to_date),
  DATE_FORMAT: (2, mysql_dates.date_format),
  DATE: (1, mysql_dates.date),
  DATE_DIFF: (2, mysql_dates.datediff),
  "YEAR": (1, functools.partial(_date_part, "year")),
  "MONTH": (1, functools.partial(_date_part, "month")),
  "DAY": (1, functools.partial(_date_part, "day")),
}
