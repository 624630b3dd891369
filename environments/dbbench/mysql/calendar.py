"""MySQL's functions that reckon with dates, which are texts here.

`dates` reads and writes dates. What is no date is NULL.
"""

import calendar
import datetime
from collections.abc import Callable, Mapping

from environments.dbbench.mysql.dates import read

_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SPANS = {
  "SECOND": datetime.timedelta(seconds=1),
  "MINUTE": datetime.timedelta(minutes=1),
  "HOUR": datetime.timedelta(hours=1),
  "DAY": datetime.timedelta(days=1),
  "WEEK": datetime.timedelta(weeks=1),
}
# Day 0 of MySQL's calendar, as an ordinal of Python's.
_DAYS_BEFORE = 365
_Part = Callable[[datetime.datetime], object]
PARTS: Mapping[str, _Part] = {
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


def part(name: object, value: object) -> object:
  """A part of a date or of a time of day, by its name in capitals."""
  found = read(value)
  if found is None and name in ("HOUR", "MINUTE", "SECOND"):
    found = read(f"2000-01-01 {value}")
  rule = PARTS.get(str(name))
  return None if found is None or rule is None else rule(found)


def add(value: object, number: object, unit: object) -> str | None:
  """DATE_ADD: the date so many units later; with a time if it needs one."""
  found, name = read(value), str(unit).upper()
  try:
    count = int(float(str(number)))
    if found is None:
      return None
    if name in _MONTHS:
      moved = _months_later(found, count * _MONTHS[name])
    elif name in _SPANS:
      moved = found + count * _SPANS[name]
    else:
      return None
  except (ValueError, OverflowError):
    return None
  has_time = ":" in str(value) or name in ("SECOND", "MINUTE", "HOUR")
  return moved.isoformat(" ") if has_time else moved.date().isoformat()


def difference(unit: object, earlier: object, later: object) -> int | None:
  """TIMESTAMPDIFF: whole units from the one to the other."""
  start, end, name = read(earlier), read(later), str(unit).upper()
  if start is None or end is None:
    return None
  if name in _SPANS:
    seconds = (end - start).total_seconds()
    return int(seconds / _SPANS[name].total_seconds())
  if name not in _MONTHS:
    return None
  sign, (start, end) = (1, (start, end)) if start <= end else (-1, (end, start))
  months = (end.year - start.year) * 12 + end.month - start.month
  # The last month counts once its day and time are reached.
  if (end.day, end.time()) < (start.day, start.time()):
    months -= 1
  return sign * (months // _MONTHS[name])


def now() -> str:
  """NOW, in whole seconds of UTC."""
  moment = datetime.datetime.now(datetime.UTC)
  return moment.replace(microsecond=0, tzinfo=None).isoformat(" ")


def today() -> str:
  """CURDATE, in UTC."""
  return now()[:10]


def _months_later(found: datetime.datetime, count: int) -> datetime.datetime:
  month = found.year * 12 + found.month - 1 + count
  year, month = divmod(month, 12)
  last = calendar.monthrange(year, month + 1)[1]
  return found.replace(year=year, month=month + 1, day=min(found.day, last))
