"""MySQL's functions of dates that policies use to sort texts by date.

Dates are text here, as YYYY-MM-DD, with the time behind it if there is one.
What is no date is NULL.
"""

import datetime
import re

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
# What a mark of a format stands for: its part, and the pattern of it.
_MARKS = {
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
_TIMES = frozenset("HkhliSsprTf")


def has_time(format_: str) -> bool:
  """Whether dates read by this format have a time."""
  return bool(_TIMES & set(re.findall("%(.)", format_)))


def read(value: object) -> datetime.datetime | None:
  """The date that a text such as 2001-5-3 says."""
  match = _LOOSE.match(str(value).strip())
  if not match:
    return None
  year, *rest = (int(part or 0) for part in match.groups())
  return _made(_full(year, match[1]), *rest)


def str_to_date(text: object, format_: object) -> str | None:
  """STR_TO_DATE: a text read by a format; what follows behind is ignored."""
  if text is None or format_ is None:
    return None
  rest, parts = (
    str(text).lstrip(),
    dict.fromkeys(("year", "month", "day", "hour", "minute", "second"), 0),
  )
  half = ""
  for piece in re.findall("%.|.", str(format_), re.DOTALL):
    if piece.isspace():
      rest = rest.lstrip()
      continue
    part, pattern = _MARKS.get(piece[1:], ("", re.escape(piece)))
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
  found = _made(*parts.values())
  return _written(found, with_time=has_time(str(format_)))


def date_format(value: object, format_: object) -> str | None:
  """DATE_FORMAT, with MySQL's marks."""
  found = read(value)
  if found is None or format_ is None:
    return None
  said = {
    "Y": f"{found.year:04}",
    "y": f"{found.year % 100:02}",
    "m": f"{found.month:02}",
    "c": str(found.month),
    "d": f"{found.day:02}",
    "e": str(found.day),
    "M": _MONTHS[found.month - 1].capitalize(),
    "b": _MONTHS[found.month - 1][:3].capitalize(),
    "W": _DAYS[found.weekday()].capitalize(),
    "a": _DAYS[found.weekday()][:3].capitalize(),
    "H": f"{found.hour:02}",
    "k": str(found.hour),
    "h": f"{found.hour % 12 or 12:02}",
    "l": str(found.hour % 12 or 12),
    "i": f"{found.minute:02}",
    "s": f"{found.second:02}",
    "S": f"{found.second:02}",
    "p": "PM" if found.hour >= 12 else "AM",
    "j": f"{found.timetuple().tm_yday:03}",
    "T": f"{found:%H:%M:%S}",
  }
  return re.sub(
    "%(.)", lambda m: said.get(m[1], m[1]), str(format_), flags=re.DOTALL
  )


def date(value: object) -> str | None:
  """DATE: without its time."""
  found = read(value)
  return _written(found, with_time=False)


def datediff(a: object, b: object) -> int | None:
  """DATEDIFF: days from `b` to `a`."""
  later, earlier = read(a), read(b)
  if later is None or earlier is None:
    return None
  return (later.date() - earlier.date()).days


def _number(part: str, text: str) -> int:
  if text.isdigit():
    return _full(int(text), text) if part == "year" else int(text)
  return 1 + next(
    i for i, month in enumerate(_MONTHS) if month[:3] == text[:3].lower()
  )


def _full(year: int, text: str) -> int:
  """Years of two digits are of 1970 to 2069."""
  if len(text) > 2:
    return year
  return year + (2000 if year < 70 else 1900)


def _made(*parts: int) -> datetime.datetime | None:
  try:
    return datetime.datetime(*parts)  # type: ignore[arg-type]
  except ValueError:
    return None


def _written(found: datetime.datetime | None, *, with_time: bool) -> str | None:
  if found is None:
    return None
  return found.isoformat(" ") if with_time else found.date().isoformat()
