"""MySQL's arithmetic where SQLite's is another: functions and aggregates."""

import decimal
import math
import statistics

MAX_VALUES = 1_000_000  # of an aggregate that keeps them


def modulo(number: object, divisor: object) -> object:
  """MOD: the remainder with the sign of the number, fractions included."""
  a, b = _number(number), _number(divisor)
  if a is None or not b:
    return None
  if isinstance(a, int) and isinstance(b, int):
    return int(math.copysign(abs(a) % abs(b), a))
  return float(decimal.Decimal(repr(a)) % decimal.Decimal(repr(b)))


def rounded(number: object, digits: object, is_double: object) -> object:
  """ROUND: decimals away from 0 at the half, doubles to the even neighbour."""
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


def in_base(number: object, base: int) -> str | None:
  """BIN, OCT and HEX of a number."""
  value = _number(number)
  if value is None:
    return None
  return convert(str(int(value)), 10, base)


def hexadecimal(value: object) -> str | None:
  """HEX: of a number its digits, of a text its bytes."""
  if isinstance(value, int | float):
    return in_base(value, 16)
  return None if value is None else str(value).encode().hex().upper()


def convert(text: object, source: object, target: object) -> str | None:
  """CONV: the digits of a number in another base."""
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


class _Spread:
  """An aggregate of all numbers of a group."""

  def __init__(self) -> None:
    self._values: list[float] = []

  def step(self, value: object) -> None:
    number = _number(value)
    if number is not None and len(self._values) < MAX_VALUES:
      self._values.append(float(number))


class VariancePop(_Spread):
  """VAR_POP and VARIANCE."""

  def finalize(self) -> float | None:
    """The mean of the squared distances from the mean; NULL of nothing."""
    return statistics.pvariance(self._values) if self._values else None


class VarianceSamp(_Spread):
  """VAR_SAMP."""

  def finalize(self) -> float | None:
    """The same, without bias; NULL of fewer than two."""
    return statistics.variance(self._values) if self._values[1:] else None


class StddevPop(VariancePop):
  """STD, STDDEV and STDDEV_POP."""

  def finalize(self) -> float | None:
    """The square root of the variance."""
    variance = super().finalize()
    return None if variance is None else math.sqrt(variance)


class StddevSamp(VarianceSamp):
  """STDDEV_SAMP."""

  def finalize(self) -> float | None:
    """The square root of the variance."""
    variance = super().finalize()
    return None if variance is None else math.sqrt(variance)


class Only:
  """The one value of a query that stands for a value."""

  def __init__(self) -> None:
    self._count, self._value = 0, None

  def step(self, value: object) -> None:
    """Raises if it is the second one."""
    self._count += 1
    if self._count > 1:
      raise ValueError("Subquery returns more than 1 row")
    self._value = value  # type: ignore[assignment]

  def finalize(self) -> object:
    """The value; NULL if there was none."""
    return self._value


def _number(value: object) -> int | float | None:
  """A number, or what a text begins with; 0 if that is none."""
  if value is None or isinstance(value, int | float):
    return value
  text = str(value).strip()
  for end in range(len(text), 0, -1):
    try:
      return float(text[:end]) if text[end - 1] != "_" else 0.0
    except ValueError:
      continue
  return 0.0
