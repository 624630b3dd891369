"""Implements MySQL functions that SQLite lacks or defines otherwise.

Each call is charged to the statement's budget, if there is one, before it runs.
REGEXP is left out on purpose: a pattern could run for ever.
"""

import decimal
import functools
import hashlib
import math
import re
import sqlite3
import statistics
import time
import zlib
from collections.abc import Callable
from typing import Any

from environments.dbbench.mysql import collation, dates

# Names of their own for functions that SQLite defines otherwise.
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
MAX_VALUES = 1_000_000  # of an aggregate that keeps them
UNITS_PER_VALUE = 20  # a variance is computed with fractions
LIKE_SHARE = 8  # of all pairs of characters, those that LIKE compares
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class OverBudget(Exception):
  """A statement has used up its budget."""


class StatementMeter:
  """The budget of one statement: `units` of work, and processor time."""

  def __init__(self) -> None:
    self.units: float = math.inf
    self._stop_at = math.inf  # on the thread's clock

  def allow(self, units: float, seconds: float) -> None:
    """Sets the budget of the next statement."""
    self.units, self._stop_at = units, time.thread_time() + seconds

  @property
  def is_over(self) -> bool:
    return self.units < 0 or time.thread_time() >= self._stop_at

  def charge(self, *values: object) -> None:
    """Takes a unit per character; raises `OverBudget` if none is left."""
    units = 1
    for value in values:
      if isinstance(value, str | bytes):
        units += len(value)
    self.units -= units
    if self.units < 0:
      raise OverBudget

  def charged(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, charged for its arguments and its result."""

    def call(*arguments: object) -> Any:
      self.charge(*arguments)
      result = function(*arguments)
      self.charge(result)
      return result

    return call


def install(
  connection: sqlite3.Connection, meter: StatementMeter | None
) -> None:
  """Registers the collation and the functions; a meter charges their calls."""
  charged = meter.charged if meter else lambda function: function
  connection.create_collation(
    collation.NAME, _metered_compare(meter) if meter else collation.compare
  )
  for name, (num_arguments, function) in _ALL.items():
    connection.create_function(
      name, num_arguments, charged(function), deterministic=True
    )
  like = _metered_like(meter) if meter else collation.like
  connection.create_function("LIKE", 2, like, deterministic=True)
  for name, moment in _MOMENTS.items():
    connection.create_function(name, 0, moment)
  for name, aggregate in _AGGREGATES.items():
    kind = functools.partial(aggregate, meter)
    connection.create_aggregate(name, 1, kind)


def _metered_compare(meter: StatementMeter) -> Callable[[str, str], int]:
  def compare(a: str, b: str) -> int:
    # SQLite ignores errors of a collation, and stops at its next check.
    meter.units -= 1 + len(a) + len(b)
    return 0 if meter.units < 0 else collation.compare(a, b)

  return compare


def _metered_like(
  meter: StatementMeter,
) -> Callable[[object, object], bool | None]:
  def like(pattern: object, text: object) -> bool | None:
    meter.charge(pattern, text)
    if str(pattern).count("%") > 1:
      meter.units -= len(str(pattern)) * len(str(text)) // LIKE_SHARE
      meter.charge()
    return collation.like(pattern, text)

  return like


def _unless_null(function: Callable[..., Any], *arguments: object) -> Any:
  return None if None in arguments else function(*arguments)


def as_text(value: object, scale: int = 0) -> object:
  """Formats a number as MySQL stores it in a TEXT column: 10.0 is 10.

  `scale` is the number of digits behind the point; 0 takes as many as needed.
  """
  if scale and isinstance(value, int | float):
    return f"{value:.{scale}f}"
  if isinstance(value, float) and math.isfinite(value):
    return str(int(value)) if value.is_integer() else repr(value)
  return value if value is None else str(value)


def _substring_index(
  text: object, delimiter: object, count: object
) -> str | None:
  """Implements SUBSTRING_INDEX: the text before the count-th delimiter."""
  if text is None or delimiter is None or not isinstance(count, int):
    return None
  if not delimiter or not count:
    return ""
  parts = str(text).split(str(delimiter))
  return str(delimiter).join(parts[:count] if count > 0 else parts[count:])


def _concat_ws(separator: object, *parts: object) -> str | None:
  if separator is None:
    return None
  return str(separator).join(str(part) for part in parts if part is not None)


def _pad(at_left: bool, text: object, size: object, fill: object) -> str | None:
  """Implements LPAD and RPAD, up to `MAX_PADDED` characters."""
  if text is None or fill is None or not isinstance(size, int):
    return None
  if not 0 <= size <= MAX_PADDED:
    return None
  original, filling = str(as_text(text)), str(as_text(fill))
  missing = size - len(original)
  if missing <= 0:
    return original[:size]
  if not filling:
    return ""
  padding = (filling * (missing // len(filling) + 1))[:missing]
  return padding + original if at_left else original + padding


def _repeat(text: object, times: object) -> str | None:
  if text is None or not isinstance(times, int):
    return None
  original = str(as_text(text))
  return original * max(0, min(times, MAX_PADDED // max(1, len(original))))


def _format(number: object, digits: object) -> str | None:
  """Implements FORMAT: commas between thousands."""
  if number is None or not isinstance(digits, int):
    return None
  places = max(0, min(digits, 30))
  exact = decimal.Decimal(str(number)).quantize(
    decimal.Decimal(1).scaleb(-places), rounding=decimal.ROUND_HALF_UP
  )
  return f"{exact:,}"


def _truncate(number: object, digits: object) -> object:
  """Implements TRUNCATE: rounds towards 0."""
  if not isinstance(number, int | float) or not isinstance(digits, int):
    return None
  exact = decimal.Decimal(str(number))
  places = max(-30, min(digits, 30))
  cut = (exact.scaleb(places)).to_integral_value(decimal.ROUND_DOWN)
  return type(number)(cut.scaleb(-places))


def _first_byte(text: object) -> int:
  encoded = _bytes(text)
  return encoded[0] if encoded else 0


def _bytes(value: object) -> bytes:
  return str(as_text(value)).encode()


def _locate(text: object, part: object, start: object = 1) -> int | None:
  """Implements LOCATE and INSTR without case; 0 if `part` is absent."""
  if text is None or part is None or not isinstance(start, int):
    return None
  if start < 1:
    return 0
  weights = collation.weights
  original = str(as_text(text))
  position = weights(original[start - 1 :]).find(weights(str(as_text(part))))
  return position + start if position >= 0 else 0


def _field(value: object, *listed: object) -> int:
  """Implements FIELD: the number of the equal argument, or 0."""
  if value is None:
    return 0
  weights = collation.weights(str(value))
  return next(
    (
      number
      for number, other in enumerate(listed, 1)
      if other is not None and collation.weights(str(other)) == weights
    ),
    0,
  )


def _substring(text: object, start: object, *size: object) -> str | None:
  """Implements SUBSTRING; a negative `start` counts from the end."""
  bounds = (start, *size)
  if text is None or None in bounds:
    return None
  first, *rest = (int(float(str(number))) for number in bounds)
  original = str(as_text(text))
  if first < 0:
    first += len(original) + 1
  if first < 1 or (rest and rest[0] < 1):
    return ""
  return original[first - 1 :][: rest[0] if rest else None]


def _insert(text: object, start: object, size: object, new: object) -> object:
  """Implements INSERT: replaces `size` characters by a text."""
  if text is None or new is None:
    return None
  if not isinstance(start, int) or not isinstance(size, int):
    return None
  original = str(as_text(text))
  if not 1 <= start <= len(original):
    return original
  rest = original[start - 1 + size :] if size >= 0 else ""
  return original[: start - 1] + str(as_text(new)) + rest


def _elt(number: object, *listed: object) -> object:
  if not isinstance(number, int) or not 1 <= number <= len(listed):
    return None
  return listed[number - 1]


def _digest(algorithm: str, value: object) -> str:
  data = _bytes(value)
  return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()


def _modulo(number: object, divisor: object) -> object:
  """Implements MOD: the remainder has the sign of the number."""
  a, b = _number(number), _number(divisor)
  if a is None or not b:
    return None
  if isinstance(a, int) and isinstance(b, int):
    return int(math.copysign(abs(a) % abs(b), a))
  return float(decimal.Decimal(repr(a)) % decimal.Decimal(repr(b)))


def _rounded(number: object, digits: object, is_double: object) -> object:
  """Implements ROUND: halves go away from 0, of doubles to the even number."""
  value = _number(number)
  if value is None or not isinstance(digits, int):
    return None
  places = max(-30, min(digits, 30))
  if isinstance(value, float) and not math.isfinite(value):
    return value
  if is_double:
    scale = 10.0 ** abs(places)
    scaled = value * scale if places >= 0 else value / scale
    nearest = float(round(scaled))
    return nearest / scale if places >= 0 else nearest * scale
  exact = decimal.Decimal(repr(value)).quantize(
    decimal.Decimal(1).scaleb(-places), rounding=decimal.ROUND_HALF_UP
  )
  return int(exact) if places <= 0 else float(exact)


def _in_base(number: object, base: int) -> str | None:
  """Implements BIN, OCT and HEX of a number."""
  value = _number(number)
  if value is None:
    return None
  return _convert(str(int(value)), 10, base)


def _hexadecimal(value: object) -> str | None:
  """Implements HEX: the digits of a number, the bytes of a text."""
  if isinstance(value, int | float):
    return _in_base(value, 16)
  return None if value is None else str(value).encode().hex().upper()


def _convert(text: object, source: object, target: object) -> str | None:
  """Implements CONV: the digits of a number in another base."""
  if not isinstance(source, int) or not isinstance(target, int):
    return None
  if text is None or not (2 <= source <= 36 and 2 <= abs(target) <= 36):
    return None
  try:
    value = int(str(text), source) % 2**64
  except ValueError:
    return "0"
  digits = ""
  while value or not digits:
    value, digit = divmod(value, abs(target))
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
  return digits


class _Aggregate:
  """Base of aggregates of all numbers of a group."""

  def __init__(self, meter: StatementMeter | None) -> None:
    self._meter = meter
    self._values: list[float] = []

  def step(self, value: object) -> None:
    if self._meter is not None:
      self._meter.units -= UNITS_PER_VALUE
      self._meter.charge(value)
    number = _number(value)
    if number is not None and len(self._values) < MAX_VALUES:
      self._values.append(float(number))


class _VariancePop(_Aggregate):
  def finalize(self) -> float | None:
    return statistics.pvariance(self._values) if self._values else None


class _VarianceSamp(_Aggregate):
  def finalize(self) -> float | None:
    return statistics.variance(self._values) if self._values[1:] else None


class _StddevPop(_VariancePop):
  def finalize(self) -> float | None:
    return _root(super().finalize())


class _StddevSamp(_VarianceSamp):
  def finalize(self) -> float | None:
    return _root(super().finalize())


def _root(variance: float | None) -> float | None:
  return None if variance is None else math.sqrt(variance)


class _Only:
  """Returns the value of a scalar subquery; a second row is an error."""

  def __init__(self, meter: StatementMeter | None) -> None:
    del meter  # it reads no more than one value
    self._count = 0
    self._value: object = None

  def step(self, value: object) -> None:
    self._count += 1
    if self._count > 1:
      raise ValueError("Subquery returns more than 1 row")
    self._value = value

  def finalize(self) -> object:
    return self._value


def _number(value: object) -> int | float | None:
  """Converts to a number; of a text, its beginning, else 0."""
  if value is None or isinstance(value, int | float):
    return value
  match = _NUMBER.match(str(value).strip())
  return float(match[0]) if match else 0.0


_MOMENTS: dict[str, Callable[[], str]] = {
  **dict.fromkeys(("NOW", "SYSDATE", "LOCALTIME"), dates.now),
  "CURDATE": dates.today,
}
_AGGREGATES: dict[str, Callable[[StatementMeter | None], Any]] = {
  ONLY: _Only,
  **dict.fromkeys(("STDDEV_POP", "STDDEV"), _StddevPop),
  "STDDEV_SAMP": _StddevSamp,
  **dict.fromkeys(("VARIANCE_POP", "VAR_POP", "VARIANCE"), _VariancePop),
  "VAR_SAMP": _VarianceSamp,
}
# With the number of arguments. A NULL among them makes the result NULL.
_OF_VALUES: dict[str, tuple[int, Callable[..., Any]]] = {
  "REVERSE": (1, lambda text: str(text)[::-1]),
  "UPPER": (1, lambda text: str(as_text(text)).upper()),
  "LOWER": (1, lambda text: str(as_text(text)).lower()),
  BYTE_LENGTH: (1, lambda text: len(_bytes(text))),
  "OCTET_LENGTH": (1, lambda text: len(_bytes(text))),
  **dict.fromkeys(("ASCII", "ORD"), (1, _first_byte)),
  "FIND_IN_SET": (
    2,
    lambda text, listed: _field(text, *str(listed).split(",")),
  ),
  "STRCMP": (
    2,
    lambda a, b: collation.compare(str(as_text(a)), str(as_text(b))),
  ),
  "MD5": (1, functools.partial(_digest, "md5")),
  **dict.fromkeys(("SHA1", "SHA"), (1, functools.partial(_digest, "sha1"))),
  "CRC32": (1, lambda value: zlib.crc32(_bytes(value))),
}
# Functions that read NULL themselves.
_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
  AS_TEXT: (2, as_text),
  "SUBSTRING_INDEX": (3, _substring_index),
  "CONCAT_WS": (-1, _concat_ws),
  "LPAD": (3, functools.partial(_pad, True)),
  "RPAD": (3, functools.partial(_pad, False)),
  "REPEAT": (2, _repeat),
  LOCATE: (-1, _locate),
  FORMAT: (2, _format),
  TRUNCATE: (2, _truncate),
  "FIELD": (-1, _field),
  STR_TO_DATE: (2, dates.str_to_date),
  DATE_FORMAT: (2, dates.date_format),
  DATE: (1, dates.date),
  DATE_DIFF: (2, dates.datediff),
  DATE_PART: (2, dates.part),
  DATE_ADD: (3, dates.add),
  TIMESTAMP_DIFF: (3, dates.difference),
  **{
    name: (1, functools.partial(dates.part, name))
    for name in ("WEEKDAY", "TO_DAYS", "YEAR", "MONTH", "DAY")
  },
  MOD: (2, _modulo),
  ROUND: (3, _rounded),
  HEX: (1, _hexadecimal),
  "BIN": (1, functools.partial(_in_base, base=2)),
  "OCT": (1, functools.partial(_in_base, base=8)),
  "CONV": (3, _convert),
  SUBSTRING: (-1, _substring),
  "MID": (3, _substring),
  "STUFF": (4, _insert),
  "ELT": (-1, _elt),
  "CURRENT_USER": (0, lambda: "root@%"),
  "CONNECTION_ID": (0, lambda: 1),
  "LAST_INSERT_ID": (0, lambda: 0),
}
_ALL = _FUNCTIONS | {
  name: (num_arguments, functools.partial(_unless_null, function))
  for name, (num_arguments, function) in _OF_VALUES.items()
}
