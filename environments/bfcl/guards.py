"""Calls that would never end, refused before they begin.

BFCL's functions trust their arguments. A policy in training tries everything,
and one power of ten too many, or a folder copied into itself thirty times,
would hold up every other session. No gold call comes near these bounds.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

MAX_DIGITS = 10_000  # of a number or a precision
MAX_ENTRIES = 20_000  # paths of files and folders, counted as `find` would


def refusal(
  instance: Any, name: str, arguments: Mapping[str, Any]
) -> str | None:
  """Why the call is not made, or None where it may be."""
  find_problem = _CHECKS.get(type(instance).__name__)
  return find_problem(instance, name, arguments) if find_problem else None


def _of_math(
  instance: Any, name: str, arguments: Mapping[str, Any]
) -> str | None:
  del instance
  whole = {key: x for key, x in arguments.items() if isinstance(x, int)}
  if name == "power" and len(whole) == 2:
    digits = abs(whole["exponent"]) * math.log10(max(abs(whole["base"]), 1))
    if digits > MAX_DIGITS:
      return f"the result has more than {MAX_DIGITS} digits"
  for key in ("precision", "decimal_places"):
    if abs(whole.get(key, 0)) > MAX_DIGITS:
      return f"{key} is more than {MAX_DIGITS} digits"
  return None


def _of_files(
  instance: Any, name: str, arguments: Mapping[str, Any]
) -> str | None:
  del name, arguments
  # Folders share what was copied: few calls make many paths.
  left, waiting = MAX_ENTRIES, [instance.root]
  while waiting:
    contents = getattr(waiting.pop(), "contents", {})
    left -= len(contents)
    if left < 0:
      return f"there are more than {MAX_ENTRIES} paths"
    waiting.extend(contents.values())
  return None


_CHECKS: Mapping[str, Callable[[Any, str, Mapping[str, Any]], str | None]] = {
  "MathAPI": _of_math,
  "GorillaFileSystem": _of_files,
}
