"""Implements MySQL's date functions on texts.

A date is a text, YYYY-MM-DD, followed by the time if it has one. The result for
any other text is NULL.
"""

import calendar
import datetime
import re
from collections.abc import Callable, Mapping

_LOOSE = re.compile(
  r"(\d{4}|\d{2})[-/.](\d{1,2})[-/.](\d{1,2})"
  r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.\d*)?)?)?\Z"
)
_MONTH_NAMES = """
  january february march april may june july august september october november
  december
"""
_DAY_NAMES = """
  monday tuesday wednesday thursday friday saturday sunday
"""
_MONTHS, _DAYS = _MONTH_NAMES.split(), _DAY_NAMES.split()
# The part that a format specifier reads, and its pattern.
_SPECIFIERS = {
  "Y": ("year", r"\d{1,4}"),
  "y": ("year", r"\d{1,2}"),
  "m": ("month", r"\d{1,2}"),
  "c": ("month", r"\d{1,2}"),
  "d": ("day", r"\d{1,2}"),
  "e": ("day", r"\d{1,2}"),
  "M": ("month", "|".join(_MONTHS)),
  "b": ("month", "|".join(month[:3] for month in _MONTHS)),
  "W": ("weekday", "|".join(_DAYS)),
  "a": ("weekday", "|".join(day[:3] for day in _DAYS)),
  "H": ("hour", r"\d{1,2}"),
  "k": ("hour", r"\d{1,2}"),
  "h": ("hour", r"\d{1,2}"),
  "l": ("hour", r"\d{1,2}"),
  "i": ("minute", r"\d{1,2}"),
  "s": ("second", r"\d{1,2}"),
  "S": ("second", r"\d{1,2}"),
  "p": ("half", "am|pm"),
}
_TIME_SPECIFIERS = frozenset("HkhliSsprTf")


_Part = Callable[[datetime.datetime], object]
_PARTS: Mapping[str, _Part] = {
  "YEAR": lambda d: d.year,
  "QUARTER": lambda d: (d.month + 2) // 3,
  "MONTH": lambda d: d.month,
  "DAY": lambda d: d.day,
  "DAYOFMONTH": lambda d: d.day,
  "HOUR": lambda d: d.hour,
  "MINUTE": lambda d: d.minute,
  "SECOND": lambda d: d.second,
  "DAYNAME": lambda d: d.strftime("%A"),
  "MONTHNAME": lambda d: d.strftime("%B"),
  "DAYOFWEEK": lambda d: d.isoweekday() % 7 + 1,
  "WEEKDAY": lambda d: d.weekday(),
  "DAYOFYEAR": lambda d: d.timetuple().tm_yday,
  "WEEK": lambda d: int(d.strftime("%U")),
  "TO_DAYS": lambda d: d.toordinal() + _DAYS_BEFORE,
  "LAST_DAY": lambda d: (
    d.date().replace(day=calendar.monthrange(d.year, d.month)[1]).isoformat()
  ),
}
_MONTHS_PER_UNIT = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SPANS = {
  "SECOND": datetime.timedelta(seconds=1),
  "MINUTE": datetime.timedelta(minutes=1),
  "HOUR": datetime.timedelta(hours=1),
  "DAY": datetime.timedelta(days=1),
  "WEEK": datetime.timedelta(weeks=1),
}
# Day 0 of MySQL's calendar, as an ordinal of Python's.
_DAYS_BEFORE = 365


def has_time(format_: str) -> bool:
  """Checks whether dates that are read by this format have a time."""
  return bool(_TIME_SPECIFIERS & set(re.findall("%(.)", format_)))


def read(value: object) -> datetime.datetime | None:
  """Parses a text such as 2001-5-3; None if it is no date."""
  match = _LOOSE.match(str(value).strip())
  if not match:
    return None
  year, *rest = (int(part or 0) for part in match.groups())
  return _datetime(_full_year(year, match[1]), *rest)


def str_to_date(text: object, format_: object) -> str | None:
  """Implements STR_TO_DATE; text behind the format is ignored."""
  if text is None or format_ is None:
    return None
  rest = str(text).lstrip()
  parts = dict.fromkeys(("year", "month", "day", "hour", "minute", "second"), 0)
  half = ""
  for piece in re.findall("%.|.", str(format_), re.DOTALL):
    if piece.isspace():
      rest = rest.lstrip()
      continue
    part, pattern = _SPECIFIERS.get(piece[1:], ("", re.escape(piece)))
    match = re.match(pattern, rest.lstrip() if part else rest, re.IGNORECASE)
    if not match:
      return None
    rest = (rest.lstrip() if part else rest)[match.end() :]
    if part == "half":
      half = match[0].lower()
    elif part in parts:
      parts[part] = _number(part, match[0])
  if half:
    parts["hour"] = parts["hour"] % 12 + (12 if half == "pm" else 0)
  moment = _datetime(*parts.values())
  return _iso(moment, with_time=has_time(str(format_)))


def date_format(value: object, format_: object) -> str | None:
  """Implements DATE_FORMAT."""
  moment = read(value)
  if moment is None or format_ is None:
    return None
  written = {
    "Y": f"{moment.year:04}",
    "y": f"{moment.year % 100:02}",
    "m": f"{moment.month:02}",
    "c": str(moment.month),
    "d": f"{moment.day:02}",
    "e": str(moment.day),
    "M": _MONTHS[moment.month - 1].capitalize(),
    "b": _MONTHS[moment.month - 1][:3].capitalize(),
    "W": _DAYS[moment.weekday()].capitalize(),
    "a": _DAYS[moment.weekday()][:3].capitalize(),
    "H": f"{moment.hour:02}",
    "k": str(moment.hour),
    "h": f"{moment.hour % 12 or 12:02}",
    "l": str(moment.hour % 12 or 12),
    "i": f"{moment.minute:02}",
    "s": f"{moment.second:02}",
    "S": f"{moment.second:02}",
    "p": "PM" if moment.hour >= 12 else "AM",
    "j": f"{moment.timetuple().tm_yday:03}",
    "T": f"{moment:%H:%M:%S}",
  }
  return re.sub(
    "%(.)", lambda m: written.get(m[1], m[1]), str(format_), flags=re.DOTALL
  )


def date(value: object) -> str | None:
  """Implements DATE: drops the time."""
  return _iso(read(value), with_time=False)


def datediff(a: object, b: object) -> int | None:
  """Implements DATEDIFF: days from `b` to `a`."""
  later, earlier = read(a), read(b)
  if later is None or earlier is None:
    return None
  return (later.date() - earlier.date()).days


def part(name: object, value: object) -> object:
  """Returns the part of a date or a time that `name` (in capitals) says."""
  moment = read(value)
  if moment is None and name in ("HOUR", "MINUTE", "SECOND"):
    moment = read(f"2000-01-01 {value}")
  rule = _PARTS.get(str(name))
  return None if moment is None or rule is None else rule(moment)


def add(value: object, number: object, unit: object) -> str | None:
  """Implements DATE_ADD; the result has a time if the date or unit has."""
  moment, name = read(value), str(unit).upper()
  try:
    count = int(float(str(number)))
    if moment is None:
      return None
    if name in _MONTHS_PER_UNIT:
      moved = _months_later(moment, count * _MONTHS_PER_UNIT[name])
    elif name in _SPANS:
      moved = moment + count * _SPANS[name]
    else:
      return None
  except (ValueError, OverflowError):
    return None
  shows_time = ":" in str(value) or name in ("SECOND", "MINUTE", "HOUR")
  return _iso(moved, with_time=shows_time)


def difference(unit: object, earlier: object, later: object) -> int | None:
  """Implements TIMESTAMPDIFF: whole units from `earlier` to `later`."""
  start, end, name = read(earlier), read(later), str(unit).upper()
  if start is None or end is None:
    return None
  if name in _SPANS:
    seconds = (end - start).total_seconds()
    return int(seconds / _SPANS[name].total_seconds())
  if name not in _MONTHS_PER_UNIT:
    return None
  sign, (start, end) = (1, (start, end)) if start <= end else (-1, (end, start))
  months = (end.year - start.year) * 12 + end.month - start.month
  # The last month counts once its day and time are reached.
  if (end.day, end.time()) < (start.day, start.time()):
    months -= 1
  return sign * (months // _MONTHS_PER_UNIT[name])


def now() -> str:
  """Implements NOW, in whole seconds of UTC."""
  moment = datetime.datetime.now(datetime.UTC)
  return moment.replace(microsecond=0, tzinfo=None).isoformat(" ")


def today() -> str:
  """Implements CURDATE, in UTC."""
  return now()[:10]


def _number(part: str, text: str) -> int:
  if text.isdigit():
    return _full_year(int(text), text) if part == "year" else int(text)
  return 1 + next(
    i for i, month in enumerate(_MONTHS) if month[:3] == text[:3].lower()
  )


def _full_year(year: int, text: str) -> int:
  """Returns the year; two digits mean 1970 to 2069."""
  if len(text) > 2:
    return year
  return year + (2000 if year < 70 else 1900)


def _datetime(*parts: int) -> datetime.datetime | None:
  try:
    return datetime.datetime(*parts)  # type: ignore[arg-type]
  except ValueError:
    return None


def _iso(moment: datetime.datetime | None, *, with_time: bool) -> str | None:
  if moment is None:
    return None
  return moment.isoformat(" ") if with_time else moment.date().isoformat()


def _months_later(moment: datetime.datetime, count: int) -> datetime.datetime:
  month = moment.year * 12 + moment.month - 1 + count
  year, month = divmod(month, 12)
  last = calendar.monthrange(year, month + 1)[1]
  return moment.replace(year=year, month=month + 1, day=min(moment.day, last))
