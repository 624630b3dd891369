"""Formats of numbers, in the terminal and in the report alike."""

import datetime
import math

_NO_BREAK = "\N{NO-BREAK SPACE}"  # a number and its unit stay on one line


def percent(share: float) -> str:
  """A share of one as a percentage: 0.431 is "43.1 %"."""
  return f"{100 * share:.1f}{_NO_BREAK}%"


def points(difference: float) -> str:
  """A difference of shares in percentage points, always with its sign."""
  # Adding zero turns -0.0 into 0.0, so that nothing is never "-0.0".
  return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")


def interval(low: float, high: float) -> str:
  """An interval of shares, in percent."""
  return f"{100 * low:.1f} to {100 * high:.1f}"


def signed_interval(low: float, high: float) -> str:
  """An interval of differences, in percentage points."""
  return f"{points(low)} to {points(high)}"


def p_value(p: float) -> str:
  """A p value with its name: "p = 0.031", or "p < 0.001"."""
  if p < 0.001:
    return "p < 0.001"
  text = f"{p:.2g}"
  # On which side of the usual level it is must be seen.
  return f"p = {p:.3g}" if text == "0.05" else f"p = {text}"


def duration(seconds: float) -> str:
  """A wall time at a readable precision: "4.2 s", "3:05", "2:00:07".

  One of NaN, which was not measured, is "unknown".
  """
  if math.isnan(seconds):
    return "unknown"
  if seconds < 59.95:
    return f"{seconds:.1f}{_NO_BREAK}s"
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours}:{minutes:02d}:{rest:02d}"
  return f"{minutes}:{rest:02d}"


def moment(seconds: float) -> str:
  """A time since the epoch as a date and time of day, UTC."""
  when = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
  return f"{when:%Y-%m-%d %H:%M} UTC"


def stage_name(stage: str, *, has_warm_start: bool = True) -> str:
  """A stage's key as words: "warm_start" is "warm start", "rl" is "RL".

  In a run without a warm start that stage's policy is "untouched".
  """
  if not has_warm_start:
    stage = stage.replace("warm_start", "untouched")
  words = stage.split("_")
  return " ".join("RL" if word == "rl" else word for word in words)


def count(number: float) -> str:
  """A count with thousands separators."""
  return f"{number:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
