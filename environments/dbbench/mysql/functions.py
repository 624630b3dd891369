"""What SQLite lacks of MySQL: a collation and a few functions, in Python.

Each takes time in proportion to its arguments at most. REGEXP is left out on
purpose: a pattern of the policy's could run for ever, and nothing could stop
it.
"""

import decimal
import functools
import hashlib
import math
import sqlite3
import zlib
from collections.abc import Callable
from typing import Any

from environments.dbbench.mysql import calendar, collation, dates, numbers

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
DATE_PART = "MYSQL_DATE_PART"
DATE_ADD = "MYSQL_DATE_ADD"
TIMESTAMP_DIFF = "MYSQL_TIMESTAMP_DIFF"
MOD = "MYSQL_MOD"
ROUND = "MYSQL_ROUND"
HEX = "MYSQL_HEX"
SUBSTRING = "MYSQL_SUBSTRING"
ONLY = "MYSQL_ONLY"
SERVER_VERSION = "8.4.0"
MAX_PADDED = 100_000  # characters


def install(connection: sqlite3.Connection) -> None:
  """Makes the collation and the functions known to the connection."""
  connection.create_collation(collation.NAME, collation.compare)
  for name, (num_arguments, function) in _FUNCTIONS.items():
    connection.create_function(
      name, num_arguments, function, deterministic=True
    )
  for name, moment in _MOMENTS.items():
    connection.create_function(name, 0, moment)
  for name, aggregate in _AGGREGATES.items():
    connection.create_aggregate(name, 1, aggregate)


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
  found = dates.read(value)
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
  weights = collation.weights
  shown = str(as_text(text))
  found = weights(shown[start - 1 :]).find(weights(str(as_text(part))))
  return found + start if found >= 0 else 0


def _field(wanted: object, *listed: object) -> int:
  """FIELD: which of the others the first one is, or 0."""
  if wanted is None:
    return 0
  known = collation.weights(str(wanted))
  return next(
    (
      number
      for number, other in enumerate(listed, 1)
      if other is not None and collation.weights(str(other)) == known
    ),
    0,
  )


def _substring(text: object, start: object, *size: object) -> str | None:
  """SUBSTRING: from 1, or from the end if negative; nothing from 0."""
  given = (start, *size)
  if text is None or any(number is None for number in given):
    return None
  first, *rest = (int(float(str(number))) for number in given)
  shown = str(as_text(text))
  if first < 0:
    first += len(shown) + 1
  if first < 1 or (rest and rest[0] < 1):
    return ""
  return shown[first - 1 :][: rest[0] if rest else None]


def _insert(text: object, start: object, size: object, new: object) -> object:
  """INSERT: puts a text in the place of so many characters."""
  if text is None or new is None:
    return None
  if not isinstance(start, int) or not isinstance(size, int):
    return None
  shown = str(as_text(text))
  if not 1 <= start <= len(shown):
    return shown
  rest = shown[start - 1 + size :] if size >= 0 else ""
  return shown[: start - 1] + str(as_text(new)) + rest


def _elt(number: object, *listed: object) -> object:
  is_there = isinstance(number, int) and 1 <= number <= len(listed)
  return listed[number - 1] if is_there else None  # type: ignore[operator]


def _find_in_set(wanted: object, listed: object) -> int | None:
  if wanted is None or listed is None:
    return None
  return _field(wanted, *str(listed).split(","))


def _strcmp(a: object, b: object) -> int | None:
  if a is None or b is None:
    return None
  return collation.compare(str(as_text(a)), str(as_text(b)))


def _digest(algorithm: str, value: object) -> str | None:
  if value is None:
    return None
  data = str(as_text(value)).encode()
  return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()


def _crc32(value: object) -> int | None:
  return None if value is None else zlib.crc32(str(as_text(value)).encode())


_MOMENTS: dict[str, Callable[[], str]] = {
  **dict.fromkeys(("NOW", "SYSDATE", "LOCALTIME"), calendar.now),
  "CURDATE": calendar.today,
}
_AGGREGATES: dict[str, type] = {
  ONLY: numbers.Only,
  "STDDEV_POP": numbers.StddevPop,
  "STDDEV": numbers.StddevPop,
  "STDDEV_SAMP": numbers.StddevSamp,
  "VARIANCE_POP": numbers.VariancePop,
  "VAR_POP": numbers.VariancePop,
  "VARIANCE": numbers.VariancePop,
  "VAR_SAMP": numbers.VarianceSamp,
}
_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
  AS_TEXT: (2, as_text),
  "SUBSTRING_INDEX": (3, _substring_index),
  "CONCAT_WS": (-1, _concat_ws),
  "REVERSE": (1, _reverse),
  "LIKE": (2, collation.like),
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
  STR_TO_DATE: (2, dates.str_to_date),
  DATE_FORMAT: (2, dates.date_format),
  DATE: (1, dates.date),
  DATE_DIFF: (2, dates.datediff),
  DATE_PART: (2, calendar.part),
  DATE_ADD: (3, calendar.add),
  TIMESTAMP_DIFF: (3, calendar.difference),
  **{
    name: (1, functools.partial(calendar.part, name))
    for name in ("WEEKDAY", "TO_DAYS")
  },
  MOD: (2, numbers.modulo),
  ROUND: (3, numbers.rounded),
  HEX: (1, numbers.hexadecimal),
  "BIN": (1, functools.partial(numbers.in_base, base=2)),
  "OCT": (1, functools.partial(numbers.in_base, base=8)),
  "CONV": (3, numbers.convert),
  SUBSTRING: (-1, _substring),
  "MID": (3, _substring),
  "STUFF": (4, _insert),
  "ELT": (-1, _elt),
  "FIND_IN_SET": (2, _find_in_set),
  "STRCMP": (2, _strcmp),
  "OCTET_LENGTH": (1, _byte_length),
  "ORD": (1, _ascii),
  "MD5": (1, functools.partial(_digest, "md5")),
  "SHA1": (1, functools.partial(_digest, "sha1")),
  "SHA": (1, functools.partial(_digest, "sha1")),
  "CRC32": (1, _crc32),
  "CURRENT_USER": (0, lambda: "root@%"),
  "CONNECTION_ID": (0, lambda: 1),
  "LAST_INSERT_ID": (0, lambda: 0),
  "YEAR": (1, functools.partial(_date_part, "year")),
  "MONTH": (1, functools.partial(_date_part, "month")),
  "DAY": (1, functools.partial(_date_part, "day")),
}
